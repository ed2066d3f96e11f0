"""The supervisor's line to its user's process: one client at a time, never waited for.

Who connects besides that client is a visitor: it may ask for a Stop, and is told nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from selfsched.elastic.channel import Channel, Message
from selfsched.elastic.reactor import Reactor
from selfsched.elastic.segment import boottime

_MOST_VISITORS = 8


class UserLink:
    """Takes the client in, hands on what it asks for, and says when it is gone."""

    def __init__(
        self,
        reactor: Reactor,
        server: socket.socket,
        *,
        asked: Callable[[Any], None],
        lost: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self._server = server
        self._asked = asked
        self._lost = lost
        self._client: Channel | None = None
        self._descriptor = -1
        self._visitors: dict[int, Channel] = {}
        reactor.on_readable(server, self._accept)

    @property
    def is_attached(self) -> bool:
        return self._client is not None

    def _accept(self) -> None:
        connection, _ = self._server.accept()
        if self._client is None:
            self._client = Channel(connection)
            self._descriptor = connection.fileno()
            self._reactor.on_readable(self._client, self._ready)
        elif len(self._visitors) < _MOST_VISITORS:
            descriptor = connection.fileno()
            self._visitors[descriptor] = Channel(connection)
            self._reactor.on_readable(descriptor, lambda: self._visited(descriptor))
        else:
            connection.close()

    def _visited(self, descriptor: int) -> None:
        visitor = self._visitors[descriptor]
        messages = visitor.receive()
        if not visitor.is_open:
            self._reactor.forget(descriptor)
            del self._visitors[descriptor]
        for message in messages:
            self._asked(message)

    def _ready(self) -> None:
        """The socket can be read, or has room again."""
        assert self._client is not None
        self._client.flush()
        messages = self._client.receive() if self._client.is_open else []
        for message in messages:
            self._asked(message)
        self._after_use()

    def send(self, message: Message) -> None:
        """Send what there is to show; without a client it is dropped."""
        if self._client is not None:
            self._client.send(message)
            self._after_use()

    def _after_use(self) -> None:
        client = self._client
        if client is None:
            return
        if client.is_open:
            self._reactor.also_writable(client, client.has_backlog)
            return
        # Closed descriptors leave epoll by themselves; the selector's own map does not.
        self._reactor.forget(self._descriptor)
        self._client = None
        self._lost()

    def close(self, *, patience_seconds: float = 5.0) -> None:
        """Let the client read what is left for it, then hang up."""
        give_up_at = boottime() + patience_seconds
        while self._client is not None and self._client.has_backlog and boottime() < give_up_at:
            self._reactor.wait(0.1)
        if self._client is not None:
            self._reactor.forget(self._descriptor)
            self._client.close()
            self._client = None
        for descriptor, visitor in self._visitors.items():
            self._reactor.forget(descriptor)
            visitor.close()
        self._visitors.clear()
        self._reactor.forget(self._server)
        self._server.close()
