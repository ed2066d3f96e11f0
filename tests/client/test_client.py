"""The client: every wrong answer becomes an error of ours. The transport is replaced, nothing else."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from selfsched.client import NO_BROKER, BrokerClient
from selfsched.errors import (
    BrokerError,
    BrokerUnreachable,
    InvalidMessage,
    LeaseLost,
    NotAllowed,
    Refused,
)
from selfsched.protocol import (
    ControlJob,
    EndJob,
    Instructions,
    JobReport,
    JobState,
    Outcome,
    RegisterJob,
    ReleaseDevices,
    WhatIf,
)
from selfsched.settings import parse_address

ADDRESS = parse_address("http://broker.test:1")
INSTRUCTIONS = Instructions(job="job-1", incarnation=1, version=3, state=JobState.WAITING)
NOT_A_NUMBER = INSTRUCTIONS.to_json().replace('"next_report_seconds":10.0', '"next_report_seconds":NaN')
JSON = {"content-type": "application/json"}
REPORT = JobReport(incarnation=1, sequence=1, state=JobState.WAITING)


def client(handler: Callable[[httpx.Request], httpx.Response], *, token: str | None = None) -> BrokerClient:
    return BrokerClient(ADDRESS, token=token, transport=httpx.MockTransport(handler))


def answering(
    content: bytes | str, *, status: int = 200, kind: str = "application/json", **headers: str
) -> BrokerClient:
    return client(
        lambda request: httpx.Response(status, content=content, headers={"content-type": kind, **headers})
    )


def problem(code: str, status: int) -> BrokerClient:
    body = json.dumps({"status": status, "code": code, "title": "No", "detail": "because"})
    return answering(body, status=status, kind="application/problem+json")


def test_a_report_goes_to_its_job_and_brings_the_instructions() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(
            200, content=INSTRUCTIONS.to_json(), headers={"content-type": "application/json; charset=utf-8"}
        )

    assert client(handler, token="t0ken").report("job-1", REPORT) == INSTRUCTIONS
    (request,) = seen
    assert (request.method, request.url.path) == ("POST", "/v1/jobs/job-1/report")
    assert request.headers["authorization"] == "Bearer t0ken"
    assert json.loads(request.content)["sequence"] == 1


def test_calls_that_change_something_carry_their_key() -> None:
    seen: list[tuple[str, str]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.path, request.headers["idempotency-key"]))
        body = (
            json.dumps({"job": "job-1", "instructions": json.loads(INSTRUCTIONS.to_json())})
            if request.url.path == "/v1/jobs"
            else "{}"
        )
        return httpx.Response(200, content=body, headers={"content-type": "application/json"})

    broker = client(handler)
    broker.register(RegisterJob(name="a"), key="k1")
    broker.release("lease-1", ReleaseDevices(fence=1, devices=("d",)), key="k2")
    broker.end("job-1", EndJob(outcome=Outcome.FINISHED), key="k3")
    assert seen == [
        ("/v1/jobs", "k1"), ("/v1/leases/lease-1/release", "k2"), ("/v1/jobs/job-1/end", "k3")
    ]  # fmt: skip


def test_an_identifier_cannot_lead_to_another_path() -> None:
    seen: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path)
        return httpx.Response(404, content="{}", headers={"content-type": "application/json"})

    with pytest.raises(BrokerUnreachable):
        client(handler).job("../admin/accounts?x")
    assert seen == [b"/v1/jobs/..%2Fadmin%2Faccounts%3Fx"]


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("lease_lost", 410, LeaseLost),
        ("not_authenticated", 401, NotAllowed),
        ("forbidden", 403, NotAllowed),
        ("overloaded", 429, BrokerUnreachable),
        ("unavailable", 503, BrokerUnreachable),
        ("impossible_request", 422, Refused),
        ("invalid_message", 422, InvalidMessage),
        ("job_ended", 409, BrokerError),
        ("not_found", 404, BrokerError),
        ("something_new", 400, BrokerError),
        ("internal_error", 500, BrokerUnreachable),
    ],
)
def test_a_problem_becomes_the_error_that_a_caller_acts_on(
    code: str, status: int, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="because") as caught:
        problem(code, status).report("job-1", REPORT)
    assert type(caught.value) is kind
    if isinstance(caught.value, BrokerError):
        assert (caught.value.code, caught.value.status) == (code, status)


@pytest.mark.parametrize(
    ("content", "status", "kind"),
    [
        ("<html>It works!</html>", 200, "text/html"),
        ("<html>It works!</html>", 200, "application/json"),
        ("<html>502</html>", 502, "text/html"),
        ('{"detail": "Not Found"}', 404, "application/json"),
        ("", 200, "application/json"),
        ("", 204, ""),
        (INSTRUCTIONS.to_json()[:-9], 200, "application/json"),
        ("null", 200, "application/json"),
        ("[]", 200, "application/json"),
        (NOT_A_NUMBER, 200, "application/json"),
        (INSTRUCTIONS.to_json().replace('"version":3', '"version":-3'), 200, "application/json"),
        (INSTRUCTIONS.to_json().replace('"version":3', '"version":"3"'), 200, "application/json"),
        (b"\xff\xfe\x00", 200, "application/json"),
    ],
)  # fmt: skip
def test_what_is_no_broker_is_told_apart(content: bytes | str, status: int, kind: str) -> None:
    with pytest.raises(BrokerUnreachable):
        answering(content, status=status, kind=kind).report("job-1", REPORT)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_never_followed(status: int) -> None:
    calls: list[httpx.URL] = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request.url)
        return httpx.Response(status, headers={"location": "http://evil.test/"} | JSON)

    with pytest.raises(BrokerUnreachable, match="no selfsched broker"):
        client(handler, token="t").report("job-1", REPORT)
    assert len(calls) == 1


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("refused"), httpx.ConnectTimeout(""), httpx.ReadTimeout(""), httpx.ReadError(""),
        httpx.RemoteProtocolError("half"), httpx.DecodingError("gzip"), httpx.PoolTimeout(""),
        httpx.InvalidURL("x"), RuntimeError("client has been closed"),
    ],
)  # fmt: skip
def test_every_failure_of_the_network_is_unreachable(error: Exception) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(BrokerUnreachable, match=r"broker\.test"):
        client(handler).report("job-1", REPORT)


def test_an_endless_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfsched.client.LARGEST_ANSWER_BYTES", 1000)
    with pytest.raises(BrokerUnreachable, match="more than 1000 bytes"):
        answering(b" " * 2000).report("job-1", REPORT)


def test_the_wait_of_a_long_poll_is_part_of_its_time_out() -> None:
    timeouts: list[float] = []

    def handler(request: httpx.Request) -> httpx.Response:
        timeouts.append(request.extensions["timeout"]["read"])
        return httpx.Response(200, content=INSTRUCTIONS.to_json(), headers=JSON)

    broker = client(handler)
    broker.report("job-1", REPORT)
    broker.report("job-1", REPORT.model_copy(update={"wait_seconds": 10.0}))
    assert timeouts[1] - timeouts[0] == 10.0
    assert timeouts[0] < 5.0  # the margin of a lease


def test_a_token_is_not_sent_over_a_socket_and_never_shown() -> None:
    seen: list[httpx.Headers] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers)
        return httpx.Response(200, content="[]", headers={"content-type": "application/json"})

    broker = BrokerClient(
        parse_address("unix:/run/x.sock"), token="s3cret", transport=httpx.MockTransport(handler)
    )
    assert broker.jobs() == ()
    assert "authorization" not in seen[0]
    assert "s3cret" not in repr(broker)


def test_each_view_asks_its_own_path() -> None:
    seen: list[tuple[str, str]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, request.url.path))
        return httpx.Response(200, content="{]", headers=JSON)

    broker = client(handler)
    calls: list[Callable[[], object]] = [
        broker.jobs, lambda: broker.job("job-1"), broker.cluster, lambda: broker.auction(7),
        lambda: broker.what_if(WhatIf()), broker.my_forecasts, lambda: broker.hardware_prior("H100"),
        lambda: broker.control("job-1", ControlJob(action="pause"), key="k"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(BrokerUnreachable):
            call()
    assert seen == [
        ("GET", "/v1/jobs"), ("GET", "/v1/jobs/job-1"), ("GET", "/v1/cluster"), ("GET", "/v1/auctions/7"),
        ("POST", "/v1/forecast"), ("GET", "/v1/accounts/me/forecasts"), ("GET", "/v1/hardware/H100/prior"),
        ("POST", "/v1/jobs/job-1/control"),
    ]  # fmt: skip


def test_an_answer_that_trickles_is_cut_by_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfsched.client.REPLY_SECONDS", -10.0)  # over before the first byte
    with pytest.raises(BrokerUnreachable, match="too slowly"):
        answering("[]").jobs()


def test_a_list_of_something_else_is_no_broker() -> None:
    with pytest.raises(BrokerUnreachable):
        answering('[{"job": 1}]').jobs()


def test_nobody_at_the_address_is_unreachable(tmp_path: Path) -> None:
    with BrokerClient(parse_address(f"unix:{tmp_path}/absent.sock")) as broker:
        with pytest.raises(BrokerUnreachable, match="no broker listens"):
            broker.cluster()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left_behind:
            left_behind.bind(f"{tmp_path}/absent.sock")
        with pytest.raises(BrokerUnreachable, match="no broker listens") as nobody:
            broker.cluster()
        assert nobody.value.code != NO_BROKER, "one may come back"


def test_at_a_plain_file_there_will_never_be_a_broker(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with BrokerClient(parse_address(f"unix:{tmp_path}/notes.txt")) as broker:
        with pytest.raises(BrokerUnreachable, match="is no socket: check SELFSCHED_BROKER") as nobody:
            broker.cluster()
        assert nobody.value.code == NO_BROKER
