"""The HTTP servers of a broker, and the sockets that they stand on.

Somebody else may remove the file of a socket while we listen: systemd-logind removes a user's
runtime directory at the last logout, an administrator cleans up. Nobody can reach us there any
more, and the socket itself does not tell. So the front looks every few seconds and listens at
the same path again. A broker that nobody can reach at all ends: its books are then free for the
one that a job starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from socket import socket

import uvicorn

from selfsched_broker.api.call import Backstage
from selfsched_broker.api.peer import PeerProtocol
from selfsched_broker.app import LOOPBACK_HOSTS, build_app
from selfsched_broker.listening import Listening
from selfsched_broker.settings import BrokerSettings, is_loopback

log = logging.getLogger(__name__)
_KEEP_ALIVE_SECONDS = 30
"""Longer than clients keep idle connections, so that none is used as it is being closed."""
_GRACE_SECONDS = 5
_LOOK_SECONDS = 2.0
_MOST_LOOKS_UNREACHABLE = 3


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: one process may run two."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Front:
    """Where a broker is spoken to. Belongs to the event loop.

    Args:
        settings: as read.
        listening: bound sockets; closed by their owner.
        backstage: what answers.
    """

    def __init__(self, settings: BrokerSettings, listening: Listening, backstage: Backstage) -> None:
        loopback = is_loopback(settings.host or "127.0.0.1")
        hosts = settings.allowed_hosts or (LOOPBACK_HOSTS if loopback else frozenset())
        self._app = build_app(backstage, hosts=hosts)
        self._settings, self._listening = settings, listening
        self._servers: list[_Server] = []
        self._running: list[asyncio.Task[None]] = []
        self._look_at = 0.0
        self._looks_unreachable = 0

    async def start(self) -> None:
        """Return when every socket is served.

        Raises:
            OSError: one cannot be.
        """
        plain, listening = list(self._listening.unix), self._listening
        if listening.tcp is not None and self._settings.tls_cert is not None:
            tls = {"ssl_certfile": str(self._settings.tls_cert), "ssl_keyfile": str(self._settings.tls_key)}
            self._add([listening.tcp], **tls)
        elif listening.tcp is not None:
            plain.append(listening.tcp)
        self._add(plain)
        while not all(server.started for server in self._servers):
            for task in self._running:
                if task.done():
                    task.result()
            await asyncio.sleep(0.01)

    def _add(self, sockets: list[socket], **tls: str) -> None:
        server = _Server(
            uvicorn.Config(
                self._app,
                http=PeerProtocol,
                ws="none",
                lifespan="off",
                loop="asyncio",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_GRACE_SECONDS,
                **tls,  # type: ignore[arg-type]  # only ssl_certfile and ssl_keyfile
            )
        )
        self._servers.append(server)
        self._running.append(asyncio.create_task(server.serve(sockets=sockets)))

    async def look(self) -> str:
        """See that we can be reached, every few seconds; why we have to end, empty: nothing."""
        if any(task.done() for task in self._running):
            return "the HTTP server has ended"
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            return ""
        self._look_at = now + _LOOK_SECONDS
        # In a thread: a directory on a server that hangs must not hold up the jobs that reach us.
        again = await asyncio.to_thread(self._listening.reopen)
        if again:
            self._add(again)
        reachable = await asyncio.to_thread(self._listening.is_reachable)
        self._looks_unreachable = 0 if reachable else self._looks_unreachable + 1
        if self._looks_unreachable < _MOST_LOOKS_UNREACHABLE:
            return ""
        return "its socket was removed and cannot be made again, so nobody can reach it"

    async def close(self) -> None:
        """End in order: requests under way are answered."""
        for server in self._servers:
            server.should_exit = True
        await asyncio.gather(*self._running)
