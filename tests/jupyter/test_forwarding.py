"""The server extension on a real port, before a broker that behaves well, badly, or not at all."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from jupyter.jupyter_process import JupyterProcess, jupyter_process
from jupyter.odd_broker import Heard, OddBroker, Said, a_cluster, odd_broker, problem, well_behaved

pytestmark = pytest.mark.slow
TOKEN = "ss_0123456789ab_this-is-the-secret-of-the-broker-and-of-nobody"
WHAT_IF = {"hours": 1, "devices": [1, 2]}


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[OddBroker]:
    """Where a redirect would lead."""
    with odd_broker() as found:
        yield found


@pytest.fixture(scope="module")
def the_broker() -> Iterator[OddBroker]:
    with odd_broker() as found:
        yield found


@pytest.fixture(scope="module")
def jupyter(the_broker: OddBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterProcess]:
    environment = {"SELFSCHED_BROKER": the_broker.url, "SELFSCHED_TOKEN": TOKEN}
    with jupyter_process(tmp_path_factory.mktemp("home"), environment=environment) as found:
        yield found
        assert TOKEN not in found.log
        assert "Traceback" not in found.log


@pytest.fixture
def broker(the_broker: OddBroker) -> OddBroker:
    the_broker.reset()
    return the_broker


@pytest.fixture
def page(jupyter: JupyterProcess) -> Iterator[httpx.Client]:
    with jupyter.client() as found:
        yield found


def code(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    assert TOKEN not in answer.text + str(answer.headers)
    told = answer.json()
    assert told["status"] == answer.status_code
    return str(told["code"])


def test_hello_says_who_we_are_and_never_shows_the_token(page: httpx.Client, broker: OddBroker) -> None:
    answer = page.get("hello")
    assert answer.status_code == 200
    assert answer.json()["broker"] == {"url": broker.url, "kind": "set"}
    assert answer.json()["account"]["account"] == "ada"
    assert answer.json()["problem"] is None
    assert TOKEN not in answer.text + str(answer.headers)


def test_a_call_goes_to_the_broker_as_the_user_with_what_it_needs_and_nothing_else(
    page: httpx.Client, broker: OddBroker
) -> None:
    body = {"action": "set_devices", "min_devices": 1, "max_devices": 2}
    headers = {"Idempotency-Key": "k-1", "Cookie": "private=1", "X-Forwarded-For": "1.2.3.4"}
    answer = page.post("broker/jobs/job-1/control", json=body, headers=headers)
    assert (answer.status_code, answer.json()) == (200, {"detail": "done"})
    heard = broker.heard[-1]
    assert (heard.method, heard.path) == ("POST", "/v1/jobs/job-1/control")
    assert heard.headers["Authorization"] == f"Bearer {TOKEN}"
    assert heard.headers["Idempotency-Key"] == "k-1"
    assert not {"Cookie", "X-Forwarded-For"} & heard.headers.keys()
    assert json.loads(heard.body)["max_devices"] == 2


@pytest.mark.parametrize(
    "path",
    [
        "jobs/job-1/report", "admin/accounts", "jobs/", "jobs/..", "jobs/../cluster", "jobs/%2e%2e/cluster",
        "jobs/job-1%2fcontrol", "jobs/job-1%2Freport", "/jobs", "jobs//job-1", "jobs/job-1/", "openapi.json",
        "jobs/%00", "jobs/job%201", "cluster%3fx", "cluster;x", "../../healthz", "http://127.0.0.1/v1/jobs",
        "nodes/here/report", "hardware/cpu/prior", "cluster/..;/admin/accounts", "accounts/you", "JOBS",
    ],
)  # fmt: skip
def test_a_path_that_is_not_on_the_list_never_reaches_the_broker(
    jupyter: JupyterProcess, broker: OddBroker, path: str
) -> None:
    # Written to the socket as it is: a client library would tidy it up.
    raw = _raw_get(jupyter, f"/selfsched/api/broker/{path}")
    assert raw.startswith(b"HTTP/1.1 404")
    assert broker.heard == []


def _raw_get(jupyter: JupyterProcess, path: str) -> bytes:
    where = httpx.URL(jupyter.url)
    with socket.create_connection((where.host, where.port or 80), timeout=20) as connection:
        head = f"GET {path} HTTP/1.1\r\nHost: {where.host}:{where.port}\r\n"
        head += "Authorization: token of-jupyter-itself\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    "query",
    ["last=3", "ended=1&ended=0", "ended=yes", "wait_seconds=-1", "wait_seconds=١", "ended", "x=1", "a&b"],
)
def test_a_parameter_that_is_not_on_the_list_never_reaches_the_broker(
    page: httpx.Client, broker: OddBroker, query: str
) -> None:
    answer = page.get(f"broker/jobs?{query}")
    assert (answer.status_code, code(answer)) == (400, "invalid_message")
    assert broker.heard == []


def test_an_order_that_breaks_the_protocol_never_reaches_the_broker(
    page: httpx.Client, broker: OddBroker
) -> None:
    for body in (b"", b"{}", b'{"action":"explode"}', b'{"action":"stop","x":1}', b"[" * 40_000):
        answer = page.post("broker/jobs/job-1/control", content=body)
        assert (answer.status_code, code(answer)) == (422, "invalid_message")
    answer = page.post("what-if", content=b" " * 70_000)
    assert (answer.status_code, code(answer)) == (413, "body_too_large")
    answer = page.post(
        "broker/jobs/job-1/control", json={"action": "stop"}, headers={"Idempotency-Key": "a b"}
    )
    assert (answer.status_code, code(answer)) == (400, "invalid_message")
    assert broker.heard == []


def test_a_method_that_is_not_on_the_list_is_refused(page: httpx.Client, broker: OddBroker) -> None:
    calls = (("POST", "jobs"), ("PUT", "jobs/job-1"), ("DELETE", "jobs/job-1"), ("GET", "jobs/j/end"))
    for method, path in calls:
        answer = page.request(method, f"broker/{path}")
        assert (answer.status_code, code(answer)) == (405, "not_forwarded")
    assert broker.heard == []


# --- Jupyter's own rules ---------------------------------------------------------------------


def test_without_a_login_nothing_is_answered(jupyter: JupyterProcess, broker: OddBroker) -> None:
    with httpx.Client(base_url=jupyter.api, trust_env=False) as stranger:
        for path in ("hello", "broker/jobs", "runs", "runs/x/output"):
            answer = stranger.get(path)
            assert (answer.status_code, code(answer)) == (403, "jupyter_refused")
        answer = stranger.post("what-if", json=WHAT_IF)
        assert (answer.status_code, code(answer)) == (403, "jupyter_refused")
    assert broker.heard == []


def test_a_page_of_jupyter_may_ask_and_order(jupyter: JupyterProcess, broker: OddBroker) -> None:
    with jupyter.browser() as page:
        assert page.get("broker/cluster").status_code == 200
        headers = {"X-XSRFToken": page.cookies["_xsrf"]}
        assert page.post("what-if", json=WHAT_IF, headers=headers).status_code == 200
    assert broker.asked("/v1/forecast") == 1


def test_an_order_without_the_pages_xsrf_token_is_refused(jupyter: JupyterProcess, broker: OddBroker) -> None:
    with jupyter.browser() as page:
        for headers in ({}, {"X-XSRFToken": "guess"}):
            for path, body in (("broker/jobs/job-1/control", {"action": "stop"}), ("what-if", WHAT_IF)):
                answer = page.post(path, json=body, headers=headers)
                assert (answer.status_code, code(answer)) == (403, "jupyter_refused")
    assert broker.heard == []


@pytest.mark.parametrize("path", ["hello", "broker/jobs", "runs"])
def test_another_sites_page_learns_nothing(jupyter: JupyterProcess, broker: OddBroker, path: str) -> None:
    with jupyter.browser() as page:
        answer = page.get(path, headers={"Origin": "https://elsewhere.example"})
    assert (answer.status_code, code(answer)) == (404, "jupyter_refused")
    assert broker.heard == []


def test_a_panel_that_only_looks_keeps_no_idle_server_from_being_culled(
    jupyter: JupyterProcess, page: httpx.Client, broker: OddBroker
) -> None:
    def last_activity() -> str:
        return str(page.get(f"{jupyter.url}api/status").json()["last_activity"])

    before = last_activity()
    for path in ("hello", "broker/cluster", "runs", "runs/x/output"):
        page.get(path)
    assert last_activity() == before
    page.post("what-if", json=WHAT_IF)
    assert last_activity() > before


# --- a broker that says no, or behaves badly -------------------------------------------------


@pytest.mark.parametrize(
    ("said", "status", "expected"),
    [
        (problem(401, "not_authenticated", "a valid token is needed"), 401, "not_authenticated"),
        (problem(403, "forbidden"), 403, "forbidden"),
        (problem(404, "not_found"), 404, "not_found"),
        (problem(409, "conflict"), 409, "conflict"),
        (problem(410, "lease_lost"), 410, "lease_lost"),
        (problem(429, "overloaded", Retry_After="7"), 429, "overloaded"),
        (problem(500, "internal_error"), 500, "internal_error"),
        (problem(503, "unavailable", Retry_After="2"), 503, "unavailable"),
        (Said(200, b"<html>Please log in</html>", "text/html; charset=utf-8"), 502, "not_a_broker"),
        (Said(404, b"<html>nginx</html>", "text/html"), 502, "not_a_broker"),
        (Said(502, b"<html>Bad Gateway</html>", "text/html"), 503, "broker_unreachable"),
        (Said(404, b"{}"), 502, "not_a_broker"),
        (Said(200, b"not json"), 502, "other_version"),
        (Said(200, b'{"detail":"done","news":1}'), 502, "other_version"),
        (Said(200, b"\xff" * (16 * 1024 * 1024 + 1)), 502, "not_a_broker"),
        (Said(200, b'{"forecasts"', stated_bytes=4000), 503, "broker_unreachable"),
        (None, 503, "broker_unreachable"),
    ],
)  # fmt: skip
def test_whatever_the_broker_does_is_told_in_words(
    page: httpx.Client, broker: OddBroker, said: Said | None, status: int, expected: str
) -> None:
    broker.reset(lambda _: said)
    answer = page.post("what-if", json=WHAT_IF)
    assert (answer.status_code, code(answer)) == (status, expected)
    if expected in ("not_a_broker", "other_version", "broker_unreachable"):
        assert broker.url in answer.json()["detail"]
    passed = dict(said.headers).get("Retry-After") if said is not None else None
    assert passed is None or answer.headers["retry-after"] == passed


def test_a_question_without_a_key_is_put_once_even_if_the_connection_breaks(
    page: httpx.Client, broker: OddBroker
) -> None:
    broker.reset(lambda _: None)
    assert page.post("broker/jobs/job-1/control", json={"action": "stop"}).status_code == 503
    assert broker.asked("/v1/jobs/job-1/control") == 1


def test_a_redirect_is_never_followed(page: httpx.Client, broker: OddBroker, elsewhere: OddBroker) -> None:
    elsewhere.reset()
    for status in (301, 302, 303, 307, 308):
        target = (("Location", f"{elsewhere.url}/v1/forecast"),)
        broker.reset(lambda _, status=status, target=target: Said(status, b"{}", headers=target))  # type: ignore[misc]
        answer = page.post("what-if", json=WHAT_IF)
        assert (answer.status_code, code(answer)) == (502, "not_a_broker")
        assert "location" not in answer.headers
    assert elsewhere.heard == []


def test_a_broker_that_is_away_is_said_so_and_asked_again_when_it_is_back(
    page: httpx.Client, broker: OddBroker, jupyter: JupyterProcess
) -> None:
    before = jupyter.log.count(f"the broker at {broker.url} does not answer")
    assert page.get("broker/auctions?last=1").status_code == 200
    broker.stop()
    try:
        answer = page.get("broker/auctions?last=2")
        assert (answer.status_code, code(answer)) == (503, "broker_unreachable")
        hello = page.get("hello").json()
        assert hello["problem"]["code"] == "broker_unreachable"
        assert hello["broker"]["url"] == broker.url
        for _ in range(5):
            page.post("what-if", json=WHAT_IF)
    finally:
        broker.start()
    assert page.get("broker/auctions?last=3").status_code == 200
    assert jupyter.log.count(f"the broker at {broker.url} does not answer") == before + 1
    assert " 503 " not in jupyter.log


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


# --- many panels -----------------------------------------------------------------------------


def test_fifty_panels_cost_the_broker_one_poll(jupyter: JupyterProcess, broker: OddBroker) -> None:
    release = threading.Event()

    def hold(heard: Heard) -> Said:
        if heard.headers.get("If-None-Match") != '"c1"':
            return well_behaved(heard)
        release.wait(20)
        return Said(body=a_cluster(waiting_jobs=1).to_json().encode(), headers=(("ETag", '"c2"'),))

    broker.reset(hold)

    async def panels() -> list[httpx.Response]:
        async with jupyter.async_client() as client:
            first = await client.get("broker/cluster")
            headers = {"If-None-Match": first.headers["etag"]}
            waiting = [
                asyncio.ensure_future(client.get("broker/cluster?wait_seconds=15", headers=headers))
                for _ in range(50)
            ]
            await until(lambda: broker.polled() > 0)
            # Each of them is at the server when a later request of the same client is answered.
            assert (await client.get("runs")).status_code == 200
            release.set()
            return list(await asyncio.gather(*waiting))

    answers = asyncio.run(panels())
    assert [answer.status_code for answer in answers] == [200] * 50
    assert {answer.headers["etag"] for answer in answers} == {'"c2"'}
    assert broker.asked("/v1/cluster") <= 4


def test_a_tag_is_known_again_even_if_a_proxy_has_made_it_weak(page: httpx.Client, broker: OddBroker) -> None:
    tag = page.get("broker/cluster").headers["etag"]
    for sent in (tag, f"W/{tag}"):
        answer = page.get("broker/cluster", headers={"If-None-Match": sent})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)


@pytest.mark.parametrize("sent", [b"*", b"x", b'"a", "b"', b'"\xe4"', b'""', b'"' + b"x" * 500 + b'"'])
def test_a_tag_that_is_none_of_ours_is_no_tag(page: httpx.Client, broker: OddBroker, sent: bytes) -> None:
    answer = page.get("broker/cluster?wait_seconds=20", headers={b"If-None-Match": sent})
    assert answer.status_code == 200
    assert broker.polled() == 0


def test_after_an_order_everybody_is_shown_what_came_of_it(page: httpx.Client, broker: OddBroker) -> None:
    numbers = iter(range(100))

    def count(heard: Heard) -> Said:
        if heard.method == "POST":
            return well_behaved(heard)
        return Said(body=a_cluster(waiting_jobs=next(numbers)).to_json().encode())

    broker.reset(count)
    page.post("broker/jobs/job-1/control", json={"action": "pause"}, headers={"Idempotency-Key": "a"})
    before = page.get("broker/cluster").json()["waiting_jobs"]
    page.post("broker/jobs/job-1/control", json={"action": "resume"}, headers={"Idempotency-Key": "b"})
    assert page.get("broker/cluster").json()["waiting_jobs"] > before


def test_a_poll_that_nobody_waits_for_any_more_is_given_up(
    jupyter: JupyterProcess, broker: OddBroker
) -> None:
    given_up, too_late = threading.Event(), threading.Event()

    def hold(heard: Heard) -> Said | None:
        while not heard.is_cut() and not too_late.wait(0.01):
            pass
        if heard.is_cut():
            given_up.set()
        return None

    broker.reset(hold)

    async def leave() -> None:
        async with jupyter.async_client() as client:
            asked = client.get("broker/jobs?ended=1&wait_seconds=15", headers={"If-None-Match": '"j1"'})
            waiting = asyncio.ensure_future(asked)
            await until(lambda: broker.polled() > 0)
            waiting.cancel()
        await until(given_up.is_set)

    try:
        asyncio.run(leave())
    finally:
        too_late.set()
    assert broker.polled() == 1


def test_an_unknown_address_and_a_mistyped_run_are_worded(page: httpx.Client, tmp_path: Path) -> None:
    assert code(page.get("nothing")) == "not_forwarded"
    answer = page.get("runs/no-such-run/output")
    assert (answer.status_code, code(answer)) == (404, "no_such_run")
    assert code(page.get("runs/x/output?from=-1")) == "not_forwarded"


def test_who_may_only_look_is_told_so_and_can_order_nothing(broker: OddBroker, tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    environment = {"SELFSCHED_BROKER": broker.url, "PYTHONPATH": str(tests)}
    options = ("--ServerApp.authorizer_class=jupyter.viewer.OnlyLooking",)
    with (
        jupyter_process(tmp_path, environment=environment, options=options) as server,
        server.client() as page,
    ):
        assert page.get("broker/cluster").status_code == 200
        for path, body in (("broker/jobs/job-1/control", {"action": "stop"}), ("what-if", WHAT_IF)):
            answer = page.post(path, json=body)
            assert (answer.status_code, code(answer)) == (403, "no_right")
    assert broker.asked("/v1/jobs/job-1/control") + broker.asked("/v1/forecast") == 0


def test_a_token_that_was_renewed_counts_without_a_restart(broker: OddBroker, tmp_path: Path) -> None:
    def strict(heard: Heard) -> Said:
        if heard.headers.get("Authorization") != f"Bearer {TOKEN}":
            return problem(401, "not_authenticated", "a valid token is needed")
        return well_behaved(heard)

    broker.reset(strict)
    token_file = tmp_path / "token"
    token_file.touch(mode=0o600)
    token_file.write_text("ss_one-that-was-revoked")
    environment = {"SELFSCHED_BROKER": broker.url, "SELFSCHED_TOKEN_FILE": str(token_file)}
    with jupyter_process(tmp_path, environment=environment) as server, server.client() as page:
        hello = page.get("hello").json()
        assert (hello["account"], hello["problem"]["code"]) == (None, "not_authenticated")
        token_file.write_text(TOKEN)
        give_up_at = time.monotonic() + 20
        while page.get("hello").json()["problem"] is not None and time.monotonic() < give_up_at:
            time.sleep(0.1)
        assert page.get("hello").json()["account"]["account"] == "ada"
        assert TOKEN not in server.log
