"""What a person can say of a run, and the times that follow from it."""

from __future__ import annotations

import pytest

from selfsched.core.whole_run import (
    MOST_COUNTS,
    doubts_by_hours,
    doubts_like,
    run_by_hours,
    run_like,
    times_by_hours,
    times_like,
    times_words,
)
from selfsched.errors import Refused
from selfsched.protocol import BidRow, DeviceSpan, JobState, JobView, Outcome, Placement, Resume, StandingBid


def test_hours_hold_on_the_devices_that_they_are_said_for() -> None:
    times = dict(times_by_hours(6.0, 2, 4))
    assert list(times) == [1, 2, 3, 4]
    assert times[2] == 6 * 3600
    assert times[1] == pytest.approx(times[2] * 2**0.85)
    assert times[4] == pytest.approx(times[2] / 2**0.85)


@pytest.mark.parametrize(("on", "most"), [(1, 15), (1, 16), (3, 1000), (1000, 1000), (65_536, 65_536)])
def test_many_counts_are_spread_and_the_one_said_is_among_them(on: int, most: int) -> None:
    counts = [n for n, _ in times_by_hours(1.0, on, most)]
    assert counts == sorted(set(counts))
    assert {1, on, most} <= set(counts)
    assert len(counts) <= MOST_COUNTS


@pytest.mark.parametrize(("hours", "most"), [(0.0, 2), (-1.0, 2), (float("nan"), 2), (1e9, 2), (1.0, 1)])
def test_what_is_no_length_or_fewer_devices_is_refused(hours: float, most: int) -> None:
    with pytest.raises(Refused, match="hours"):
        times_by_hours(hours, 2, most)


def a_job(fraction_done: float, rows: dict[Placement, float | None]) -> JobView:
    bid = StandingBid(rows=tuple(BidRow(placement=p, remaining_seconds=s) for p, s in rows.items()))
    return JobView(
        job="job-1", name="digits", account="ann", state=JobState.RUNNING, min_devices=1, max_devices=64,
        resume=Resume.ELASTIC, priority=1.0, age_seconds=1.0, fraction_done=fraction_done, bid=bid,
    )  # fmt: skip


def one_that_ended(
    remaining: dict[int, float], *spans: tuple[int, float], done: float = 1.0, restart: float = 0.0
) -> JobView:
    """It had so many devices for so many seconds, one after the other."""
    history, at = [], 10.0
    for count, seconds in spans:
        devices = tuple(f"d{n}" for n in range(count))
        history.append(DeviceSpan(devices=devices, from_seconds=at, to_seconds=at + seconds))
        at += seconds
    rows = tuple(
        BidRow(placement=Placement(devices=n), remaining_seconds=s, restart_seconds=restart)
        for n, s in remaining.items()
    )
    outcome = Outcome.FINISHED if done == 1.0 else Outcome.FAILED
    return a_job(done, {Placement(devices=1): None}).model_copy(
        update={
            "state": JobState.ENDED, "outcome": outcome, "history": tuple(history),
            "bid": StandingBid(rows=rows) if rows else None,
        }
    )  # fmt: skip


def test_a_run_like_another_is_what_is_left_over_the_part_that_is_left() -> None:
    rows: dict[Placement, float | None] = {
        Placement(devices=1): 300.0,
        Placement(devices=2, nodes=2): 190.0,
        Placement(devices=2): 150.0,
        Placement(devices=4): None,
    }
    assert times_like(a_job(0.75, rows)) == ((1, 1200.0), (2, 600.0))


def test_of_many_counts_some_are_asked() -> None:
    times = times_like(a_job(0.0, {Placement(devices=n): 100.0 / n for n in range(1, 65)}))
    assert len(times) == MOST_COUNTS
    assert (times[0][0], times[-1][0]) == (1, 64)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (a_job(0.99, {Placement(devices=1): 3.0}), "99% done"),
        (a_job(0.5, {Placement(devices=1): None}), "has not measured itself"),
        (one_that_ended({1: 1.0}), "never had a device"),
        (one_that_ended({}, (1, 5.0), done=0.01), "did not get far enough"),
    ],
)
def test_a_job_that_says_nothing_of_a_whole_run_is_refused(job: JobView, words: str) -> None:
    with pytest.raises(Refused, match=words):
        times_like(job)


def test_a_run_like_one_that_finished_is_what_it_held() -> None:
    """100 s on one device and 50 s on two, twice as fast there: 200 s of work on one."""
    job = one_that_ended({1: 0.4, 2: 0.2}, (1, 100.0), (2, 50.0))
    assert times_like(job) == ((1, pytest.approx(200.0)), (2, pytest.approx(100.0)))
    started = one_that_ended({1: 0.4, 2: 0.2}, (1, 110.0), (2, 60.0), restart=10.0)
    assert times_like(started) == times_like(job), "each stretch began with a start"


def test_one_whose_last_bid_tells_nothing_is_known_on_what_it_held() -> None:
    assert times_like(one_that_ended({1: 0.0, 2: 0.0}, (2, 60.0))) == ((2, pytest.approx(60.0)),)
    assert times_like(one_that_ended({}, (2, 60.0))) == ((2, pytest.approx(60.0)),)


def test_one_that_failed_on_the_way_is_known_by_its_bid_or_by_what_it_had_done() -> None:
    assert times_like(one_that_ended({1: 30.0}, (1, 70.0), done=0.7)) == ((1, pytest.approx(100.0)),)
    assert times_like(one_that_ended({}, (1, 70.0), done=0.7)) == ((1, pytest.approx(100.0)),)


def test_how_it_scales_is_in_doubt_the_more_the_further_from_what_was_said() -> None:
    doubts = dict(doubts_by_hours(times_by_hours(1.0, 2, 8), 2))
    assert doubts[2] == 0
    assert 0 < doubts[3] < doubts[4] < doubts[8]
    assert doubts[1] == pytest.approx(doubts[4])


def test_a_run_like_another_is_in_doubt_where_its_bid_is() -> None:
    rows = tuple(
        BidRow(placement=Placement(devices=n), remaining_seconds=100.0 / n, sigma_log=sigma)
        for n, sigma in ((1, 0.3), (2, 0.5))
    )
    job = a_job(0.5, {Placement(devices=1): None}).model_copy(update={"bid": StandingBid(rows=rows)})
    assert doubts_like(job, times_like(job)) == ((1, 0.0), (2, pytest.approx(0.4)))


def test_times_in_words() -> None:
    assert times_words(((1, 7200.0),)) == "2 h 00 min on 1 device"
    assert times_words(((2, 7200.0), (3, 100.0), (4, 3600.0))) == "2 h 00 min on 2 devices, 1 h 00 min on 4"


def test_counts_that_are_asked_about_are_among_the_times() -> None:
    times = dict(times_by_hours(2.0, 4, 1000, (5, 64)))
    assert {4, 5, 64} <= set(times)
    assert len(times) == MOST_COUNTS


def test_a_whole_run_knows_what_may_be_asked_of_it() -> None:
    run = run_by_hours(1.0, 2, 4)
    assert run.doubts == doubts_by_hours(run.times, 2)
    assert run.possible((4, 64, 4, 1)) == (4, 1)
    assert run.counts_words().endswith("only: 1, 2, 3, 4")
    like = run_like(a_job(0.5, {Placement(devices=2): 60.0}))
    assert (like.times, like.doubts) == (((2, 120.0),), ((2, 0.0),))
