"""One broker, or what stands in its place: what reaches the page of what it says."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx
import pytest

from jupyter.odd_broker import Heard, OddBroker, Said, a_cluster, odd_broker, well_behaved
from selfsched.protocol import DeviceState, DeviceView, JobState, JobView, Message, Resume
from selfsched.settings import BrokerAddress
from selfsched_jupyter import upstream
from selfsched_jupyter.allowed import BrokerCall, call_of
from selfsched_jupyter.answers import Answer, tag_of
from selfsched_jupyter.finding import Found
from selfsched_jupyter.upstream import Upstream

TOKEN = "ss_0123456789ab_a-secret-of-the-broker"
JOBS = call_of("GET", "jobs", "")
CLUSTER = call_of("GET", "cluster", "")
DEVICE = DeviceView(
    id="here/cpu0", node="here", index=0, kind="cpu", model="cpu", state=DeviceState.FREE, since_seconds=1.0
)
JOB = JobView(
    job="job-1", name="digits", account="ada", state=JobState.RUNNING, min_devices=1, max_devices=2,
    resume=Resume.ELASTIC, priority=1.0, age_seconds=60.0,
)  # fmt: skip


def asked(
    say: Callable[[httpx.Request], httpx.Response],
    call: BrokerCall = JOBS,
    *,
    etag: str | None = None,
    token: str = TOKEN,
) -> Answer:
    """What comes of a call of something that answers so."""

    async def ask() -> Answer:
        found = Found(kind="set", address=BrokerAddress(url="http://b:1"), token=token)
        broker = Upstream(found, transport=httpx.MockTransport(say))
        try:
            return await broker.ask(call, etag=etag)
        finally:
            await broker.close()

    return asyncio.run(ask())


def says(body: Any, **headers: str) -> Callable[[httpx.Request], httpx.Response]:
    """It answers all with this."""
    named = {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    raw = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
    return lambda _: httpx.Response(200, content=content, headers=raw)


def code(answer: Answer) -> str:
    return str(json.loads(answer.body)["code"])


# --- what was left out -----------------------------------------------------------------------


def optional(kind: type[Message]) -> list[str]:
    return [name for name, known in kind.model_fields.items() if not known.is_required()]


def without(message: Message, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in json.loads(message.to_json()).items() if name not in names}


def test_what_a_broker_leaves_out_of_a_job_is_there_for_the_page() -> None:
    answer = asked(says([without(JOB, optional(JobView))]))
    assert json.loads(answer.body) == [json.loads(JOB.to_json())]


def test_what_a_broker_leaves_out_deep_inside_is_there_for_the_page() -> None:
    cluster = json.loads(a_cluster(devices=(DEVICE,)).to_json())
    whole = cluster | {"devices": [json.loads(DEVICE.to_json())]}
    cluster["devices"] = [without(DEVICE, optional(DeviceView))]
    answer = asked(says(cluster, ETag='"c1"'), CLUSTER)
    assert json.loads(answer.body) == whole
    assert answer.etag == '"c1"'


# --- what is packed --------------------------------------------------------------------------


def test_a_broker_is_asked_not_to_pack_its_answers() -> None:
    heard: list[str] = []

    def listen(request: httpx.Request) -> httpx.Response:
        heard.append(request.headers["accept-encoding"])
        return says([])(request)

    assert asked(listen).status == 200
    assert heard == ["identity"]


def packed(
    status: int, media: str, coding: str, read: list[bytes]
) -> Callable[[httpx.Request], httpx.Response]:
    """It answers so; `read` tells whether anybody has looked into it."""

    async def parts() -> AsyncIterator[bytes]:
        read.append(b"")
        yield gzip.compress(b"[]")

    headers = {"Content-Type": media, "Content-Encoding": coding}
    return lambda _: httpx.Response(status, content=parts(), headers=headers)


@pytest.mark.parametrize("coding", ["gzip", "gzip, gzip", "GZip", "deflate", "br", "zstd", "identity, gzip"])
def test_an_answer_that_is_packed_all_the_same_is_not_read(coding: str) -> None:
    read: list[bytes] = []
    answer = asked(packed(200, "application/json", coding, read))
    assert (answer.status, code(answer)) == (502, "not_a_broker")
    assert read == []


def test_what_says_that_it_is_not_packed_is_read() -> None:
    assert asked(says([], Content_Encoding="identity")).body == b"[]"


def test_a_packed_page_of_a_proxy_is_still_a_proxys() -> None:
    answer = asked(packed(502, "text/html", "gzip", []))
    assert (answer.status, code(answer)) == (503, "broker_unreachable")
    assert b"status 502" in answer.body


# --- ETags -----------------------------------------------------------------------------------


def says_unchanged(*tags: str) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(304, headers=[(b"ETag", tag.encode("latin-1")) for tag in tags])


@pytest.mark.parametrize("etag", [None, '"c1"'])
@pytest.mark.parametrize("tag", ['"a\x0bb"', '"a\x01"', '"\xe9"', "c1", '""', '"' + "x" * 500 + '"'])
def test_nothing_new_with_a_tag_that_is_none_is_worded(tag: str, etag: str | None) -> None:
    answer = asked(says_unchanged(tag), CLUSTER, etag=etag)
    assert (answer.status, code(answer), answer.etag) == (502, "not_a_broker", None)


@pytest.mark.parametrize("tags", [(), ('"c1"',)])
def test_nothing_new_to_who_has_nothing_is_worded(tags: tuple[str, ...]) -> None:
    answer = asked(says_unchanged(*tags), CLUSTER)
    assert (answer.status, code(answer), answer.etag) == (502, "not_a_broker", None)


@pytest.mark.parametrize("tags", [(), ('"c1"',), ('W/"c1"',)])
def test_nothing_new_to_who_has_something_is_what_it_says(tags: tuple[str, ...]) -> None:
    answer = asked(says_unchanged(*tags), CLUSTER, etag='"c1"')
    assert (answer.status, answer.etag) == (304, '"c1"')


@pytest.mark.parametrize("tag", ['"a\x0bb"', '"a\x01"', '"\xe9"', "c1", '"' + "x" * 20_000 + '"'])
def test_an_answer_with_a_tag_that_is_none_gets_one(tag: str) -> None:
    answer = asked(says([], ETag=tag))
    assert (answer.status, answer.etag) == (200, tag_of(b"[]"))


def test_a_tag_that_a_proxy_has_made_weak_is_the_brokers() -> None:
    assert asked(says([], ETag='W/"j1"')).etag == '"j1"'


# --- our own token, repeated -----------------------------------------------------------------

ODD_TOKEN = 'ss_quote"and\\slash'


def repeats(request: httpx.Request, where: str) -> httpx.Response:
    """What was sent comes back, in one part of the answer or the other."""
    said = request.headers["authorization"]
    token = said.removeprefix("Bearer ")
    media, problem = "application/json", {"status": 403, "code": "forbidden", "title": "No"}
    job = json.loads(JOB.to_json())
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in said)
    answers: dict[str, tuple[int, str, str]] = {
        "detail": (
            403,
            media,
            json.dumps(problem | {"detail": f"you sent {dict(request.headers)['authorization']}"}),
        ),
        "title": (403, media, json.dumps(problem | {"title": said})),
        "code": (403, media, json.dumps(problem | {"code": said})),
        "escaped": (403, media, json.dumps(problem)[:-1] + f', "detail": "{escaped}"}}'),
        "twice": (403, media, json.dumps(problem | {"detail": said + said})),
        "success": (200, media, json.dumps([job | {"reasons": [said]}])),
        "name": (200, media, json.dumps([job | {"job": token}])),
        "media": (200, said, "[]"),
        "media, cut": (200, "x" * 40 + said, "[]"),
        "page": (502, "text/html", said),
    }
    status, media, body = answers.get(where, (200, media, "[]"))
    headers = {"Content-Type": media, "Retry-After": said}
    headers |= {"ETag": f'"{token}"'} if where == "tag" else {}
    if where == "redirect":
        return httpx.Response(302, headers=headers | {"Location": f"/{said}"})
    if where == "broken":
        raise httpx.RemoteProtocolError(f"illegal header line: {said}")
    return httpx.Response(status, content=body.encode(), headers=headers)


@pytest.mark.parametrize("token", [TOKEN, ODD_TOKEN])
@pytest.mark.parametrize(
    "where",
    ["detail", "title", "code", "escaped", "twice", "success", "name", "media", "media, cut", "page", "tag",
     "redirect", "broken"],
)  # fmt: skip
def test_a_broker_that_repeats_our_token_does_not_bring_it_to_the_page(where: str, token: str) -> None:
    answer = asked(lambda request: repeats(request, where), token=token)
    shown = answer.body.decode() + repr(answer)
    # Not in whatever case or length either: a part that long is nobody's word.
    for part in (token[:12].lower(), json.dumps(token)[1:13].lower()):
        assert part not in shown.lower()
    json.loads(answer.body)


def test_where_our_token_was_the_rest_is_still_shown() -> None:
    answer = asked(lambda request: repeats(request, "success"))
    assert json.loads(answer.body)[0]["reasons"] == ["Bearer token-not-shown"]


# --- many long polls -------------------------------------------------------------------------


def test_long_polls_that_hold_all_connections_keep_back_no_order_and_no_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream, "MOST_CONNECTIONS", 3)
    too_late = threading.Event()

    def hold(heard: Heard) -> Said:
        if "If-None-Match" in heard.headers:
            too_late.wait(30)
        return well_behaved(heard)

    async def ask(where: OddBroker) -> list[int]:
        broker = Upstream(Found(kind="set", address=BrokerAddress(url=where.url), token=TOKEN))
        poll = call_of("GET", "cluster", "wait_seconds=20")
        polls = [asyncio.ensure_future(broker.ask(poll, etag='"c1"')) for _ in range(4)]
        try:
            async with asyncio.timeout(20):
                while where.polled() < 3:
                    await asyncio.sleep(0.01)
            order = call_of("POST", "jobs/job-1/control", "", body=b'{"action":"stop"}', key="k-1")
            return [(await broker.ask(call)).status for call in (order, CLUSTER)]
        finally:
            too_late.set()
            await asyncio.gather(*polls)
            await broker.close()

    with odd_broker() as where:
        where.reset(hold)
        assert asyncio.run(ask(where)) == [200, 200]
        assert where.asked("/v1/jobs/job-1/control") == 1
