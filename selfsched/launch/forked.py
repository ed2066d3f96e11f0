"""Ranks as forks of the zygote: the supervisor's end of that conversation."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Literal

from selfsched.elastic.channel import LineReader
from selfsched.elastic.reactor import Reactor
from selfsched.launch.cold import watch_process
from selfsched.launch.rank import RankProcess, RankRequest

FRAME = struct.Struct("<II")
"""Length of the JSON that follows, and how many descriptors came with this header."""
_CLOSE_SECONDS = 0.5
SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Before the zygote's first import: `import numpy` alone starts OpenBLAS's threads."""


class ZygoteLauncher:
    """Owns one zygote process and asks it to fork ranks.

    `state` is `booting`, `ready`, `unfit` (it has threads, or its imports failed: `why`
    says it; use cold processes) or `gone` (killed: its ranks died with it).
    """

    def __init__(self, reactor: Reactor, package: str, *, lost: Callable[[ZygoteLauncher], None]) -> None:
        self._reactor = reactor
        self._lost = lost
        self._reader = LineReader()
        self._ranks: dict[int, tuple[RankProcess, Callable[[RankProcess], None]]] = {}
        self._numbers = 0
        self.state: Literal["booting", "ready", "unfit", "gone"] = "booting"
        self.why = ""
        self.boot_seconds: float | None = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._control = ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "selfsched.elastic.zygote",
                 str(theirs.fileno()), str(os.getpid()), package],
                stdin=subprocess.DEVNULL, stdout=2, stderr=2,
                env={**os.environ, **SINGLE_THREADED},
                start_new_session=True, pass_fds=[theirs.fileno()],
            )
        self.pid = self._process.pid
        reactor.on_readable(ours, self._read)
        self._stop_watching = watch_process(reactor, self._process, self._was_lost)

    def start(
        self,
        request: RankRequest,
        *,
        outputs: tuple[int, int],
        locks: Sequence[int],
        ended: Callable[[RankProcess], None],
    ) -> RankProcess:
        """As `ColdLauncher.start`; the rank's pid is known a moment later.

        Raises:
            OSError: the zygote is gone.
        """
        self._numbers += 1
        body = json.dumps({"number": self._numbers, **_as_json(request)}).encode()
        descriptors = [*outputs, *locks]
        header = FRAME.pack(len(body), len(descriptors))
        socket.send_fds(self._control, [header], descriptors)
        self._control.sendall(body)
        rank = RankProcess(request.rank)
        self._ranks[self._numbers] = (rank, ended)
        return rank

    def _read(self) -> None:
        try:
            data = self._control.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._reactor.forget(self._control)
            return  # its death is told by `_was_lost`
        for line in self._reader.feed(data):
            self._handle(json.loads(line))

    def _handle(self, message: dict[str, Any]) -> None:
        match message:
            case {"booted": seconds}:
                self.state, self.boot_seconds = "ready", float(seconds)
            case {"unfit": why}:
                self.state, self.why = "unfit", str(why)
            case {"forked": number, "pid": pid}:
                self._ranks[number][0].pid = pid
            case {"ended": number, "status": status}:
                rank, ended = self._ranks.pop(number)
                rank.status = status
                ended(rank)

    def _was_lost(self, status: int) -> None:
        self._read_rest()
        if self.state != "unfit":
            self.state = "gone"
            self.why = f"the zygote ended ({status})"
        self._reactor.forget(self._control)
        self._control.close()
        # PDEATHSIG took its ranks with it, or its own end did; nobody else can reap them.
        for rank, ended in self._ranks.values():
            rank.status = -9
            ended(rank)
        self._ranks.clear()
        self._lost(self)

    def _read_rest(self) -> None:
        self._control.setblocking(False)
        try:
            while data := self._control.recv(65536):
                for line in self._reader.feed(data):
                    self._handle(json.loads(line))
        except OSError:
            return

    def close(self) -> None:
        """End the zygote: it goes when its control socket closes."""
        self._stop_watching()
        self._reactor.forget(self._control)
        self._control.close()
        try:
            self._process.wait(timeout=_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:  # still importing
            self._process.kill()
            self._process.wait()


def _as_json(request: RankRequest) -> dict[str, Any]:
    fields = asdict(request)
    fields["working_directory"] = str(request.working_directory)
    return fields
