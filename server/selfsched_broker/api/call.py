"""One request as handlers use it: who calls, what was sent, and the way to the service."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Literal, ParamSpec, TypeVar

from fastapi import Request, Response

from selfsched.protocol import Message, ProblemCode
from selfsched_broker.api.limits import Buckets, Budget
from selfsched_broker.api.polls import Polls
from selfsched_broker.api.problems import BadRequest
from selfsched_broker.api.strict_json import parse_body
from selfsched_broker.core.leases import Refusal
from selfsched_broker.desk import Desk
from selfsched_broker.hub_identity import Hub
from selfsched_broker.identity import Caller, HubUser, hub_token
from selfsched_broker.management import Management
from selfsched_broker.service import Known

M = TypeVar("M", bound=Message)
P = ParamSpec("P")
T = TypeVar("T")
_HUB_QUESTIONS = Budget(per_second=10)
"""A flood of tokens that nobody knows is not passed on to the Hub."""
_KEY = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_NUMBER = re.compile(r"\d{1,6}(\.\d{1,6})?")


@dataclass(frozen=True, kw_only=True)
class Backstage:
    """What all requests share."""

    desk: Desk
    management: Management
    polls: Polls
    workers: Executor
    longest_wait_seconds: float
    """No answer is held back for longer."""
    calls: Buckets = field(default_factory=lambda: Buckets(Budget(per_second=20)))
    """Of an account."""
    hub: HubDoor | None = None
    """Where users of a JupyterHub come in; None: there is no Hub."""
    heartbeats: Buckets = field(default_factory=lambda: Buckets(Budget(per_second=5)))
    """Of a job or a node."""


class HubDoor:
    """Asks a Hub, without holding up the event loop or the broker's other threads.

    Args:
        hub: the Hub.
        thread: one thread: the Hub is asked one thing at a time.
    """

    def __init__(self, hub: Hub, thread: Executor) -> None:
        self._hub = hub
        self._thread = thread
        self._questions = Buckets(_HUB_QUESTIONS)

    async def caller(self, token: str, backstage: Backstage) -> Caller:
        """Whose token it is.

        Raises:
            Refusal: nobody's, or that cannot be told.
        """
        loop = asyncio.get_running_loop()
        user: HubUser | None = self._hub.known(token)
        if user is None:
            if not self._hub.has_known(token):
                self._questions.take("")
            user = await loop.run_in_executor(self._thread, self._hub.ask, token)
        return await loop.run_in_executor(backstage.workers, backstage.desk.hub_caller, user)


class Call:
    """A request whose caller is known."""

    def __init__(self, request: Request, backstage: Backstage, caller: Caller) -> None:
        self.request = request
        self.backstage = backstage
        self.caller = caller

    @property
    def desk(self) -> Desk:
        return self.backstage.desk

    @property
    def management(self) -> Management:
        return self.backstage.management

    @property
    def polls(self) -> Polls:
        return self.backstage.polls

    async def read(self, kind: type[M]) -> M:
        """The message in the body.

        Raises:
            BadRequest, InvalidMessage: it is none.
        """
        return parse_body(kind, await self.request.body())

    async def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something that may wait for the service's lock, off the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.backstage.workers, lambda: work(*args, **kwargs))

    def key(self) -> str | None:
        """The idempotency key, if there is one.

        Raises:
            BadRequest: it is no usable key.
        """
        key = self.request.headers.get("idempotency-key")
        if key is not None and not _KEY.fullmatch(key):
            raise BadRequest(400, "Idempotency-Key: 1 to 128 of letters, digits, '.', '_', ':' and '-'")
        return key

    def needed_key(self) -> str:
        """The idempotency key.

        Raises:
            BadRequest: there is none.
        """
        key = self.key()
        if key is None:
            raise BadRequest(400, "this call needs an Idempotency-Key header")
        return key

    def number(self, name: str, default: float) -> float:
        """A number of the query string.

        Raises:
            BadRequest: it is none.
        """
        text = self.request.query_params.get(name)
        if text is None:
            return default
        if not _NUMBER.fullmatch(text):
            raise BadRequest(422, f"{name} must be a number from 0 to 999999")
        return float(text)

    def wait_seconds(self) -> float:
        """How long this request may wait for news."""
        return min(self.number("wait_seconds", 0.0), self.backstage.longest_wait_seconds)


def caller_for(budget: Literal["calls", "heartbeats"] = "calls") -> Callable[[Request], Any]:
    """A dependency: authenticate a request and take it from a budget."""

    async def call(request: Request) -> Call:
        backstage: Backstage = request.app.state.backstage
        caller = await _authenticate(request, backstage)
        if budget == "heartbeats":
            backstage.heartbeats.take(f"{caller.account} {request.url.path}")
        else:
            backstage.calls.take(caller.account)
        return Call(request, backstage, caller)

    return call


async def _authenticate(request: Request, backstage: Backstage) -> Caller:
    if "token" in request.query_params:
        raise BadRequest(400, "tokens do not belong into addresses: send Authorization: Bearer ...")
    uid: int | None = request.scope.get("state", {}).get("peer_uid")
    authorization = request.headers.get("authorization")
    if uid is None and backstage.hub is not None and (token := hub_token(authorization)) is not None:
        return await backstage.hub.caller(token, backstage)
    if uid is None:
        return backstage.desk.caller(uid=None, authorization=authorization)
    # Over a socket an account may be made now, which waits for the service.
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(
        backstage.workers, lambda: backstage.desk.caller(uid=uid, authorization=None)
    )


def reply(answer: Message | Known, status: int = 200) -> Response:
    """The answer of a call."""
    if isinstance(answer, Known):
        return Response(answer.body, answer.status, media_type="application/json")
    return Response(answer.to_json(), status, media_type="application/json")


def reply_list(answers: Sequence[Message]) -> Response:
    """The answer of a listing."""
    return Response(f"[{','.join(a.to_json() for a in answers)}]", media_type="application/json")


async def reply_when_new(
    call: Call, topic: str, look: Callable[[], M | Sequence[M]], still: Callable[[M], object]
) -> Response:
    """A view, or a list of them, with an ETag, held back while it is the one that the caller has.

    Args:
        call: its `If-None-Match` and `wait_seconds` count.
        topic: which changes may have made it new.
        look: makes the view.
        still: what of it is news when it changes (`without_clocks`).
    """
    seen = call.request.headers.get("if-none-match")
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + call.wait_seconds()
    while True:
        with call.polls.waiting(topic) as woken:
            view = await call.do(look)
            tag = _tag(still(view) if isinstance(view, Message) else [still(one) for one in view])
            if tag != seen:
                answer = reply(view) if isinstance(view, Message) else reply_list(view)
                answer.headers["ETag"] = tag
                return answer
            left = ends_at - loop.time()
            if left <= 0 or call.polls.closed or not await call.polls.wait(woken, left):
                return Response(status_code=304, headers={"ETag": tag})


def _tag(still: object) -> str:
    return f'"{hashlib.sha256(repr(still).encode()).hexdigest()[:32]}"'


def without_clocks(view: Message, clocks: frozenset[str]) -> Any:
    """A view as JSON without the fields, at any depth, that change by themselves and make nothing new."""
    return _without(view.model_dump(mode="json"), clocks)


def _without(value: Any, names: frozenset[str]) -> Any:  # JSON of any shape
    if isinstance(value, dict):
        return {k: _without(v, names) for k, v in value.items() if k not in names}
    if isinstance(value, list):
        return [_without(v, names) for v in value]
    return value


def not_found() -> Refusal:
    """What is said of everything that is not there."""
    return Refusal(ProblemCode.NOT_FOUND, "there is no such thing")
