"""The share over a job's life against the plain integral of `fairness.current_shares`."""

from __future__ import annotations

import pytest
from broker.driver import Driver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfsched.protocol import SetAccount
from selfsched_broker.core import arbiter
from selfsched_broker.core.fairness import current_shares
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.core.shares import age_seconds, share_now, share_over_life

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["register", "end", "pause", "resume", "weight", "priority", "nodes", "wait"]),
        st.integers(0, 5),
        st.floats(0.0, 30.0),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_the_integral_in_constant_time_is_the_plain_one(steps: list[tuple[str, int, float]]) -> None:
    driver = Driver(options=LeaseOptions(silent_job_seconds=1e9, idle_lost_seconds=1e9))
    driver.node(devices=3)
    plain: dict[str, float] = {}
    for what, number, seconds in steps:
        _happen(driver, what, number)
        books = driver.books
        shares = current_shares(books.live_jobs(), books.accounts, books.healthy_devices)
        for job in books.live_jobs():
            assert share_now(books, job) == pytest.approx(shares[job.id])
            plain[job.id] = plain.get(job.id, 0.0) + shares[job.id] * seconds
        driver.now += seconds
        for job in books.live_jobs():
            age = age_seconds(job, driver.now)
            if age > 0:
                assert share_over_life(books, job, driver.now) * age == pytest.approx(plain[job.id], abs=1e-6)


def _happen(driver: Driver, what: str, number: int) -> None:
    jobs = list(driver.books.live_jobs())
    account = ("ann", "bob")[number % 2]
    if what == "register":
        driver.register(account, priority=1.0 + number)
    elif what == "weight":
        driver.do(arbiter.set_account, account, SetAccount(weight=1.0 + number), by="root")
    elif what == "nodes":
        driver.node(devices=3 + number)
    elif what == "wait" or not jobs:
        return
    else:
        job = jobs[number % len(jobs)].id
        if what == "end":
            driver.end(job)
        elif what == "priority":
            driver.control(job, "set_priority", priority=1.0 + number)
        else:
            driver.control(job, what)


def test_splitting_a_job_in_ten_gains_nothing() -> None:
    driver = Driver()
    driver.node(devices=4)
    one = driver.register("ann", 1, 1)
    many = [driver.register("bob", 1, 1) for _ in range(10)]
    driver.now += 10.0
    shares = {job.id: share_over_life(driver.books, job, driver.now) for job in driver.books.live_jobs()}
    assert shares[one] == pytest.approx(2.0)
    assert sum(shares[job] for job in many) == pytest.approx(2.0)
