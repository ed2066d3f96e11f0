"""Times of steps, from instants of a clock that the test turns."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsched.measure.stopwatch import StepTimes, Stopwatch
from selfsched.measure.warm_up import WarmUp


class Loop:
    """Drives a stopwatch through the hooks of a training loop, as Lightning does."""

    def __init__(self, *, step: int = 0, runs_ahead: bool = False) -> None:
        self.now = 100.0
        self.compiled = 0
        warm_up = WarmUp(lambda: self.compiled)
        self.watch = Stopwatch(lambda: self.now, step=step, warm_up=warm_up, runs_ahead=runs_ahead)
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


def test_a_step_that_compiles_is_warm_up_and_one_after_a_validation_that_did_is_not() -> None:
    loop = Loop()
    for _ in range(30):
        loop.batch()
    steady = loop.batch()
    loop.compiled += 2
    compiling = loop.batch()
    for _ in range(30):
        loop.batch()
    loop.watch.stretch_started()
    loop.compiled += 1
    loop.watch.stretch_ended("validation")
    after = loop.batch()
    assert steady is not None
    assert compiling is not None
    assert after is not None
    assert (steady.warm_up, compiling.warm_up, after.warm_up) == (False, True, False)


def test_several_global_steps_of_one_batch_share_its_time() -> None:
    loop = Loop()
    loop.batch()
    loop.step += 1
    times = loop.batch()
    assert times is not None
    assert times.step == 3
    assert times.cycle_seconds == pytest.approx(0.36 / 2)
    assert times.seconds == pytest.approx(0.35 / 2)
    assert times.local_samples == 4
    assert times.forward_seconds is None


def test_parts_between_several_optimisers_or_backwards_are_not_told() -> None:
    loop = Loop()
    loop.batch()
    loop.watch.batch_started()
    for _ in range(2):
        loop.watch.backward_started()
        loop.wait(0.2)
        loop.watch.backward_ended()
        loop.watch.optimiser_started()
    loop.step += 1
    times = loop.watch.batch_ended(loop.step, 8)
    assert times is not None
    assert (times.forward_seconds, times.backward_seconds, times.optimiser_seconds) == (None, None, None)
    assert times.communication_seconds is None


def test_a_backward_of_the_users_own_among_passes_is_no_exchange() -> None:
    loop = Loop()
    loop.batch()
    loop.batch(optimiser=False)
    loop.watch.backward_started()
    loop.watch.backward_ended()
    times = loop.batch()
    assert times is not None
    assert (times.passes, times.communication_seconds) == (2, None)


def test_where_the_device_runs_behind_the_step_is_the_cycle_without_the_wait_for_data() -> None:
    loop = Loop(runs_ahead=True)
    loop.batch()
    loop.wait(0.5)
    times = loop.batch()
    assert times is not None
    assert times.cycle_seconds == pytest.approx(0.86)
    assert times.seconds == pytest.approx(0.85)
    assert (times.forward_seconds, times.backward_seconds, times.optimiser_seconds) == (None, None, None)


def test_a_wait_for_data_that_cannot_be_seen_is_unknown() -> None:
    loop = Loop()
    loop.watch.sees_fetches = False
    times = loop.batch()
    assert times is not None
    assert times.data_seconds is None


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


HOOKS = (
    "fetch_started", "fetch_ended", "epoch_started", "batch_started", "backward_started", "backward_ended",
    "optimiser_started", "stretch_started",
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.booleans(),
    st.lists(
        st.tuples(
            st.sampled_from([*HOOKS, "batch_ended", "stretch_ended"]),
            st.sampled_from([0.0, 1e-6, 0.1, 60.0, 1e9, -1e-6, -5.0, -1e9]),
            st.integers(0, 3),
        ),
        max_size=60,
    ),
)
def test_hooks_in_any_order_on_any_clock_give_times_that_can_be(
    runs_ahead: bool, calls: list[tuple[str, float, int]]
) -> None:
    loop = Loop(runs_ahead=runs_ahead)
    for hook, passed, steps in calls:
        loop.wait(passed)
        loop.step += steps if hook == "batch_ended" else 0
        if hook == "batch_ended":
            times = loop.watch.batch_ended(loop.step, 4)
            told = [] if times is None else [times.seconds, times.data_seconds, times.cycle_seconds]
            assert all(s is None or 0.0 <= s < math.inf for s in told)
        elif hook == "stretch_ended":
            stretch = loop.watch.stretch_ended("validation")
            assert stretch is None or 0.0 <= stretch.seconds < math.inf
        else:
            getattr(loop.watch, hook)()


def test_batches_without_a_step_take_no_memory() -> None:
    loop = Loop()
    for _ in range(200):
        assert loop.batch(optimiser=False) is None
    assert loop.watch.open_batches == 200
    assert not any(isinstance(value, list) and value for value in vars(loop.watch).values())
