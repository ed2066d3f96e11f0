"""The look-ahead plays what is known to be coming, and nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from broker.driver import Driver, bid

from bench._look_ahead_lab import random_scene
from selfsched.protocol import Forecast
from selfsched_broker.core import arbiter, views
from selfsched_broker.core.ahead.newcomers import Record
from selfsched_broker.core.ahead.player import Player
from selfsched_broker.core.ahead.rules import RULES
from selfsched_broker.core.ahead.scene import Scene, take_scene
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.core.look_ahead import (
    UNPLAYED_LOG,
    Outlook,
    Variant,
    foresee,
    foresee_variants,
)
from selfsched_broker.core.policies.themis import Themis


@pytest.fixture
def driver() -> Driver:
    driver = Driver(options=LeaseOptions(term_seconds=300.0), policy=Themis())
    driver.node(devices=2)
    return driver


def told_to(driver: Driver, job: str, later_seconds: float = 0.0) -> Forecast | None:
    """The forecast in a job's instructions, with an outlook that was made so long before."""
    outlook = Outlook.of_scene(take_scene(driver.books, driver.ctx))
    driver.now += later_seconds
    return arbiter.instructions(driver.books, replace(driver.ctx, outlook=outlook), job).forecast


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
    told = told_to(driver, first)
    assert told is not None
    assert told.assumption == "look_ahead"
    assert told.p50_seconds == pytest.approx(30.0 + 1.0 + 0.7 * 50.0)
    assert arbiter.instructions(driver.books, driver.ctx, first).forecast is None, "before it was foreseen"


def test_without_others_it_is_the_job_s_own_forecast_moved_to_now(driver: Driver) -> None:
    first = driver.register("ann", 1, 2)
    driver.report(first)
    running(driver, first, 80.0, 160.0, 80.0, spread=10.0)
    told = told_to(driver, first, later_seconds=5.0)
    assert told is not None
    assert (told.p10_seconds, told.p50_seconds, told.p90_seconds) == pytest.approx((65.0, 75.0, 85.0))


def test_a_move_that_would_not_pay_is_not_expected(driver: Driver) -> None:
    first, second = two_on_one_each(driver)
    running(driver, first, 100.0, 100.0, 99.5)
    running(driver, second, 30.0, 30.0)
    told = told_to(driver, first)
    assert told is not None
    assert told.p50_seconds == pytest.approx(100.0)


def test_a_job_that_holds_nothing_or_has_not_measured_has_none(driver: Driver) -> None:
    first, _ = two_on_one_each(driver)
    assert told_to(driver, first) is None
    waiting = driver.register("cy")
    assert told_to(driver, waiting) is None


@pytest.mark.parametrize("policy", sorted(RULES))
def test_all_jobs_have_a_start_and_an_end_under_every_policy(policy: str) -> None:
    players = tuple(
        Player(
            job=f"j{n}", number=n, account=f"a{n % 3}", weight=1.0, counts=(1, 2), low=0.8, high=1.3,
            seconds=(1000.0 * n, 600.0 * n), held=1 if n <= 2 else 0, restart_seconds=5.0, share=1.0,
        )
        for n in range(1, 7)
    )  # fmt: skip
    scene = Scene(players=players, devices=2, policy=policy, term_seconds=300.0, tick_seconds=100.0)
    found = foresee(scene)
    assert found == foresee(scene)
    for told in found.values():
        assert told.start is not None
        assert told.finish is not None
        assert 0 <= told.start.p50_seconds < told.finish.p50_seconds
    asker = replace(players[0], job="new", number=9, held=0)
    alone = Variant(asker=asker, without=frozenset(player.job for player in players), arrives=True)
    among, first = foresee_variants(scene, [Variant(asker=asker, arrives=True), alone])
    assert among.finish is not None
    assert first.finish is not None
    assert first.finish.p50_seconds <= among.finish.p50_seconds


def test_who_waits_sees_when_it_will_start_and_who_holds_does_not(driver: Driver) -> None:
    first, second = two_on_one_each(driver)
    running(driver, first, 500.0, 500.0)
    running(driver, second, 30.0, 30.0)
    waiting = driver.register("cy")
    driver.report(waiting)
    outlook = Outlook.of_scene(take_scene(driver.books, driver.ctx))
    ctx = replace(driver.ctx, outlook=outlook)
    starts = views.job_view(driver.books, ctx, waiting).starts
    assert starts is not None
    assert starts.p50_seconds == pytest.approx(30.0, abs=1.0)
    assert views.job_view(driver.books, ctx, first).starts is None
    assert views.job_view(driver.books, ctx, waiting).ends is None, "it has not measured itself"
    ends = views.job_view(driver.books, ctx, first).ends
    assert ends is not None
    assert ends.assumption == "look_ahead"


def test_the_cluster_s_view_says_who_else_is_expected(driver: Driver) -> None:
    record = Record(7200.0, ((10.0, random_scene(1, 2, 2, "themis").players[0]),) * 6)
    scene = replace(take_scene(driver.books, driver.ctx), record=record)
    ctx = replace(driver.ctx, outlook=Outlook.of_scene(scene))
    assert views.cluster_view(driver.books, ctx).newcomers_per_hour == pytest.approx(3.0)
    assert views.cluster_view(driver.books, driver.ctx).newcomers_per_hour == 0


def test_what_is_not_played_is_in_the_interval_of_who_has_company(driver: Driver) -> None:
    one, other = two_on_one_each(driver)
    running(driver, one, 100.0, 100.0, 50.0)
    running(driver, other, 30.0, 30.0)
    told = told_to(driver, one)
    assert told is not None
    assert told.p90_seconds / told.p50_seconds >= math.exp(UNPLAYED_LOG) - 1e-9
    assert told.p50_seconds / told.p10_seconds >= math.exp(UNPLAYED_LOG) - 1e-9


def test_of_the_very_first_job_no_end_is_told_before_something_is_known(driver: Driver) -> None:
    first = driver.register("ann", 1, 2)
    driver.report(first)
    told = foresee(take_scene(driver.books, driver.ctx))[first]
    assert told.start is not None
    assert told.finish is None
    driver.live(10.0)
    driver.report(first, step=100, fraction_done=0.1, devices_in_use=tuple(driver.books.devices_of(first)))
    paced = foresee(take_scene(driver.books, driver.ctx))[first]
    assert paced.finish is not None
    assert not paced.known
    assert paced.finish.p50_seconds == pytest.approx(90.0, rel=0.3), "by its pace"


def test_a_job_that_has_measured_nothing_is_taken_for_its_last_run(driver: Driver) -> None:
    first = driver.register("ann", 1, 2)
    driver.live(600.0)
    held = len(driver.books.devices_of(first))
    driver.end(first)
    driver.node(devices=2)
    again, other = driver.register("ann", 1, 2), driver.register("bob", 1, 2)
    scene = take_scene(driver.books, driver.ctx)
    of_ann, of_bob = (next(p for p in scene.players if p.job == job) for job in (again, other))
    assert dict(zip(of_ann.counts, of_ann.seconds, strict=True))[held] == pytest.approx(600.0, rel=0.02)
    assert (of_ann.known, of_ann.is_stand_in) == (False, False)
    assert of_ann.sigma_log < of_bob.sigma_log, "another's run tells less"
    assert foresee(scene)[other].finish is not None


@pytest.mark.parametrize("policy", sorted(RULES))
def test_an_answer_does_not_depend_on_what_else_was_asked(policy: str) -> None:
    scene = random_scene(7, 6, 4, policy)
    askers = [replace(scene.players[0], job=f"asker-{n}", number=90, held=0) for n in range(3)]
    asked = [Variant(asker=asker, arrives=True) for asker in askers]
    assert foresee_variants(scene, asked[:1])[0] == foresee_variants(scene, asked)[0]
