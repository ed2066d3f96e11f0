"""What every request passes before anything reads it: host, size, deadline; headers on the way out.

The size is counted as it arrives, so a chunked body without a length is bounded as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from selfsched.protocol import ProblemCode
from selfsched_broker.api.problems import BadRequest, problem

MOST_BODY_BYTES = 64 * 1024
MOST_REPORT_BYTES = 256 * 1024
"""Reports carry bids, statistics and whole nodes."""
BODY_SECONDS = 10.0
"""Within this a body must have arrived."""
_HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


class Gate:
    """ASGI middleware around the whole application.

    Args:
        app: the application.
        hosts: names by which it may be called over TCP; empty: any. It keeps a web page from
            reaching a loopback broker by a name that resolves to it.
        body_seconds: within this a body must have arrived.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], body_seconds: float = BODY_SECONDS) -> None:
        self._app = app
        self._hosts = hosts
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        most = MOST_REPORT_BYTES if scope["path"].endswith("/report") else MOST_BODY_BYTES
        sender = _with_headers(send)
        refusal = self._refusal(scope, headers, most)
        if refusal is not None:
            await problem(refusal.status, refusal.code, refusal.detail)(scope, receive, sender)
            return
        await self._app(scope, _Bounded(receive, most, self._body_seconds), sender)

    def _refusal(self, scope: Scope, headers: MutableMapping[bytes, bytes], most: int) -> BadRequest | None:
        if self._hosts and scope.get("state", {}).get("peer_uid") is None:
            host = headers.get(b"host", b"").decode("latin-1")
            if host_name(host) not in self._hosts:
                return BadRequest(421, "this broker is not called by that host name: see allowed_hosts")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > most:
            return BadRequest(413, f"at most {most} bytes are read", ProblemCode.TOO_LARGE)
        return None


def host_name(header: str) -> str:
    """The name in a Host header, without its port."""
    name = header.rpartition("]")[0] + "]" if header.startswith("[") else header.partition(":")[0]
    return name.lower()


class _Bounded:
    """`receive`, as long as what it brings stays within a size and a time."""

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self._receive = receive
        self._left = most
        self._most = most
        self._seconds = seconds
        self._complete = False
        self._ends_at: float | None = None

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        loop = asyncio.get_running_loop()
        if self._ends_at is None:
            self._ends_at = loop.time() + self._seconds
        try:
            async with asyncio.timeout_at(self._ends_at):
                message = await self._receive()
        except TimeoutError:
            raise BadRequest(408, f"the body did not arrive within {self._seconds:.0f} s") from None
        self._complete = not message.get("more_body", False)
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise BadRequest(413, f"at most {self._most} bytes are read", ProblemCode.TOO_LARGE)
        return message


def _with_headers(send: Send) -> Send:
    async def sender(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await send(message)

    return sender
