"""What a person can say of a run, and the times that follow from it."""

from __future__ import annotations

import pytest

from selfsched.core.whole_run import MOST_COUNTS, times_by_hours, times_like, times_words
from selfsched.errors import Refused
from selfsched.protocol import BidRow, JobState, JobView, Placement, Resume, StandingBid


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
    with pytest.raises(Refused, match=r"--hours|--most"):
        times_by_hours(hours, 2, most)


def a_job(fraction_done: float, rows: dict[Placement, float | None]) -> JobView:
    bid = StandingBid(rows=tuple(BidRow(placement=p, remaining_seconds=s) for p, s in rows.items()))
    return JobView(
        job="job-1", name="digits", account="ann", state=JobState.RUNNING, min_devices=1, max_devices=64,
        resume=Resume.ELASTIC, priority=1.0, age_seconds=1.0, fraction_done=fraction_done, bid=bid,
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
    ],
)
def test_a_job_that_says_nothing_of_a_whole_run_is_refused(job: JobView, words: str) -> None:
    with pytest.raises(Refused, match=words):
        times_like(job)


def test_times_in_words() -> None:
    assert times_words(((1, 7200.0),)) == "2 h 00 min on 1 device"
    assert times_words(((2, 7200.0), (3, 100.0), (4, 3600.0))) == "2 h 00 min on 2 devices, 1 h 00 min on 4"


def test_counts_that_are_asked_about_are_among_the_times() -> None:
    times = dict(times_by_hours(2.0, 4, 1000, (5, 64)))
    assert {4, 5, 64} <= set(times)
    assert len(times) == MOST_COUNTS
