"""The panel's what-if: what the broker is asked for what a person said, and what is not asked at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from jupyter.odd_broker import Heard, OddBroker, Said, odd_broker, problem, well_behaved
from selfsched.core.whole_run import run_by_hours, run_like
from selfsched.protocol import (
    BidRow,
    DeviceSpan,
    JobState,
    JobView,
    Outcome,
    Placement,
    Resume,
    StandingBid,
    WhatIf,
    WhatIfAnswer,
)
from selfsched.settings import BrokerAddress
from selfsched_jupyter.answers import Answer
from selfsched_jupyter.finding import Found
from selfsched_jupyter.room import Room
from selfsched_jupyter.what_if import answer_to

BID = StandingBid(
    rows=tuple(
        BidRow(placement=Placement(devices=n), remaining_seconds=900.0 / n, sigma_log=0.1 * n) for n in (1, 2)
    )
)


@pytest.fixture(scope="module")
def the_broker() -> Iterator[OddBroker]:
    with odd_broker() as found:
        yield found


@pytest.fixture
def broker(the_broker: OddBroker) -> OddBroker:
    the_broker.reset()
    return the_broker


def a_job(**changes: Any) -> JobView:
    values: dict[str, Any] = {
        "job": "job-1", "name": "digits", "account": "ada", "state": JobState.RUNNING, "min_devices": 1,
        "max_devices": 2, "resume": Resume.ELASTIC, "priority": 1.0, "age_seconds": 60.0,
        "fraction_done": 0.25, "bid": BID,
    }  # fmt: skip
    return JobView(**(values | changes))


def one_that_ended() -> JobView:
    span = DeviceSpan(devices=("here/cpu0",), from_seconds=1.0, to_seconds=301.0)
    return a_job(state=JobState.ENDED, outcome=Outcome.FINISHED, fraction_done=1.0, history=(span,), bid=None)


def knows(broker: OddBroker, job: JobView) -> None:
    """It has this job and no other."""

    def behave(heard: Heard) -> Said:
        if heard.path == "/v1/jobs/job-1":
            return Said(body=job.to_json().encode())
        if heard.path.startswith("/v1/jobs/"):
            return problem(404, "not_found", "there is no such job of yours")
        return well_behaved(heard)

    broker.reset(behave)


def ask(broker: OddBroker, body: bytes | dict[str, Any]) -> Answer:
    """What comes of a question."""
    address = BrokerAddress(url=broker.url, socket=None)

    async def asked() -> Answer:
        room = Room(lambda: Found(kind="set", address=address, token="ss_x"))
        try:
            return await answer_to(room, body if isinstance(body, bytes) else json.dumps(body).encode())
        finally:
            await room.close()

    return asyncio.run(asked())


def put_to(broker: OddBroker) -> WhatIf:
    """What the broker was asked, as the user."""
    (heard,) = [heard for heard in broker.heard if heard.path == "/v1/forecast"]
    assert heard.headers["Authorization"] == "Bearer ss_x"
    return WhatIf.model_validate_json(heard.body)


def words(answer: Answer, status: int, code: str) -> str:
    """Of a problem document."""
    told = json.loads(answer.body)
    assert (answer.status, told["status"], told["code"]) == (status, status, code), told
    return str(told["detail"])


def test_hours_are_asked_as_the_command_asks_them(broker: OddBroker) -> None:
    assert ask(broker, {"hours": 6, "on": 2, "devices": [4, 1, 4]}).is_news
    run = run_by_hours(6.0, 2, 4, (4, 1, 4))
    asked = put_to(broker)
    assert asked == WhatIf(devices=(4, 1), seconds=run.times, doubts_log=run.doubts)
    assert dict(asked.seconds)[2] == 21_600
    assert dict(asked.doubts_log)[4] > 0


@pytest.mark.parametrize("job", [a_job(), one_that_ended()], ids=["running", "ended"])
def test_a_run_like_a_job_is_asked_as_the_command_asks_it(broker: OddBroker, job: JobView) -> None:
    knows(broker, job)
    assert ask(broker, {"like": "job-1", "devices": [1]}).is_news
    run = run_like(job)
    assert put_to(broker) == WhatIf(devices=(1,), seconds=run.times, doubts_log=run.doubts)


def test_counts_that_such_a_run_cannot_have_are_told(broker: OddBroker) -> None:
    knows(broker, a_job())
    answer = ask(broker, {"like": "job-1", "devices": [1, 4]})
    assert put_to(broker).devices == (1,)
    reason = WhatIfAnswer.model_validate_json(answer.body).reason
    assert reason.endswith("such a job may have these device counts only: 1, 2")


def test_only_counts_that_such_a_run_cannot_have_are_not_asked(broker: OddBroker) -> None:
    knows(broker, a_job())
    answer = ask(broker, {"like": "job-1", "devices": [4]})
    assert "these device counts only: 1, 2" in words(answer, 422, "not_foreseeable")
    assert broker.asked("/v1/forecast") == 0


@pytest.mark.parametrize(
    ("job", "expected"),
    [(a_job(bid=None), "has not measured itself"), (a_job(fraction_done=0.99), "99% done")],
)
def test_a_job_that_says_nothing_of_a_whole_run_is_refused_in_words(
    broker: OddBroker, job: JobView, expected: str
) -> None:
    knows(broker, job)
    detail = words(ask(broker, {"like": "job-1", "devices": [1]}), 422, "not_foreseeable")
    assert expected in detail
    assert "--" not in detail, "nobody gave an option"
    assert broker.asked("/v1/forecast") == 0


@pytest.mark.parametrize("hours", ["0", "-1", "1e9"])
def test_what_is_no_length_is_refused_in_words(broker: OddBroker, hours: str) -> None:
    answer = ask(broker, f'{{"hours": {hours}, "devices": [1]}}'.encode())
    assert "more than 0" in words(answer, 422, "not_foreseeable")
    assert broker.heard == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "JSON"),
        (b"[1]", "RunQuestion"),
        (b'{"devices":[1]}', "either hours or like"),
        (b'{"hours":1,"like":"job-1","devices":[1]}', "either hours or like"),
        (b'{"hours":1}', "devices"),
        (b'{"hours":1,"devices":[]}', "devices"),
        (b'{"hours":1,"devices":[1,2,3,4,5,6,7,8,9]}', "devices"),
        (b'{"hours":1,"devices":[0]}', "devices"),
        (b'{"hours":1,"on":70000,"devices":[1]}', "on"),
        (b'{"hours":NaN,"devices":[1]}', "hours"),
        (b'{"hours":"1","devices":[1]}', "hours"),
        (b'{"like":"<b>","devices":[1]}', "like"),
        (b'{"hours":1,"devices":[1],"seconds":[[1,5]]}', "seconds"),
    ],
)
def test_a_question_that_is_none_is_never_put(broker: OddBroker, body: bytes, expected: str) -> None:
    assert expected in words(ask(broker, body), 422, "invalid_message")
    assert broker.heard == []


@pytest.mark.parametrize(
    ("like", "status"), [("job-1/control", 405), ("../accounts/me", 422), ("a/b/c", 404)]
)
def test_a_name_that_is_a_path_leads_nowhere_else(broker: OddBroker, like: str, status: int) -> None:
    assert ask(broker, {"like": like, "devices": [1]}).status == status
    assert broker.heard == []


def test_a_job_that_is_not_there_is_said_by_the_broker(broker: OddBroker) -> None:
    knows(broker, a_job())
    answer = ask(broker, {"like": "job-9", "devices": [1]})
    assert words(answer, 404, "not_found") == "there is no such job of yours"
    assert broker.asked("/v1/forecast") == 0


def test_a_question_that_is_too_large_is_not_read(broker: OddBroker) -> None:
    words(ask(broker, b" " * 70_000), 413, "body_too_large")
    assert broker.heard == []
