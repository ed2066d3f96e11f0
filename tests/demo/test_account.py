"""The account of a demo, from synthetic evidence with known answers."""

from __future__ import annotations

import pytest

from selfsched.demo.account import Evidence, ForecastMade, account_for, speedup, story_of
from selfsched.witness.record import Record, WitnessedBatch

START = 1_000.0


def batches(*stretches: tuple[int, int, float], start: float = START + 5) -> tuple[WitnessedBatch, ...]:
    """(devices, steps, seconds a step), one after the other, each after a second of restart."""
    found: list[WitnessedBatch] = []
    at = start
    for number, (devices, steps, seconds) in enumerate(stretches):
        for _ in range(steps):
            at += seconds
            step = len(found) + 1
            found.append(
                WitnessedBatch(
                    epoch=0, batch=step - 1, step=step, devices=devices, segment=number,
                    seconds=seconds, at=at,
                    loss=1 / step, samples=(f"s{step}",),
                )
            )  # fmt: skip
        at += 1.0
    return tuple(found)


def evidence(*stretches: tuple[int, int, float], **changes: object) -> Evidence:
    seen = batches(*stretches)
    values: dict[str, object] = {
        "account": "notebook",
        "name": "digits",
        "registered_at": START,
        "ended_at": seen[-1].at + 1.0,
        "finished": True,
        "record": Record(seen, tuple(f"s{n + 1}" for n in range(len(seen)))),
        "rho": ((START + 9, 0.5), (START + 40, 0.75)),
    }
    return Evidence(**(values | changes))  # type: ignore[arg-type]


def made(fraction: float, after: float, devices: int, p50: float, **changes: object) -> ForecastMade:
    values = {"made_at": START + after, "fraction_done": fraction, "devices": devices, "assumption": "as_now",
              "p10_seconds": 0.9 * p50, "p50_seconds": p50, "p90_seconds": 1.1 * p50}  # fmt: skip
    return ForecastMade(**(values | changes))  # type: ignore[arg-type]


def test_segments_are_the_stretches_that_the_witness_saw() -> None:
    (job,) = account_for([evidence((2, 20, 0.1), (1, 20, 0.2), (2, 30, 0.1))]).jobs
    assert [(s.devices, s.steps) for s in job.segments] == [(2, 20), (1, 20), (2, 30)]
    first, second = job.segments[:2]
    assert (first.start_s, first.end_s) == (5.0, 7.0)
    assert second.start_s == pytest.approx(8.0)
    assert job.samples_seen_once
    assert job.rho == 0.75


def test_the_speed_up_is_that_of_a_step_and_needs_both_device_counts() -> None:
    record = evidence((2, 40, 0.1), (1, 40, 0.18)).record
    assert speedup(record) == pytest.approx(1.8)
    assert speedup(evidence((2, 40, 0.1)).record) is None
    assert speedup(evidence((2, 40, 0.1), (1, 12, 0.18)).record) is None


def test_the_first_forecast_after_each_mark_is_held_against_what_came() -> None:
    job = evidence(
        (2, 20, 0.1), (1, 20, 0.2), (2, 30, 0.1),
        forecasts=(made(0.05, 5.5, 2, 6.0), made(0.26, 6.8, 2, 5.0), made(0.3, 7.0, 2, 5.2),
                   made(0.8, 15.0, 2, 2.0)),
    )  # fmt: skip
    (told,) = account_for([job]).jobs
    assert [(f.at, f.made_at_s, f.allocation_held) for f in told.forecasts] == [
        (0.25, 6.8, False),
        (0.75, 15.0, True),
    ]
    quarter = told.forecasts[0]
    assert quarter.predicted_finish_s == pytest.approx(11.8)
    assert (quarter.low_s, quarter.high_s) == (pytest.approx(11.3), pytest.approx(12.3))
    assert quarter.actual_finish_s == pytest.approx(job.ended_at - START, abs=0.01)


def test_a_forecast_on_other_devices_than_at_the_end_did_not_hold() -> None:
    job = evidence((2, 40, 0.1), forecasts=(made(0.5, 7.0, 1, 9.0), made(0.8, 8.0, 2, 2.0)))
    (told,) = account_for([job]).jobs
    assert [f.allocation_held for f in told.forecasts] == [False, True]


def test_both_assumptions_are_told_apart() -> None:
    job = evidence(
        (2, 40, 0.1), forecasts=(made(0.5, 7.0, 2, 3.0), made(0.5, 7.1, 2, 3.5, assumption="look_ahead"))
    )
    (told,) = account_for([job]).jobs
    assert [f.assumption for f in told.forecasts] == ["as_now", "look_ahead"]


def test_a_job_that_never_trained_is_told_as_such() -> None:
    job = evidence((1, 1, 0.1), record=Record((), ()), finished=False, rho=())
    (told,) = account_for([job]).jobs
    assert (told.segments, told.forecasts, told.rho, told.samples_seen_once) == ((), (), None, False)
    assert story_of(job, START).sample_faults == ("nothing was seen",)


def test_losses_are_thinned_but_count_every_sample() -> None:
    story = story_of(evidence((2, 900, 0.1), (1, 100, 0.1)), START - 3)
    assert story.registered_s == 3.0
    assert story.losses[-1].samples == 1000
    assert len(story.losses) <= 502
    assert {point.devices for point in story.losses} == {1, 2}


def test_a_restart_on_as_many_devices_is_a_segment_of_its_own() -> None:
    (job,) = account_for([evidence((1, 20, 0.1), (1, 20, 0.1))]).jobs
    assert [s.devices for s in job.segments] == [1, 1]
