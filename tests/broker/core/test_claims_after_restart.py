"""What was seen of a job's claims outlives the broker."""

from __future__ import annotations

import pytest
from broker.driver import Driver, bid

from selfsched_broker.core.metering import Meter
from selfsched_broker.core.track_record import Tally
from selfsched_broker.store.memory import MemoryDisk, MemoryStore

CLAIMED, TAKES = 200.0, 400.0


def running(driver: Driver, job: str, seconds: float) -> None:
    """It makes steps at its true pace, and claims that all takes half as long."""
    until = driver.now + seconds
    while driver.now < until:
        driver.now += 5.0
        done = driver.books.job_pulses[job].fraction_done + 5.0 / TAKES
        driver.report(
            job, step=int(1000 * done), steady_steps=100, fraction_done=done,
            devices_in_use=tuple(driver.books.devices_of(job)), bid=bid((1 - done) * CLAIMED, current=1),
        )  # fmt: skip


@pytest.fixture
def driver() -> Driver:
    driver = Driver(store=MemoryStore(MemoryDisk()))
    driver.node(devices=1)
    return driver


def restart(driver: Driver) -> None:
    driver.store = MemoryStore(driver.store._disk)
    driver.open()
    driver.node(devices=1, incarnation=2)


def test_a_pace_that_was_seen_is_known_after_a_restart(driver: Driver) -> None:
    job = driver.register("ann", 1, 1)
    driver.report(job)
    running(driver, job, 120.0)
    before = driver.books.job_pulses[job].meter
    assert before.factor == pytest.approx(TAKES / CLAIMED, rel=0.1)
    restart(driver)
    after = driver.books.job_pulses[job].meter
    assert (after.factor, after.sigma_log, after.paces) == (before.factor, before.sigma_log, before.paces)
    assert after.since is None, "what it did while no broker ran is not counted as a pace"
    running(driver, job, 60.0)
    assert driver.books.job_pulses[job].meter.factor == pytest.approx(TAKES / CLAIMED, rel=0.1)


def test_what_it_claimed_before_a_restart_is_counted_at_its_end(driver: Driver) -> None:
    job = driver.register("ann", 1, 1)
    driver.report(job)
    running(driver, job, 120.0)
    before = driver.books.job_pulses[job].tally
    restart(driver)
    assert driver.books.job_pulses[job].tally == before
    driver.end(job)
    assert driver.books.accounts["ann"].claims.jobs == 1
    ended = driver.books.jobs[job]
    assert (ended.meter, ended.tally) == (Meter(), Tally()), "nothing of it is kept with a job that has ended"
