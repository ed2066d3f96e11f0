"""The client of a broker: one method for each call of the protocol, over HTTP.

The only module that knows HTTP. Whatever goes wrong underneath (no connection, a time-out, a
redirect, HTML from something else that listens there, half an answer, a number that is none)
comes out as an error of `selfsched.errors`:

- `BrokerUnreachable`: nobody answered, or what answered is no broker of ours, or it is
  overloaded. Ask again later. A call that changes something may or may not have had its
  effect: ask again *with the same key*.
- `LeaseLost`, `NotAllowed`, `Refused` (an impossible wish), `InvalidMessage`: the broker's no.
- `BrokerError` with the problem's `code`: any other no.

It never follows a redirect, never asks a proxy, and bounds what it reads and how long. The
client may be used by several threads at once.
"""

from __future__ import annotations

import socket
import stat
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from selfsched.errors import (
    BrokerError,
    BrokerUnreachable,
    InvalidMessage,
    LeaseLost,
    NotAllowed,
    Refused,
)
from selfsched.protocol import (
    Accepted,
    AccountView,
    AuctionView,
    ClusterView,
    ControlJob,
    EndJob,
    ForecastScore,
    HardwarePrior,
    Instructions,
    JobRegistered,
    JobReport,
    JobView,
    Message,
    Problem,
    ProblemCode,
    RegisterJob,
    ReleaseDevices,
    WhatIf,
    WhatIfAnswer,
    parse,
)
from selfsched.settings import BrokerAddress

CONNECT_SECONDS = 2.0
REPLY_SECONDS = 4.0
"""Longest wait for an answer that is not held back on purpose; less than a lease's margin."""
LARGEST_ANSWER_BYTES = 32 * 1024 * 1024
NO_BROKER = "no_broker"
"""`code` of a BrokerUnreachable where something else than a broker answered."""
_JSON = ("application/json", "application/problem+json")
M = TypeVar("M", bound=Message)


class BrokerClient:
    """Calls of one broker.

    Args:
        address: where it listens.
        token: who we are, over TCP; a Unix socket needs none.
        verify: certificates for https: True, or an `ssl.SSLContext`.
        transport: stands in for the network in tests.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        token: str | None = None,
        verify: Any = True,  # httpx's own union: bool or ssl.SSLContext
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.address = address
        headers = {"Accept": "application/json"}
        if token is not None and address.uses_tokens:
            headers["Authorization"] = f"Bearer {token}"
        self._socket = address.socket if transport is None else None
        if transport is None:
            uds = str(address.socket) if address.socket is not None else None
            transport = httpx.HTTPTransport(uds=uds, verify=verify, trust_env=False)
        self._http = httpx.Client(
            base_url=address.url,
            transport=transport,
            headers=headers,
            trust_env=False,
            follow_redirects=False,
        )

    def __repr__(self) -> str:
        return f"BrokerClient({self.address})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Calls under way in other threads fail as unreachable."""
        self._http.close()

    # --- the job ---------------------------------------------------------------------

    def register(self, job: RegisterJob, *, key: str) -> JobRegistered:
        """`POST /v1/jobs`. With the same key the same job comes back."""
        return self._post("/v1/jobs", job, JobRegistered, key=key)

    def report(self, job: str, report: JobReport) -> Instructions:
        """`POST /v1/jobs/{id}/report`, held back by the broker for at most `wait_seconds`."""
        path = f"/v1/jobs/{_segment(job)}/report"
        return self._post(path, report, Instructions, wait_seconds=report.wait_seconds)

    def release(self, lease: str, release: ReleaseDevices, *, key: str) -> Accepted:
        """`POST /v1/leases/{id}/release`."""
        return self._post(f"/v1/leases/{_segment(lease)}/release", release, Accepted, key=key)

    def end(self, job: str, end: EndJob, *, key: str) -> Accepted:
        """`POST /v1/jobs/{id}/end`."""
        return self._post(f"/v1/jobs/{_segment(job)}/end", end, Accepted, key=key)

    def hardware_prior(self, hardware: str, *, job: str | None = None) -> HardwarePrior:
        """`GET /v1/hardware/{name}/prior`; for one of our jobs, without that job's own evidence."""
        asking = f"?job={_segment(job)}" if job is not None else ""
        return self._get(f"/v1/hardware/{_segment(hardware)}/prior{asking}", HardwarePrior)

    # --- people ----------------------------------------------------------------------

    def jobs(self) -> tuple[JobView, ...]:
        """`GET /v1/jobs`: one's own, or all for an administrator."""
        return self._list("/v1/jobs", JobView)

    def job(self, job: str) -> JobView:
        """`GET /v1/jobs/{id}`."""
        return self._get(f"/v1/jobs/{_segment(job)}", JobView)

    def cluster(self) -> ClusterView:
        """`GET /v1/cluster`."""
        return self._get("/v1/cluster", ClusterView)

    def auction(self, number: int) -> AuctionView:
        """`GET /v1/auctions/{n}`."""
        return self._get(f"/v1/auctions/{number}", AuctionView)

    def what_if(self, question: WhatIf) -> WhatIfAnswer:
        """`POST /v1/forecast`."""
        return self._post("/v1/forecast", question, WhatIfAnswer)

    def control(self, job: str, control: ControlJob, *, key: str) -> Accepted:
        """`POST /v1/jobs/{id}/control`."""
        return self._post(f"/v1/jobs/{_segment(job)}/control", control, Accepted, key=key)

    def account(self) -> AccountView:
        """`GET /v1/accounts/me`."""
        return self._get("/v1/accounts/me", AccountView)

    def my_forecasts(self) -> tuple[ForecastScore, ...]:
        """`GET /v1/accounts/me/forecasts`: past ones and what came."""
        return self._list("/v1/accounts/me/forecasts", ForecastScore)

    # --- the wire --------------------------------------------------------------------

    def _get(self, path: str, kind: type[M]) -> M:
        return self._parsed(self._call("GET", path), kind)

    def _list(self, path: str, kind: type[M]) -> tuple[M, ...]:
        body = self._call("GET", path)
        try:
            return tuple(TypeAdapter(list[kind]).validate_json(body))  # type: ignore[valid-type]
        except ValidationError:
            raise self._no_broker(f"an unexpected answer to {path}") from None

    def _post(
        self, path: str, message: Message, kind: type[M], *, key: str | None = None, wait_seconds: float = 0.0
    ) -> M:
        body = self._call("POST", path, message.to_json(), key=key, wait_seconds=wait_seconds)
        return self._parsed(body, kind)

    def _parsed(self, body: bytes, kind: type[M]) -> M:
        try:
            return parse(kind, body)
        except InvalidMessage as error:
            raise self._no_broker(f"a body that is no {error}") from None

    def _call(
        self,
        method: str,
        path: str,
        body: str | None = None,
        *,
        key: str | None = None,
        wait_seconds: float = 0.0,
    ) -> bytes:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if key is not None:
            headers["Idempotency-Key"] = key
        reply_seconds = wait_seconds + REPLY_SECONDS
        timeout = httpx.Timeout(reply_seconds, connect=CONNECT_SECONDS)
        give_up_at = time.monotonic() + reply_seconds + CONNECT_SECONDS
        if self._socket is not None:
            _knock(self._socket)
        try:
            with self._http.stream(method, path, content=body, headers=headers, timeout=timeout) as answer:
                content = self._read(answer, give_up_at)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            words = f"no answer from the broker at {self.address}: {_words(error)}"
            raise BrokerUnreachable(words) from error
        except RuntimeError as error:
            # httpx has no class of its own for a client that was closed in between.
            raise BrokerUnreachable(f"the connection to {self.address} was closed: {error}") from error
        return self._judged(answer, content)

    def _read(self, answer: httpx.Response, give_up_at: float) -> bytes:
        """The whole body; the read time-out alone would let a trickle go on for ever."""
        content = bytearray()
        for chunk in answer.iter_bytes():
            content += chunk
            if len(content) > LARGEST_ANSWER_BYTES:
                raise self._no_broker(f"more than {LARGEST_ANSWER_BYTES} bytes")
            if time.monotonic() > give_up_at:
                raise BrokerUnreachable(f"the broker at {self.address} answers too slowly")
        return bytes(content)

    def _judged(self, answer: httpx.Response, content: bytes) -> bytes:
        """The body of a success.

        Raises:
            SelfschedError: what the answer says otherwise.
        """
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if answer.status_code >= 500 and kind not in _JSON:
            # Most likely of a proxy in front of a broker that is away.
            raise BrokerUnreachable(f"the broker at {self.address} is away: status {answer.status_code}")
        if answer.is_redirect or kind not in _JSON:
            raise self._no_broker(f"status {answer.status_code} with {kind or 'nothing'!r}")
        if answer.is_success:
            return content
        try:
            problem = parse(Problem, content)
        except InvalidMessage:
            raise self._no_broker(f"status {answer.status_code} without a problem document") from None
        raise error_of(problem, self.address)

    def _no_broker(self, what: str) -> BrokerUnreachable:
        return BrokerUnreachable(
            f"what answers at {self.address} is no selfsched broker of this version: it sent {what}; "
            "check SELFSCHED_BROKER",
            code=NO_BROKER,
        )


def error_of(problem: Problem, address: BrokerAddress) -> Exception:
    """The error that a problem document means to a caller."""
    words = problem.detail or problem.title
    known: dict[str, type[BrokerError]] = {
        ProblemCode.LEASE_LOST: LeaseLost,
        ProblemCode.NOT_AUTHENTICATED: NotAllowed,
        ProblemCode.FORBIDDEN: NotAllowed,
        ProblemCode.OVERLOADED: BrokerUnreachable,
        ProblemCode.UNAVAILABLE: BrokerUnreachable,
    }
    if problem.code == ProblemCode.IMPOSSIBLE:
        return Refused(words)
    if problem.code == ProblemCode.INVALID:
        return InvalidMessage(words)
    if problem.code == ProblemCode.NOT_AUTHENTICATED and address.uses_tokens:
        words = f"{words} (the broker is {address}; its token comes from SELFSCHED_TOKEN_FILE)"
    # A mistake of the broker's own is a broker that is away: what was asked is not decided.
    default = BrokerUnreachable if problem.status >= 500 else BrokerError
    return known.get(problem.code, default)(words, code=problem.code, status=problem.status)


def _knock(path: Path) -> None:
    """Find out whether anybody listens at a Unix socket.

    httpcore (1.0) leaves its own socket open when a connection to a path fails, one for each
    retry against a broker that is away.

    Raises:
        BrokerUnreachable: nobody does; with the code `no_broker` where nobody ever will,
            because the path is of something else than a socket.
    """
    with suppress(OSError):  # not there, or not ours to see: connecting says it better
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise BrokerUnreachable(f"{path} is no socket: check SELFSCHED_BROKER", code=NO_BROKER)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knocking:
        knocking.settimeout(CONNECT_SECONDS)
        try:
            knocking.connect(str(path))
        except OSError as error:
            raise BrokerUnreachable(f"no broker listens at {path}: {error.strerror or error}") from error


def _segment(identifier: str) -> str:
    return quote(identifier, safe="")


def _words(error: Exception) -> str:
    """What a foreign exception says; some say nothing but their name."""
    if isinstance(error, httpx.TimeoutException):
        return f"timed out ({type(error).__name__})"
    return str(error) or type(error).__name__
