"""uvicorn's HTTP protocol with two things more: who is at the other end of a Unix socket, and a
deadline for the head of a request.

The peer's uid comes from the kernel (SO_PEERCRED) and is put into the scope of every request of
the connection as `state["peer_uid"]`; over TCP it is None. A client that trickles its headers is
cut off after `HEAD_SECONDS`: uvicorn's own time-out only counts between requests.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0


class PeerProtocol(H11Protocol):
    """One connection."""

    _head_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state: dict[str, Any] = {**self.app_state, "peer_uid": peer_uid(transport)}
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_has_arrived()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._head_has_arrived()
        elif self._head_deadline is None:
            self._head_deadline = self.loop.call_later(HEAD_SECONDS, self._cut_off)

    def _head_has_arrived(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _cut_off(self) -> None:
        self._head_deadline = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


def peer_uid(transport: asyncio.BaseTransport) -> int | None:
    """uid of the process at the other end of a Unix socket; None over TCP."""
    found = transport.get_extra_info("socket")
    if found is None or found.family != socket.AF_UNIX:
        return None
    credentials = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
