"""A proxy between browser and Jupyter's server that cuts quiet connections, as some do after a minute."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_LOOK_SECONDS = 0.02
_CHUNK_BYTES = 65536
_WAITS = b"wait_seconds="


@dataclass
class CuttingProxy:
    """Passes everything on; with `cut_after_seconds` a request that waits for news waits no longer."""

    target: tuple[str, int]
    cut_after_seconds: float | None = None
    cuts: int = 0
    """Connections that were cut."""
    port: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Listen."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self._run(self._accept, listener)

    def stop(self) -> None:
        """Close everything."""
        self._ended.set()
        for thread in self._threads:
            thread.join(10)

    def _run(self, call: object, *given: object) -> None:
        thread = threading.Thread(target=call, args=given, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while not self._ended.is_set():
                if select.select([listener], [], [], _LOOK_SECONDS)[0]:
                    self._run(self._pass_on, listener.accept()[0])

    def _pass_on(self, near: socket.socket) -> None:
        with near, socket.create_connection(self.target) as far, suppress(OSError):
            waits_since: float | None = None
            others = {near: far, far: near}
            while not self._ended.is_set():
                for ready in select.select([near, far], [], [], _LOOK_SECONDS)[0]:
                    data = ready.recv(_CHUNK_BYTES)
                    if not data:
                        return
                    others[ready].sendall(data)
                    waits_since = time.monotonic() if ready is near and _WAITS in data else None
                most = self.cut_after_seconds
                if most is not None and waits_since is not None and time.monotonic() - waits_since > most:
                    self.cuts += 1
                    return


@contextmanager
def cutting_proxy(port: int) -> Iterator[CuttingProxy]:
    """Run one before a server of this machine."""
    proxy = CuttingProxy(("127.0.0.1", port))
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
