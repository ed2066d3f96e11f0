"""Calls of one broker, as the user. The only module here that knows HTTP.

Whatever goes wrong comes out as an answer in words: a broker that is away or slow, a redirect
(never followed: it could lead the token anywhere), a page of something else, a body that is
cut off, too large or of another version. The token is in the headers of the calls and nowhere
else: not in an answer (not even one that repeats it), not in a log, not in an exception's text.
"""

from __future__ import annotations

import asyncio
import json
import stat
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
from pydantic import TypeAdapter, ValidationError

from selfsched.errors import InvalidMessage
from selfsched.protocol import Problem, parse
from selfsched.settings import BrokerAddress
from selfsched_jupyter.allowed import BrokerCall, Route
from selfsched_jupyter.answers import JSON, PROBLEM, Answer, OwnCode, not_modified, tag_in, tag_of, trouble
from selfsched_jupyter.finding import Found

CONNECT_SECONDS = 2.0
REPLY_SECONDS = 6.0
"""Longest wait for an answer that is not held back on purpose."""
MOST_CONNECTIONS = 100
"""To one broker at a time, of each kind of call."""
_MOST_IDLE = 10
LARGEST_ANSWER_BYTES = 16 * 1024 * 1024
_CHECKED_AT_ONCE_BYTES = 32 * 1024
"""A larger answer is checked in a thread: the server's other users must not wait for it."""
_RETRY_AFTER_DIGITS = 4
_SHORTEST_TOKEN = 8
"""A broker's has 60 letters; what is shorter than this is none, and may stand in any word."""
_TOKEN_SHOWN = "token-not-shown"
"""Legal wherever a message has a name."""
_PLAIN = "identity"
"""Nothing is unpacked: a few packed bytes may stand for gigabytes."""


class _Lane(Enum):
    """Each has connections of its own: none waits because the others' are all in use."""

    POLL = auto()
    LOOK = auto()
    ORDER = auto()

    @classmethod
    def of(cls, call: BrokerCall) -> _Lane:
        if call.route.method != "GET":
            return cls.ORDER
        return cls.POLL if call.wait_seconds > 0 else cls.LOOK


class Upstream:
    """One broker.

    Args:
        found: where it is and who we are.
        transport: stands in for the network in tests.
    """

    def __init__(self, found: Found, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        assert found.address is not None
        self.found = found
        self._address = found.address
        self._socket = found.address.socket if transport is None else None
        self._clients = {lane: self._client(found, found.address, transport) for lane in _Lane}

    @staticmethod
    def _client(
        found: Found, address: BrokerAddress, transport: httpx.AsyncBaseTransport | None
    ) -> httpx.AsyncClient:
        headers = {"Accept": JSON, "Accept-Encoding": _PLAIN}
        if found.token is not None:
            headers["Authorization"] = f"Bearer {found.token}"
        if transport is None:
            uds = str(address.socket) if address.socket is not None else None
            limits = httpx.Limits(max_connections=MOST_CONNECTIONS, max_keepalive_connections=_MOST_IDLE)
            transport = httpx.AsyncHTTPTransport(uds=uds, verify=found.verify, trust_env=False, limits=limits)
        return httpx.AsyncClient(
            base_url=address.url,
            transport=transport,
            headers=headers,
            trust_env=False,
            follow_redirects=False,
        )

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.aclose()

    async def ask(self, call: BrokerCall, *, etag: str | None = None) -> Answer:
        """Make a call.

        Args:
            call: which.
            etag: what we have: held back by the broker, at most `call.wait_seconds`, while it
                is still so.
        """
        return self._without_token(await self._outcome(call, etag))

    def _without_token(self, answer: Answer) -> Answer:
        """Something between us and the broker may repeat what we sent, in whatever part of its answer."""
        body = answer.body
        if any(written.encode() in body for written in self._secrets):
            body = self._blank(body.decode()).encode()
        etag = answer.etag if answer.etag is None or self._blank(answer.etag) == answer.etag else tag_of(body)
        return replace(answer, body=body, etag=etag)

    @property
    def _secrets(self) -> tuple[str, ...]:
        """Our token, as it is and as JSON writes it."""
        token = self.found.token or ""
        return (token, json.dumps(token)[1:-1]) if len(token) >= _SHORTEST_TOKEN else ()

    def _blank(self, text: str) -> str:
        for written in self._secrets:
            text = text.replace(written, _TOKEN_SHOWN)
        return text

    async def _outcome(self, call: BrokerCall, etag: str | None) -> Answer:
        try:
            async with asyncio.timeout(call.wait_seconds + CONNECT_SECONDS + REPLY_SECONDS):
                return await self._asked(call, etag)
        except TimeoutError:
            return self._unreachable("it did not answer in time", HTTPStatus.GATEWAY_TIMEOUT)
        except (OSError, httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, RuntimeError) as error:
            # httpx has no class of its own for a client that was closed in between.
            return self._unreachable(_words(error), HTTPStatus.SERVICE_UNAVAILABLE)

    async def _asked(self, call: BrokerCall, etag: str | None) -> Answer:
        try:
            return await self._sent(call, etag)
        except httpx.RemoteProtocolError:
            # Most likely an idle connection that a restarted broker no longer knows. Asking a
            # second time has no effect of its own: it is a GET, or it has a key.
            if call.route.method != "GET" and call.key is None:
                raise
            return await self._sent(call, etag)

    async def _sent(self, call: BrokerCall, etag: str | None) -> Answer:
        if self._socket is not None:
            await _knock(self._socket)
        client = self._clients[_Lane.of(call)]
        request = client.build_request(
            call.route.method,
            call.path,
            params=self._parameters(call),
            content=call.body,
            headers=_headers(call, etag),
            timeout=httpx.Timeout(call.wait_seconds + REPLY_SECONDS, connect=CONNECT_SECONDS),
        )
        answer = await client.send(request, stream=True)
        try:
            body = b"" if _is_packed(answer) else await self._read(answer)
        finally:
            await answer.aclose()
        if body is None:
            return self._not_a_broker(f"more than {LARGEST_ANSWER_BYTES} bytes")
        return await self._judged(call, answer, body, etag)

    @staticmethod
    def _parameters(call: BrokerCall) -> dict[str, str] | None:
        parameters = dict(call.parameters)
        if call.wait_seconds > 0:
            parameters["wait_seconds"] = f"{call.wait_seconds:.3f}"
        return parameters or None

    @staticmethod
    async def _read(answer: httpx.Response) -> bytes | None:
        """The whole body; None: it is too large."""
        content = bytearray()
        async for chunk in answer.aiter_bytes():
            content += chunk
            if len(content) > LARGEST_ANSWER_BYTES:
                return None
        return bytes(content)

    # --- what it means ---------------------------------------------------------------

    async def _judged(
        self, call: BrokerCall, answer: httpx.Response, body: bytes, etag: str | None
    ) -> Answer:
        if answer.status_code == HTTPStatus.NOT_MODIFIED:
            return self._unchanged(answer, etag)
        media = self._blank(answer.headers.get("content-type", "")).partition(";")[0].strip().lower()
        if answer.is_redirect:
            return self._not_a_broker(f"a redirect (status {answer.status_code}), which is not followed")
        if media not in (JSON, PROBLEM):
            if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                words = f"something in front of it answers with status {answer.status_code}"
                return self._unreachable(words, HTTPStatus.SERVICE_UNAVAILABLE)
            return self._not_a_broker(f"status {answer.status_code} with {media[:60] or 'nothing'!r}")
        if _is_packed(answer):
            return self._not_a_broker("a packed answer (Content-Encoding), which was not asked for")
        if answer.is_success:
            return await self._success(call.route, answer, body)
        return self._refusal(answer, body)

    def _unchanged(self, answer: httpx.Response, etag: str | None) -> Answer:
        if etag is None:
            return self._not_a_broker("status 304, though nothing is known of an earlier answer")
        if tag_in(answer.headers.get("etag", etag)) is None:
            return self._not_a_broker("status 304 with an ETag that is none")
        return not_modified(etag)

    async def _success(self, route: Route, answer: httpx.Response, body: bytes) -> Answer:
        if len(body) <= _CHECKED_AT_ONCE_BYTES:
            whole = _whole(route, body)
        else:
            whole = await asyncio.to_thread(_whole, route, body)
        if whole is None:
            words = f"the broker at {self._address} sends what this version of selfsched cannot read"
            return trouble(HTTPStatus.BAD_GATEWAY, OwnCode.OTHER_VERSION, f"{words}: {_VERSION_ADVICE}")
        etag = None
        if route.method == "GET":
            etag = tag_in(answer.headers.get("etag")) or tag_of(whole)
        return Answer(status=HTTPStatus.OK, body=whole, etag=etag)

    def _refusal(self, answer: httpx.Response, body: bytes) -> Answer:
        try:
            problem = parse(Problem, body)
        except InvalidMessage:
            return self._not_a_broker(f"status {answer.status_code} without a problem document")
        retry_after = answer.headers.get("retry-after", "")
        usable = retry_after.isascii() and retry_after.isdigit() and len(retry_after) <= _RETRY_AFTER_DIGITS
        return Answer(
            status=answer.status_code,
            body=problem.to_json().encode(),
            media=PROBLEM,
            retry_after=retry_after if usable else None,
        )

    def _unreachable(self, words: str, status: int) -> Answer:
        detail = f"no answer from the broker at {self._address}: {self._blank(words)}"
        return trouble(status, OwnCode.UNREACHABLE, detail, retry_after="2")

    def _not_a_broker(self, what: str) -> Answer:
        detail = f"what answers at {self._address} is no selfsched broker: it sent {what}"
        return trouble(HTTPStatus.BAD_GATEWAY, OwnCode.NOT_A_BROKER, f"{detail}; check SELFSCHED_BROKER")


_VERSION_ADVICE = "one of the two is older; install the same version of selfsched for both"


def _is_packed(answer: httpx.Response) -> bool:
    return answer.headers.get("content-encoding", _PLAIN).strip().lower() not in ("", _PLAIN)


def _headers(call: BrokerCall, etag: str | None) -> dict[str, str]:
    headers = {}
    if call.body is not None:
        headers["Content-Type"] = JSON
    if call.key is not None:
        headers["Idempotency-Key"] = call.key
    if etag is not None:
        headers["If-None-Match"] = etag
    return headers


def _whole(route: Route, body: bytes) -> bytes | None:
    """A body written anew, with the fields that its sender left to their defaults; None: it is none.

    The front end has no defaults of its own: what the protocol says may be left out is there.
    """
    adapter = _adapter(route)
    try:
        return adapter.dump_json(adapter.validate_json(body))
    except ValidationError:
        return None


@cache
def _adapter(route: Route) -> TypeAdapter[Any]:  # of a type that only the table knows
    return TypeAdapter(tuple[route.gives, ...] if route.many else route.gives)  # type: ignore[name-defined]


async def _knock(path: Path) -> None:
    """Find out whether anybody listens at a Unix socket.

    httpcore (1.0) leaves its own socket open when a connection to a path fails, one for each
    attempt while a broker is away.

    Raises:
        OSError: nobody does.
    """
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise OSError(f"{path} is no socket")
    async with asyncio.timeout(CONNECT_SECONDS):
        _, writer = await asyncio.open_unix_connection(str(path))
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _words(error: Exception) -> str:
    """What a foreign exception says; some say nothing but their name."""
    if isinstance(error, httpx.TimeoutException):
        return f"timed out ({type(error).__name__})"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error) or type(error).__name__
