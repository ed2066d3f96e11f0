"""The look-ahead plays what is known to be coming, and nothing else."""

from __future__ import annotations

import pytest
from broker.driver import Driver, bid

from selfsched.protocol import Forecast
from selfsched_broker.core import arbiter
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.core.look_ahead import look_ahead, offers
from selfsched_broker.core.policies.themis import Themis


@pytest.fixture
def driver() -> Driver:
    driver = Driver(options=LeaseOptions(term_seconds=300.0), policy=Themis())
    driver.node(devices=2)
    return driver


def as_now(seconds: float, spread: float = 0.0) -> Forecast:
    return Forecast(
        p10_seconds=seconds - spread, p50_seconds=seconds, p90_seconds=seconds + spread, assumption="as_now"
    )


def running(driver: Driver, job: str, seconds: float, *times: float, spread: float = 0.0) -> None:
    """The job reports as one that trains on what it holds and ends in so many seconds."""
    held = driver.books.devices_of(job)
    driver.report(
        job, step=100, steady_steps=60, fraction_done=0.5, devices_in_use=tuple(held),
        bid=bid(*times, current=len(held)), forecast=as_now(seconds, spread),
    )  # fmt: skip


def two_on_one_each(driver: Driver) -> tuple[str, str]:
    # Whoever comes to an empty cluster visits on all it can use: the smaller job comes first.
    second, first = driver.register("bob", 1, 1), driver.register("ann", 1, 2)
    for job in (first, second):
        driver.report(job)
    driver.live(2.0)
    assert len(driver.books.devices_of(first)) == len(driver.books.devices_of(second)) == 1
    return first, second


def test_what_another_leaves_at_its_end_is_foreseen(driver: Driver) -> None:
    first, second = two_on_one_each(driver)
    running(driver, first, 100.0, 100.0, 50.0)
    running(driver, second, 30.0, 30.0)
    told = look_ahead(driver.books, driver.now, first)
    assert told is not None
    assert told.assumption == "look_ahead"
    assert told.p50_seconds == pytest.approx(30.0 + 1.0 + 0.7 * 50.0)
    assert arbiter.instructions(driver.books, driver.ctx, first).forecast == told


def test_without_others_it_is_the_job_s_own_forecast_moved_to_now(driver: Driver) -> None:
    first = driver.register("ann", 1, 2)
    driver.report(first)
    running(driver, first, 80.0, 160.0, 80.0, spread=10.0)
    driver.now += 5.0
    told = look_ahead(driver.books, driver.now, first)
    assert told is not None
    assert (told.p10_seconds, told.p50_seconds, told.p90_seconds) == (65.0, 75.0, 85.0)


def test_who_waits_comes_before_who_would_grow_and_those_share() -> None:
    ends = [(10.0, 1, False), (20.0, 2, False), (30.0, 4, False)]
    assert list(offers(ends, waiting=0, hungry=1)) == [(10.0, 1), (20.0, 3), (30.0, 7)]
    assert list(offers(ends, waiting=2, hungry=1)) == [(10.0, 0), (20.0, 1), (30.0, 5)]
    ends = [(10.0, 1, True), (20.0, 2, True), (30.0, 4, False)]
    assert list(offers(ends, waiting=0, hungry=3)) == [(10.0, 0), (20.0, 3), (30.0, 7)]


def test_a_move_that_would_not_pay_is_not_expected(driver: Driver) -> None:
    first, second = two_on_one_each(driver)
    running(driver, first, 100.0, 100.0, 99.5)
    running(driver, second, 30.0, 30.0)
    told = look_ahead(driver.books, driver.now, first)
    assert told is not None
    assert told.p50_seconds == pytest.approx(100.0)


def test_a_job_that_holds_nothing_or_has_not_measured_has_none(driver: Driver) -> None:
    first, _ = two_on_one_each(driver)
    assert look_ahead(driver.books, driver.now, first) is None
    waiting = driver.register("cy")
    assert look_ahead(driver.books, driver.now, waiting) is None
