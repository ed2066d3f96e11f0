"""Which calls are forwarded to the broker: a table, and nothing else.

The browser names a call by what stands behind `selfsched/api/broker/` in the address. It is
judged as it came over the wire, before anything is decoded: only letters, digits, dots,
colons, hyphens and the table's own slashes can match, so neither an encoded slash nor `..`
nor `//` ever reaches the address that the broker is asked by. That address is built from
the match. Parameters are taken from the table too, each at most once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import parse_qsl

from selfsched.errors import InvalidMessage
from selfsched.protocol import (
    Accepted,
    AccountView,
    AuctionView,
    ClusterView,
    ControlJob,
    EndJob,
    ForecastScore,
    JobView,
    Message,
    PolicyView,
    ProblemCode,
    ReleaseDevices,
    parse,
)
from selfsched_jupyter.answers import OwnCode

MOST_BODY_BYTES = 64 * 1024
LONGEST_WAIT_SECONDS = 20.0
"""A proxy between browser and server that cuts quiet connections does so after 30 s or more."""
_KEY = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_NUMBER = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_ID = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}"
_WAIT = "wait_seconds"
_M = TypeVar("_M", bound=Message)


class NotForwarded(Exception):
    """A call that is refused here; the broker does not hear of it."""

    def __init__(self, status: int, detail: str, code: str = OwnCode.NOT_FORWARDED) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Route:
    """One row of the table."""

    method: str
    path: str
    """Pattern of the whole path behind `/v1/`."""
    gives: type[Message]
    many: bool = False
    takes: type[Message] | None = None
    parameters: frozenset[str] = frozenset()
    hold_seconds: float = 0.0
    """The broker gives an ETag, and is asked to hold its answer back for so long while it is the one we
    have; 0: it never does. Progress alone wakes nobody: it is seen when this is over."""


TABLE: tuple[Route, ...] = (
    Route(
        method="GET", path="jobs", gives=JobView, many=True, parameters=frozenset({"ended"}), hold_seconds=5.0
    ),
    Route(method="GET", path=f"jobs/{_ID}", gives=JobView, hold_seconds=10.0),
    Route(method="GET", path="cluster", gives=ClusterView, hold_seconds=20.0),
    Route(method="GET", path="auctions", gives=AuctionView, many=True, parameters=frozenset({"last"})),
    Route(method="GET", path=r"auctions/[0-9]{1,15}", gives=AuctionView),
    Route(method="GET", path="policy", gives=PolicyView),
    Route(method="GET", path="accounts/me", gives=AccountView),
    Route(method="GET", path="accounts/me/forecasts", gives=ForecastScore, many=True),
    Route(method="POST", path=f"jobs/{_ID}/control", gives=Accepted, takes=ControlJob),
    Route(method="POST", path=f"jobs/{_ID}/end", gives=Accepted, takes=EndJob),
    Route(method="POST", path=f"leases/{_ID}/release", gives=Accepted, takes=ReleaseDevices),
)


@dataclass(frozen=True, kw_only=True)
class BrokerCall:
    """A call that may be made. Everything in it was checked."""

    route: Route
    path: str
    """Behind the broker's address, such as `/v1/jobs/job-1`."""
    parameters: tuple[tuple[str, str], ...] = ()
    """Without `wait_seconds`."""
    wait_seconds: float = 0.0
    body: str | None = None
    key: str | None = None
    """The idempotency key."""


def call_of(method: str, path: str, query: str, *, body: bytes = b"", key: str | None = None) -> BrokerCall:
    """The call of the broker that a request stands for.

    Args:
        method: of HTTP.
        path: what stands behind `broker/`, as it came.
        query: what stands behind `?`, as it came.
        body: of the request.
        key: its `Idempotency-Key`, if any.

    Raises:
        NotForwarded: it stands for none that is allowed.
    """
    route = _route(method, path)
    parameters = _parameters(route, query)
    wait = float(parameters.pop(_WAIT, "0"))
    if key is not None and not _KEY.fullmatch(key):
        raise _invalid("Idempotency-Key: 1 to 128 of letters, digits, '.', '_', ':' and '-'")
    return BrokerCall(
        route=route,
        path=f"/v1/{path}",
        parameters=tuple(sorted(parameters.items())),
        wait_seconds=min(wait, LONGEST_WAIT_SECONDS) if route.hold_seconds > 0 else 0.0,
        body=_message(route, body),
        key=key,
    )


def _route(method: str, path: str) -> Route:
    there = [route for route in TABLE if re.fullmatch(route.path, path)]
    if not there:
        raise NotForwarded(HTTPStatus.NOT_FOUND, "this is no call that a notebook may make of the broker")
    found = next((route for route in there if route.method == method), None)
    if found is None:
        raise NotForwarded(HTTPStatus.METHOD_NOT_ALLOWED, f"the broker is not asked this by {method}")
    return found


def _parameters(route: Route, query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=8)
    except ValueError:
        raise _invalid("the parameters behind '?' cannot be read") from None
    known = route.parameters | ({_WAIT} if route.method == "GET" else set())
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known or name in found:
            raise _invalid(f"of parameters this call knows, once each: {', '.join(sorted(known)) or 'none'}")
        if not _NUMBER.fullmatch(value):
            raise _invalid(f"{name} must be a number from 0 to 999999")
        found[name] = value
    return found


def _message(route: Route, body: bytes) -> str | None:
    if route.takes is None:
        if body:
            raise _invalid("this call has no body")
        return None
    return message_of(route.takes, body).to_json()


def message_of(kind: type[_M], body: bytes) -> _M:
    """What the browser sends.

    Raises:
        NotForwarded: it is too large, or no such message.
    """
    if len(body) > MOST_BODY_BYTES:
        words = f"at most {MOST_BODY_BYTES} bytes are read"
        raise NotForwarded(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, words, ProblemCode.TOO_LARGE)
    try:
        return parse(kind, body)
    except InvalidMessage as error:
        raise NotForwarded(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), ProblemCode.INVALID) from None


def _invalid(words: str) -> NotForwarded:
    return NotForwarded(HTTPStatus.BAD_REQUEST, words, ProblemCode.INVALID)
