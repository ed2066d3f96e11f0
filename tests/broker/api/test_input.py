"""Bad input: a problem document, nothing stored, nothing repeated, on every route that reads a body."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from broker.live_broker import LiveBroker, live_broker, register

from selfsched.protocol import Problem

MARK = "zq7echo"
UNBOUNDED = {"calls_per_second": 1e5, "reports_per_second": 1e5}
ROUTES = (
    ("POST", "/v1/jobs"),
    ("POST", "/v1/jobs/{job}/report"),
    ("POST", "/v1/jobs/{job}/end"),
    ("POST", "/v1/jobs/{job}/control"),
    ("POST", "/v1/leases/{lease}/release"),
    ("POST", "/v1/forecast"),
    ("POST", "/v1/nodes/here/report"),
    ("PUT", "/v1/admin/accounts/new"),
    ("POST", "/v1/admin/accounts/new/tokens"),
)
GOOD: dict[str, dict[str, Any]] = {
    "/v1/jobs": {"name": "x", "min_devices": 1, "max_devices": 1, "priority": 1.0},
    "/v1/jobs/{job}/report": {"incarnation": 1, "sequence": 9, "state": "waiting", "notice_seconds": 1.0},
    "/v1/jobs/{job}/end": {"outcome": "finished"},
    "/v1/jobs/{job}/control": {"action": "set_priority", "priority": 2.0},
    "/v1/leases/{lease}/release": {"fence": 1, "devices": ["here/cpu0"]},
    "/v1/forecast": {"devices": [1]},
    "/v1/nodes/here/report": {"incarnation": 9, "sequence": 1, "devices": []},
    "/v1/admin/accounts/new": {"weight": 2.0},
    "/v1/admin/accounts/new/tokens": {"node": "n1"},
}
NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-1", "1e308", "9223372036854775808", "1" * 5000,
           '"1"', '"NaN"', "true", "null", "[1]", "{}")  # fmt: skip
NAMES = (
    "a\u0000b",
    "a\u001b[31mb",
    f"<script>{MARK}</script>",
    "a\nb",
    "a b",
    "",
    "a" * 65,
    "../x",
    "\u202ex",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with live_broker(tmp_path_factory.mktemp("b") / "state", **UNBOUNDED) as live:
        yield live


@pytest.fixture(scope="module")
def job(broker: LiveBroker) -> str:
    return register(broker.admin)


def send(broker: LiveBroker, route: tuple[str, str], job: str, body: bytes) -> httpx.Response:
    method, path = route
    headers = {"Idempotency-Key": uuid.uuid4().hex, "Content-Type": "application/json"}
    return broker.admin.request(method, path.format(job=job, lease="lease-1"), content=body, headers=headers)


def assert_refused(answer: httpx.Response) -> None:
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.status_code not in (401, 403, 429), "refused for another reason"
    assert answer.headers["content-type"] == "application/problem+json"
    assert Problem.model_validate_json(answer.content).status == answer.status_code
    assert MARK not in answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"


def stored(broker: LiveBroker) -> tuple[Any, ...]:
    """What a request could have left behind."""
    books = broker.books
    jobs = {job.id: (job.live, job.order, job.priority, job.bid) for job in books.jobs.values()}
    return jobs, set(books.accounts), set(books.tokens), set(books.answers), books.nodes["here"].incarnation


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: r[1])
def test_a_body_that_is_no_plain_json_is_refused_everywhere(
    broker: LiveBroker, job: str, route: tuple[str, str]
) -> None:
    before = stored(broker)
    good = json.dumps(GOOD[route[1]])
    bodies = [
        b"", b"[", b"null", b"[]", b'"' + MARK.encode() + b'"', b"\xff\xfe{}", b"[" * 50_000,
        b'{"a":' * 5_000, good[:-1].encode(), (good[:-1] + f', "{MARK}<b>": 1}}').encode(),
        good[:-1].encode() + b', "x": 1, "x": 2}', (good[:-1] + ', "x": "\\u0000"}').encode(),
        (good[:-1] + f', "x": NaN, "y": "{MARK}"}}').encode(), good.encode("utf-16"),
    ]  # fmt: skip
    for body in bodies:
        assert_refused(send(broker, route, job, body))
    assert stored(broker) == before


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: r[1])
def test_a_key_that_stands_twice_is_refused_everywhere(
    broker: LiveBroker, job: str, route: tuple[str, str]
) -> None:
    before = stored(broker)
    name, value = next(iter(GOOD[route[1]].items()))
    twice = json.dumps(GOOD[route[1]])[:-1] + f', "{name}": {json.dumps(value)}}}'
    assert_refused(send(broker, route, job, twice.encode()))
    assert stored(broker) == before


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: r[1])
def test_no_number_but_a_number_in_range_is_taken(
    broker: LiveBroker, job: str, route: tuple[str, str]
) -> None:
    before = stored(broker)
    for name, value in GOOD[route[1]].items():
        if isinstance(value, int | float):
            for number in NUMBERS:
                if number in ("null", "9223372036854775808") and name in ("weight", "priority"):
                    continue  # null: left as it is
                body = json.dumps({**GOOD[route[1]], name: "@@"}).replace('"@@"', number)
                assert_refused(send(broker, route, job, body.encode()))
    assert stored(broker) == before


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: r[1])
def test_what_is_missing_is_missed(broker: LiveBroker, job: str, route: tuple[str, str]) -> None:
    required = {
        "/v1/jobs": ("name",),
        "/v1/jobs/{job}/report": ("incarnation", "sequence", "state"),
        "/v1/jobs/{job}/end": ("outcome",),
        "/v1/jobs/{job}/control": ("action",),
        "/v1/leases/{lease}/release": ("fence", "devices"),
        "/v1/nodes/here/report": ("incarnation", "sequence", "devices"),
    }
    before = stored(broker)
    for name in required.get(route[1], ()):
        body = {key: value for key, value in GOOD[route[1]].items() if key != name}
        answer = send(broker, route, job, json.dumps(body).encode())
        assert_refused(answer)
        assert name in answer.json()["detail"]
    assert stored(broker) == before


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_name_that_could_do_harm_is_refused(broker: LiveBroker, job: str, name: str) -> None:
    before = stored(broker)
    assert_refused(send(broker, ROUTES[0], job, json.dumps({"name": name}).encode()))
    assert_refused(send(broker, ROUTES[8], job, json.dumps({"node": name}).encode()))
    assert stored(broker) == before


def test_an_impossible_wish_is_refused_with_the_figures(broker: LiveBroker, job: str) -> None:
    before = stored(broker)
    for wish, words in (
        ({"name": "x", "min_devices": 3, "max_devices": 2}, "min_devices"),
        ({"name": "x", "min_devices": 3, "max_devices": 4}, "the cluster has 2"),
        ({"name": "x", "min_devices": 0}, "min_devices"),
    ):
        answer = send(broker, ROUTES[0], job, json.dumps(wish).encode())
        assert_refused(answer)
        assert words in answer.json()["detail"]
    assert stored(broker) == before


@pytest.mark.parametrize("chunked", [False, True])
def test_ten_megabytes_are_not_read(broker: LiveBroker, job: str, chunked: bool) -> None:
    before = stored(broker)
    content: Any = (b"x" * 65_536 for _ in range(160)) if chunked else b"x" * 10_485_760
    for path in ("/v1/jobs", f"/v1/jobs/{job}/report"):
        answer = broker.admin.post(path, content=content if not chunked else iter([b"x" * 300_000] * 30))
        assert_refused(answer)
        assert answer.status_code == 413
    assert stored(broker) == before


def test_an_unusable_idempotency_key_is_refused(broker: LiveBroker) -> None:
    body = json.dumps(GOOD["/v1/jobs"])
    for headers in ({}, {"Idempotency-Key": "a" * 129}, {"Idempotency-Key": f"<{MARK}>"}):
        assert_refused(broker.admin.post("/v1/jobs", content=body, headers=headers))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404), ("GET", f"/v1/{MARK}", 404), ("GET", f"/v1/jobs/<{MARK}>", 404),
        ("DELETE", "/v1/jobs", 405), ("GET", f"/v1/auctions/{MARK}", 404),
        ("GET", "/v1/auctions/" + "9" * 400, 404),
        ("GET", f"/v1/auctions?last={MARK}", 422), ("GET", "/v1/cluster?wait_seconds=NaN", 422),
        ("GET", f"/v1/hardware/<{MARK}>/prior", 404), ("GET", "/v1/jobs/a%00b", 404),
        ("DELETE", f"/v1/admin/tokens/{MARK}", 404), ("POST", f"/v1/admin/devices/{MARK}/drain", 404),
        ("POST", f"/v1/admin/leases/{MARK}/release", 404), ("GET", f"/v1/cluster?token={MARK}", 400),
        ("PUT", f"/v1/admin/accounts/<{MARK}>", 422), ("GET", "/v1/jobs/", 404),
    ],
)  # fmt: skip
def test_paths_and_queries_are_input_too(broker: LiveBroker, method: str, path: str, status: int) -> None:
    answer = broker.admin.request(method, path, content=b"{}" if method == "PUT" else None)
    assert_refused(answer)
    assert answer.status_code == status


def test_openapi_is_published_with_every_message(broker: LiveBroker) -> None:
    document = broker.anonymous().get("/v1/openapi.json").json()
    schema = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/RegisterJob"}
    assert {"RegisterJob", "Instructions", "Problem"} <= set(document["components"]["schemas"])
