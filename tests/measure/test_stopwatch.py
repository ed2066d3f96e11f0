"""Times of steps, from instants of a clock that the test turns."""

from __future__ import annotations

import pytest

from selfsched.measure.stopwatch import (
    ALWAYS_WARM_UP_STEPS,
    WARM_UP_SECONDS,
    WARM_UP_STEPS,
    StepTimes,
    Stopwatch,
)


class Loop:
    """Drives a stopwatch through the hooks of a training loop, as Lightning does."""

    def __init__(self, *, step: int = 0) -> None:
        self.now = 100.0
        self.watch = Stopwatch(lambda: self.now, step=step)
        self.step = step

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def batch(self, *, optimiser: bool = True, data: float = 0.01, backward: float = 0.2) -> StepTimes | None:
        self.watch.fetch_started()
        self.wait(data)
        self.watch.fetch_ended()
        self.gap = self.watch.batch_started()
        self.wait(0.1)
        self.watch.backward_started()
        self.wait(backward)
        self.watch.backward_ended()
        if optimiser:
            self.watch.optimiser_started()
            self.wait(0.05)
            self.step += 1
        return self.watch.batch_ended(self.step, 8)


def test_a_step_is_told_in_its_parts() -> None:
    loop = Loop()
    loop.batch()
    loop.wait(0.03)
    times = loop.batch()
    assert times is not None
    assert times.step == 2
    assert times.seconds == pytest.approx(0.35)
    assert times.data_seconds == pytest.approx(0.01)
    assert times.cycle_seconds == pytest.approx(0.03 + 0.01 + 0.35)
    assert times.forward_seconds == pytest.approx(0.1)
    assert times.backward_seconds == pytest.approx(0.2)
    assert times.optimiser_seconds == pytest.approx(0.05)
    assert (times.local_samples, times.passes) == (8, 1)
    assert times.communication_seconds is None


def test_accumulation_passes_are_one_step_and_tell_the_exchange() -> None:
    loop = Loop()
    loop.batch()
    assert loop.batch(optimiser=False, backward=0.2) is None
    assert loop.batch(optimiser=False, backward=0.2) is None
    times = loop.batch(backward=0.5)
    assert times is not None
    assert (times.passes, times.local_samples) == (3, 24)
    assert times.seconds == pytest.approx(3 * 0.1 + 0.2 + 0.2 + 0.5 + 0.05)
    assert times.data_seconds == pytest.approx(0.03)
    assert times.communication_seconds == pytest.approx(0.3)


def test_the_first_step_of_a_segment_has_no_cycle() -> None:
    times = Loop(step=70).batch()
    assert times is not None
    assert (times.step, times.cycle_seconds) == (71, None)


def test_validation_and_checkpoints_are_taken_out_once_where_they_lie_within_each_other() -> None:
    loop = Loop()
    loop.batch()
    loop.watch.stretch_started()
    loop.wait(5.0)
    loop.watch.stretch_started()
    loop.wait(2.0)
    save = loop.watch.stretch_ended("checkpoint_save", size_bytes=9)
    validation = loop.watch.stretch_ended("validation")
    times = loop.batch()
    assert save is not None
    assert validation is not None
    assert times is not None
    assert (save.seconds, save.size_bytes) == (pytest.approx(2.0), 9)
    assert validation.seconds == pytest.approx(7.0)
    assert times.cycle_seconds == pytest.approx(0.36)


def test_the_gap_between_epochs_is_a_stretch_of_its_own() -> None:
    loop = Loop()
    loop.batch()
    loop.watch.stretch_started()
    loop.wait(3.0)
    loop.watch.stretch_ended("validation")
    loop.wait(1.0)
    loop.watch.epoch_started()
    times = loop.batch(data=0.5)
    assert loop.gap is not None
    assert (loop.gap.stretch, loop.gap.seconds) == ("epoch_end", pytest.approx(1.5))
    assert times is not None
    assert times.cycle_seconds == pytest.approx(0.35)
    assert times.data_seconds == 0.0


def test_the_first_epoch_begins_without_a_gap() -> None:
    loop = Loop()
    loop.watch.epoch_started()
    loop.batch()
    assert loop.gap is None


def test_the_first_steps_are_warm_up_and_fewer_of_them_where_steps_are_long() -> None:
    quick, slow = Loop(), Loop()
    quick_flags, slow_flags = [], []
    for _ in range(WARM_UP_STEPS + 5):
        for loop, flags, pause in ((quick, quick_flags, -0.3), (slow, slow_flags, WARM_UP_SECONDS)):
            times = loop.batch()
            assert times is not None
            flags.append(times.warm_up)
            loop.wait(pause)
    assert sum(quick_flags) == WARM_UP_STEPS
    assert sum(slow_flags) == ALWAYS_WARM_UP_STEPS
    assert quick_flags == sorted(quick_flags, reverse=True)


def test_a_clock_that_jumps_back_gives_no_negative_time() -> None:
    loop = Loop()
    loop.batch()
    loop.wait(-50.0)
    times = loop.batch()
    assert times is not None
    assert times.cycle_seconds == 0.0
    assert times.seconds == 0.0


def test_an_end_without_a_beginning_is_ignored() -> None:
    loop = Loop()
    loop.watch.fetch_ended()
    assert loop.watch.stretch_ended("validation") is None
