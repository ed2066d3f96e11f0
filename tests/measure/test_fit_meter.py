"""One fit measured: hooks in, events out, of a loop that the test drives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from measure.test_devices import Ddp, Device
from measure.test_devices import Event as DeviceEvent

from selfsched.core.events import DevicesObserved, FitStarted, Progressed, StepsTimed, StretchTimed, Warned
from selfsched.measure.communication import ENOUGH
from selfsched.measure.device_marks import MARK_EVERY_STEPS, DeviceMarks
from selfsched.measure.device_watch import LOOK_EVERY_SECONDS, DeviceWatch
from selfsched.measure.fit_meter import MAX_BATCHED_STEPS, FitMeter
from selfsched.measure.nvml import DeviceReading

FACTS = FitStarted(
    fit=1, package="lightning", global_batch=8, reference_devices=1, step=0, planned_steps=None
)


class Fit:
    """A Trainer's loop without the Trainer; its clock stands still unless it is turned."""

    def __init__(self, *, world: int = 1, model: Any = None, **parts: Any) -> None:
        self.now = 50.0
        self.trainer = SimpleNamespace(
            world_size=world, strategy=SimpleNamespace(model=model), global_step=0, current_epoch=0,
            accumulate_grad_batches=1, callback_metrics={}, fit_loop=SimpleNamespace(epoch_loop=self._loop()),
            save_checkpoint=lambda path, **_: self.wait(2.0),
        )  # fmt: skip
        self.events: list[Any] = []
        module = SimpleNamespace(device=torch.device("cpu"))
        self.meter = FitMeter(
            self.trainer,
            module,
            facts=FACTS,
            samples=0,
            send=self.events.append,
            clock=lambda: self.now,
            **parts,
        )

    @staticmethod
    def _loop() -> Any:
        return SimpleNamespace()  # a Lightning without the names that tell of fetches

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def step(self, passes: int = 1, exchange: float = 0.0) -> None:
        for number in range(passes):
            last = number == passes - 1
            self.wait(0.001)
            gap = self.meter.stopwatch.batch_started()
            self.meter.batch_opened(gap)
            self._part(0.002, self.meter.stopwatch.backward_started, "forward_ended")
            self._part(0.003 + exchange * last, self.meter.stopwatch.backward_ended, "backward_ended")
            self.trainer.global_step += last
            self.meter.batch_ended(torch.zeros(4, 2))

    def _part(self, seconds: float, hook: Callable[[], None], mark: str) -> None:
        self.wait(seconds)
        hook()
        if self.meter.marks is not None:
            getattr(self.meter.marks, mark)()

    def told(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def timings(self) -> list[Any]:
        self.meter.flush({})
        return [timing for event in self.told(StepsTimed) for timing in event.timings]


def test_steps_are_told_in_batches_with_samples_of_all_ranks() -> None:
    fit = Fit(world=2)
    for _ in range(300):
        fit.step()
    assert [timing.step for timing in fit.timings] == list(range(1, 301))
    assert len(fit.told(StepsTimed)) < 10
    assert fit.told(Progressed)[-1].samples == 300 * 4 * 2
    assert {timing.local_samples for timing in fit.timings} == {4}


def test_a_wait_for_data_without_lightnings_names_is_unknown() -> None:
    fit = Fit()
    fit.step()
    assert fit.timings[0].data_seconds is None


def test_more_steps_than_a_batch_holds_are_counted_and_not_kept() -> None:
    fit = Fit()
    fit.meter._next_send = float("inf")  # nobody flushes: a training thread that is faster than any
    for _ in range(MAX_BATCHED_STEPS + 7):
        fit.step()
    assert len(fit.timings) == MAX_BATCHED_STEPS
    assert fit.told(StepsTimed)[0].dropped == 7


def test_accumulation_passes_of_one_rank_are_no_exchange() -> None:
    fit = Fit()
    for _ in range(40):
        fit.step(passes=2, exchange=0.01)
    assert {timing.communication_seconds for timing in fit.timings} == {None}


@pytest.mark.parametrize(("ddp_ms", "warnings"), [(9.0, 0), (2.0, 1)])
def test_passes_tell_the_exchange_and_a_ddp_that_says_otherwise_is_told_once(
    ddp_ms: float, warnings: int
) -> None:
    ddp = Ddp()
    fit = Fit(world=2, model=ddp)
    for iteration in range(20 + 2 * ENOUGH):
        ddp.sample(iteration, ddp_ms)
        ddp.data["has_rebuilt_buckets"] = 1
        fit.step(passes=2, exchange=0.010)
        fit.meter.flush({})
    steady = [timing for timing in fit.timings if not timing.warm_up]
    assert steady[-1].communication_seconds == pytest.approx(0.010)
    assert len(fit.told(Warned)) == warnings
    assert all(event.code == "communication_differs" and not event.is_printed for event in fit.told(Warned))


def test_without_passes_the_last_step_of_a_batch_carries_ddps_sample() -> None:
    ddp = Ddp()
    fit = Fit(world=2, model=ddp)
    ddp.sample(3, 6.0)
    fit.step()
    fit.step()
    assert [timing.communication_seconds for timing in fit.timings] == [None, pytest.approx(0.006)]


def test_parts_come_from_the_device_where_there_are_marks() -> None:
    device = Device()
    fit = Fit(marks=DeviceMarks(lambda: DeviceEvent(device)))
    device.done = 10_000
    for _ in range(MARK_EVERY_STEPS):
        fit.step()
    assert [timing.forward_seconds for timing in fit.timings] == [None] * (MARK_EVERY_STEPS - 1) + [0.01]
    assert fit.timings[-1].backward_seconds == pytest.approx(0.01)


def test_what_was_seen_of_devices_is_told_and_the_watch_closed() -> None:
    now = 0.0

    def read() -> Sequence[DeviceReading]:
        return [DeviceReading(device="GPU-1", held_back=frozenset({"heat"}), clock_ratio=0.6)]

    watch = DeviceWatch(["GPU-1"], read, clock=lambda: now)
    fit = Fit(watch=watch)
    for _ in range(2):
        now += LOOK_EVERY_SECONDS
        watch.look()
    fit.step()
    fit.meter.flush({})
    (told,) = fit.told(DevicesObserved)
    assert told.devices[0].held_back == {"heat": 1.0}
    fit.meter.close()
    assert watch._ended.is_set()


def test_checkpoints_are_stretches_unless_who_writes_them_tells() -> None:
    fit = Fit(saved_elsewhere=Path("/run"))
    fit.step()
    fit.trainer.save_checkpoint("/run/a.ckpt")
    fit.trainer.save_checkpoint("/else/b.ckpt")
    fit.step()
    (told,) = fit.told(StretchTimed)
    assert (told.stretch, told.seconds) == ("checkpoint_save", pytest.approx(2.0))
    assert fit.timings[-1].cycle_seconds == pytest.approx(0.006)
    fit.meter.close()


def test_under_a_launcher_it_is_said_that_no_step_is_counted() -> None:
    fit = Fit()
    meter = fit.meter
    for _ in range(1000):
        meter.stopwatch.batch_started()
        meter.batch_ended(torch.zeros(4, 2))
    (said,) = fit.told(Warned)
    assert said.code == "no_steps"
    assert "did not rise in 1000 batches" in said.message
