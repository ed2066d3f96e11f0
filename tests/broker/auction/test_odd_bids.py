"""Over real HTTP: bid tables that are absurd, too long, or of a job that has ended. Nobody else notices."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from broker.driver import Driver
from broker.driver import bid as driver_bid
from broker.live_broker import LiveBroker, live_broker, register

from selfsched.protocol import MAX_SECONDS, BidRow, Placement, Problem, StandingBid
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.core.policies import POLICIES, policy_named


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    state = tmp_path_factory.mktemp("b") / "state"
    with live_broker(state, devices=2, calls_per_second=1e5, reports_per_second=1e5) as live:
        yield live


def row(devices: int, seconds: str = "100.0", **placement: Any) -> str:
    where = json.dumps({"devices": devices, **placement})
    return f'{{"placement": {where}, "remaining_seconds": {seconds}, "restart_seconds": 1.0}}'


def tell(broker: LiveBroker, job: str, rows: list[str], sequence: int = 1) -> httpx.Response:
    body = (
        f'{{"incarnation": 1, "sequence": {sequence}, "state": "waiting",'
        f' "bid": {{"rows": [{", ".join(rows)}]}}}}'
    )
    return broker.admin.post(f"/v1/jobs/{job}/report", content=body)


def problem(answer: httpx.Response) -> Problem:
    assert answer.headers["content-type"] == "application/problem+json"
    return Problem.model_validate_json(answer.content)


@pytest.mark.slow
def test_a_table_of_a_million_rows_is_refused_unread_and_one_of_some_hundred_by_its_length(
    broker: LiveBroker,
) -> None:
    job = register(broker.admin)
    answer = tell(broker, job, 1_000_000 * ['{"placement":{"devices":1},"remaining_seconds":1}'])
    assert (answer.status_code, problem(answer).status) == (413, 413)
    assert "bytes" in problem(answer).detail
    answer = tell(broker, job, [row(n) for n in range(1, 258)])
    assert answer.status_code == 422
    assert "256" in problem(answer).detail
    assert "rows" in problem(answer).detail
    assert broker.books.jobs[job].bid is None
    assert tell(broker, job, [row(n) for n in range(1, 257)]).status_code == 200
    end(broker, job)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row(1, "NaN")],
        [row(1, "-1")],
        [row(1, "1e999")],
        [row(1, '"soon"')],
        [row(0)],
        [row(-1)],
        [row(1), row(1)],
        [row(1, nodes=2)],
        [row(1, model="<script>")],
    ],
    ids=repr,
)
def test_a_row_that_can_mean_nothing_is_refused_and_nothing_stored(
    broker: LiveBroker, rows: list[str]
) -> None:
    job = register(broker.admin)
    answer = tell(broker, job, rows)
    assert answer.status_code in (400, 422), answer.text
    assert problem(answer).detail
    assert broker.books.jobs[job].bid is None
    end(broker, job)


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize(
    "odd",
    [
        BidRow(placement=Placement(devices=1, model="h100"), remaining_seconds=50.0),
        BidRow(placement=Placement(devices=2, nodes=2), remaining_seconds=50.0),
        BidRow(placement=Placement(devices=1), remaining_seconds=0.0),
        BidRow(placement=Placement(devices=1), remaining_seconds=MAX_SECONDS, restart_seconds=MAX_SECONDS),
    ],
    ids=("other-model", "more-nodes", "nothing", "for-ever"),
)
def test_a_placement_that_is_not_here_or_an_absurd_time_keeps_nobody_else_from_running(
    name: str, odd: BidRow
) -> None:
    driver = Driver(policy=policy_named(name), options=LeaseOptions(term_seconds=60.0))
    driver.node(devices=2)
    strange = driver.register("ann", 1, 1)
    driver.report(strange, steady_steps=5, bid=StandingBid(rows=(odd,)))
    plain = driver.register("bob", 1, 1)
    driver.report(plain, bid=driver_bid(500.0))
    driver.live(200.0)
    assert len(driver.held(plain)) == 1
    assert driver.books.jobs[strange].reasons
    assert driver.books.agenda.failed_auctions == 0
    assert not [audit for audit in driver.books.audits.values() if audit.action == "ruling_refused"]


def test_a_bid_after_the_jobs_end_is_refused_and_changes_nothing(broker: LiveBroker) -> None:
    job = register(broker.admin)
    end(broker, job)
    answer = tell(broker, job, [row(1)])
    assert (answer.status_code, problem(answer).code) == (409, "job_ended")
    assert "has ended" in problem(answer).detail
    assert broker.books.jobs[job].bid is None


def end(broker: LiveBroker, job: str) -> None:
    answer = broker.admin.post(
        f"/v1/jobs/{job}/end", json={"outcome": "cancelled"}, headers={"Idempotency-Key": uuid.uuid4().hex}
    )
    assert answer.status_code == 200, answer.text
