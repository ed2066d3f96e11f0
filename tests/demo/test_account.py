"""The account of a demo, from synthetic evidence with known answers."""

from __future__ import annotations

import pytest

from selfsched.demo.account import Evidence, account_for, speedup, story_of
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
        "finished": True,
        "record": Record(seen, tuple(f"s{n + 1}" for n in range(len(seen)))),
        "rho": ((START + 9, 0.5), (START + 40, 0.75)),
    }
    return Evidence(**(values | changes))  # type: ignore[arg-type]


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


def test_steps_beside_another_job_do_not_make_the_speed_up_look_larger() -> None:
    # On one device for 40 steps beside another job, then for 40 more alone.
    own = evidence((2, 40, 0.1), (1, 40, 0.3), (1, 40, 0.18)).record
    beside = [step for step in own.batches if step.segment == 1]
    other = Record(tuple(beside), ())
    assert speedup(own, [other]) == pytest.approx(1.8)
    assert speedup(evidence((2, 40, 0.1), (1, 40, 0.3)).record, [other]) == pytest.approx(3.0)


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
