"""The zygote: a process that has imported torch and Lightning, and forks ranks off itself.

A fresh rank spends two seconds on imports; a fork of this process is there in
milliseconds. What makes that safe is that the zygote does nothing *but* import: it has one
thread (it says so only after counting), has run no tensor operation, has never touched a
GPU, and holds no lock. Anything else in a forking process hangs its children sooner or
later.

`python -m selfsched.elastic.zygote CONTROL PARENT PACKAGE`, with CONTROL an inherited
socket: requests down (`launch.forked`), JSON lines up.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import multiprocessing.process
import os
import selectors
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from selfsched.launch.forked import FRAME
from selfsched.launch.parenthood import die_with_parent, name_process, pin, tie_workers

_ALSO_IMPORTED = ("numpy", "selfsched.callback", "selfsched.elastic.worker", "selfsched.elastic.hooks")


def main(arguments: list[str]) -> None:
    """Import, say so, then fork on request until the supervisor closes the socket."""
    descriptor, parent, package = arguments
    die_with_parent(int(parent))
    name_process("ss-zygote")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(descriptor))
    control.set_inheritable(False)
    started_at = time.monotonic()
    trouble = _import_all(package)
    if trouble:
        _tell(control, {"unfit": trouble})
        return
    _tell(control, {"booted": time.monotonic() - started_at})
    _Zygote(control).serve()


def _import_all(package: str) -> str | None:
    """Import what every rank needs; a reason when forking from here would not be safe."""
    for module in (package, *_ALSO_IMPORTED):
        try:
            importlib.import_module(module)
        except ImportError as error:
            return f"{module} cannot be imported: {error}"
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"importing {package} started {threads - 1} threads"
    # What lives now is shared by all forks; the collector must not touch, and so copy, it.
    gc.collect()
    gc.freeze()
    return None


def _tell(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


class _Zygote:
    def __init__(self, control: socket.socket) -> None:
        self._pid = os.getpid()
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._children: dict[int, tuple[int, int]] = {}  # pidfd -> (number, pid)

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._control:
                    self._reap(key.fd)
                elif not self._take_request():
                    return

    def _take_request(self) -> bool:
        received = _receive(self._control)
        if received is None:
            return False
        request, descriptors = received
        pid = os.fork()
        if pid == 0:
            self._become(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        watched = os.pidfd_open(pid)
        self._children[watched] = (request["number"], pid)
        self._selector.register(watched, selectors.EVENT_READ)
        _tell(self._control, {"forked": request["number"], "pid": pid})
        return True

    def _reap(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        number, pid = self._children.pop(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        _tell(self._control, {"ended": number, "status": status})

    def _become(self, request: dict[str, Any], descriptors: list[int]) -> NoReturn:
        """In the child: shed everything of the zygote's, then be the rank."""
        self._selector.close()
        self._control.close()
        for watched in self._children:
            os.close(watched)
        os.setsid()
        die_with_parent(self._pid)
        _run(request, descriptors)


def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """One request and its descriptors; None when the supervisor closed the socket."""
    header, descriptors, _flags, _address = socket.recv_fds(control, FRAME.size, 253)
    if len(header) < FRAME.size:
        return None
    length, _count = FRAME.unpack(header)
    body = bytearray()
    while len(body) < length:
        piece = control.recv(length - len(body))
        if not piece:
            return None
        body += piece
    return json.loads(body), list(descriptors)


def _run(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Set the process up as a fresh interpreter would find itself, run, and end."""
    from selfsched.elastic.worker import run_forked

    stdout, stderr, *locks = descriptors
    for lock in locks:
        os.set_inheritable(lock, True)  # whatever the rank executes holds the device too
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for descriptor in {stdout, stderr} - {1, 2}:
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, value in request["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.chdir(request["working_directory"])
    # Spawned processes of the script find it relative to where it was started, not to here.
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    pin(tuple(request["cores"]))
    name_process(f"ss-rank-{request['rank']}")
    tie_workers()
    importlib.invalidate_caches()
    run_forked(request)


if __name__ == "__main__":
    main(sys.argv[1:])
