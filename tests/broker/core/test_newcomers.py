"""Who may come: drawn from who came, at intervals like theirs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from broker.driver import Driver, bid

from bench._look_ahead_lab import random_scene
from selfsched_broker.core.ahead.newcomers import (
    LEAST_JOBS,
    LEAST_SECONDS,
    MOST_NEWCOMERS,
    Record,
    draw_newcomers,
    record_of,
)
from selfsched_broker.core.ahead.player import Player
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.core.look_ahead import Variant, foresee, foresee_variants


def a_player(seconds: float, count: int = 1) -> Player:
    return Player(
        job="", number=0, account="ann", weight=1.0, counts=(count,), seconds=(seconds,), restart_seconds=5.0
    )


def steady_record(jobs: int = 40, every: float = 500.0, seconds: float = 1000.0) -> Record:
    return Record(jobs * every, tuple(((n + 0.5) * every, a_player(seconds + n)) for n in range(jobs)))


def test_they_come_as_often_as_they_did() -> None:
    drawn = draw_newcomers(steady_record(), 200, 7)
    within = (drawn.came_at < 5000.0).sum(axis=1)
    assert np.mean(within) == pytest.approx(10.0, rel=0.1)
    assert [player.number for player in drawn.players] == list(range(7, 7 + len(drawn.players)))


def test_a_batch_that_came_at_the_very_beginning_is_not_expected_again() -> None:
    batch = Record(7200.0, tuple((0.0, a_player(100.0 + n)) for n in range(40)))
    assert draw_newcomers(batch, 25, 1).players == ()


def test_a_batch_comes_as_a_batch() -> None:
    batch = Record(7200.0, tuple((3600.0, a_player(100.0 + n)) for n in range(8)))
    came = draw_newcomers(batch, 25, 1).came_at
    firsts = np.sort(came, axis=1)
    assert np.allclose(firsts[:, 0], firsts[:, 7])
    assert len(set(firsts[:, 0])) > 5


def test_short_jobs_come_as_often_as_they_came() -> None:
    lengths = [10.0] * 30 + [10_000.0] * 10
    record = Record(4e4, tuple((1000.0 * n, a_player(s)) for n, s in enumerate(lengths)))
    drawn = draw_newcomers(record, 100, 1)
    seconds = np.array([player.seconds[0] for player in drawn.players])
    assert np.mean(seconds == 10.0) == pytest.approx(0.75, abs=0.05)


def test_no_world_has_more_than_it_may_and_fewer_worlds_have_the_same() -> None:
    record = steady_record(every=1.0)
    many, few = draw_newcomers(record, 25, 1), draw_newcomers(record, 5, 1)
    assert np.isfinite(many.came_at).sum(axis=1).max() <= MOST_NEWCOMERS
    assert np.array_equal(np.sort(many.came_at[:5], axis=1), np.sort(few.came_at, axis=1))


def test_who_waits_ends_later_where_others_keep_coming() -> None:
    """Shorter ones, that is: under `selfsched` who is shorter goes first."""
    scene = random_scene(3, 6, 2, "selfsched")
    busy = replace(scene, record=steady_record(every=200.0, seconds=300.0))
    alone, among = foresee(scene), foresee(busy)
    assert set(among) == set(alone), "no newcomer is told of"
    ends = {job: told.finish.p50_seconds for job, told in alone.items() if told.finish is not None}
    later = {job: told.finish.p50_seconds for job, told in among.items() if told.finish is not None}
    assert all(later[job] >= 0.9 * ends[job] for job in ends)
    assert sum(later.values()) > 1.2 * sum(ends.values())


@pytest.mark.parametrize("policy", ["selfsched", "themis", "fifo", "srtf", "las", "goodput"])
def test_with_newcomers_too_the_answer_does_not_depend_on_what_else_was_asked(policy: str) -> None:
    scene = replace(random_scene(7, 6, 4, policy), record=steady_record(every=300.0))
    askers = [replace(scene.players[0], job=f"asker-{n}", number=90, held=0) for n in range(3)]
    asked = [Variant(asker=asker, arrives=True) for asker in askers]
    assert foresee_variants(scene, asked[:1])[0] == foresee_variants(scene, asked)[0]


def some_jobs(driver: Driver, jobs: int, apart_seconds: float) -> None:
    """One after the other, each half done for so long on one device, then ended."""
    for _ in range(jobs):
        job = driver.register("ann", 1, 1)
        driver.report(job)
        driver.now += apart_seconds / 2
        driver.settle()
        driver.report(
            job, step=100, steady_steps=60, fraction_done=0.5,
            devices_in_use=tuple(driver.books.devices_of(job)),
            bid=bid(apart_seconds / 2, current=1),
        )  # fmt: skip
        driver.now += apart_seconds / 2
        driver.end(job)
        driver.node(devices=2)


def test_the_record_is_of_the_books(driver: Driver) -> None:
    some_jobs(driver, LEAST_JOBS, LEAST_SECONDS / LEAST_JOBS + 1)
    record = record_of(driver.books, driver.now, {})
    assert len(record.came) == LEAST_JOBS
    assert record.per_hour == pytest.approx(LEAST_JOBS / driver.now * 3600)
    for _, player in record.came:
        assert player.counts == (1,)
        assert player.seconds == pytest.approx((LEAST_SECONDS / LEAST_JOBS + 1,))
        assert (player.held, player.age_seconds, player.fraction_done) == (0, 0.0, 0.0)


@pytest.mark.parametrize(("jobs", "apart"), [(LEAST_JOBS - 1, LEAST_SECONDS), (LEAST_JOBS + 4, 30.0)])
def test_few_jobs_or_a_short_time_tell_nothing(driver: Driver, jobs: int, apart: float) -> None:
    some_jobs(driver, jobs, apart)
    assert record_of(driver.books, driver.now, {}) == Record()


@pytest.fixture
def driver() -> Driver:
    patient = LeaseOptions(
        ttl_seconds=1e6, node_silent_seconds=1e6, silent_job_seconds=1e6, idle_warned_seconds=1e6,
        idle_lost_seconds=1e6,
    )  # fmt: skip
    driver = Driver(options=patient)
    driver.node(devices=2)
    return driver
