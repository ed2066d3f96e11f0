"""One fit on rank 0, measured: hooks of the training loop in, events out.

Joins the stopwatch, communication, device marks and newest metrics, and sends them in
batches, at most two a second, so that a step costs a few clock readings and a tuple.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from selfsched.core.events import (
    DeviceObserved,
    Event,
    FitStarted,
    Progressed,
    StepsTimed,
    StretchTimed,
    Warned,
)
from selfsched.elastic.ends import checked
from selfsched.elastic.segment import boottime
from selfsched.measure.communication import CommunicationMeter
from selfsched.measure.device_marks import DeviceMarks
from selfsched.measure.device_watch import DeviceWatch
from selfsched.measure.fit_facts import samples_in
from selfsched.measure.hardware import gpu_uuids
from selfsched.measure.lightning_names import compilations, unwatch_fetching, watch_fetching
from selfsched.measure.metrics import MetricsReader
from selfsched.measure.nvml import NvmlReader
from selfsched.measure.stopwatch import StepTimes, Stopwatch
from selfsched.measure.warm_up import WarmUp

SEND_EVERY_SECONDS = 0.5
ALONE_EVERY_SECONDS = 1.0
ALONE_EVERY_SHARE = 0.01
ALONE_AT_MOST_SECONDS = 5.0
"""With no supervisor that waits for news: the older the fit, the less is new each second."""
FIRST_SEND_SECONDS = 0.1
STUCK_BATCHES = 1000
"""So many batches without a step: there will be none."""
MAX_BATCHED_STEPS = 1024
"""Steps of less than half a millisecond: the rest of a batch is counted, not told."""


class FitMeter:
    """Measures one fit of one Trainer. Not thread-safe; lives on the training thread.

    Args:
        trainer: of either Lightning package, at `on_train_start`.
        module: what it trains.
        facts: of this fit.
        samples: seen in this fit before, over all ranks.
        send: takes the events.
        saved_elsewhere: checkpoints below this directory are reported by who writes them;
            None: no launcher, and nobody who reads the metrics.
        marks: of the device's stream; None: CUDA's, where the module is on a GPU.
        watch: over the devices; None: NVML's, where they are GPUs. It is closed with the meter.
        clock: seconds; the default stands still while the machine is suspended.
    """

    def __init__(
        self,
        trainer: Any,
        module: Any,
        *,
        facts: FitStarted,
        samples: int,
        send: Callable[[Event], object],
        saved_elsewhere: Path | None = None,
        marks: DeviceMarks | None = None,
        watch: DeviceWatch | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._trainer = trainer
        self._facts = facts
        self._send = send
        self._saved_elsewhere = saved_elsewhere
        self._tells_metrics = saved_elsewhere is not None
        self._clock = clock
        self._world = int(trainer.world_size)
        self._communication = CommunicationMeter(trainer.strategy.model, self._world)
        self.marks = marks if marks is not None else _device_marks(module)
        self.stopwatch = Stopwatch(
            self._clock,
            step=facts.step,
            warm_up=WarmUp(compilations, self._communication.buckets_settled),
            runs_ahead=self.marks is not None,
        )
        """For the hooks that only read the clock: each layer of calls would cost as much again."""
        self.doubt: str | None = None
        """Why communication is not known well, in words; None: nothing speaks against it."""
        self._metrics = MetricsReader()
        self._steps: list[StepTimes] = []
        self._dropped = 0
        self._began = self._clock()
        self._next_send = self._began + FIRST_SEND_SECONDS
        self._memory = _memory_reader(module)
        self._watch = watch if watch is not None else _device_watch(trainer, module)
        self._undo: list[Callable[[], None]] = []
        self.samples = samples
        self.newest: StepTimes | None = None
        """The last optimiser step."""
        self.communication_seconds: float | None = None
        """Exposed communication of a step, newest reading."""
        self.gpus: tuple[DeviceObserved, ...] = ()
        """As last told; none on CPUs."""
        self._put_in()

    @property
    def why_no_step(self) -> str | None:
        """Why nothing could be measured though batches were trained, in words; None: there were steps."""
        batches = self.stopwatch.open_batches
        if self.newest is not None or not batches:
            return None
        return (
            f"No step could be measured: the trainer's global_step did not rise in {batches} batches. "
            "It counts the steps of the optimisers that self.optimizers() gives, not of those that "
            "use_pl_optimizer=False gives"
        )

    # --- hooks -----------------------------------------------------------------------

    def epoch_started(self) -> None:
        self.stopwatch.epoch_started()

    def batch_opened(self, gap: StretchTimed | None) -> None:
        """What is rare at a batch's start: the gap before an epoch, marks on a GPU."""
        if gap is not None:
            self._send(gap)
        if self.marks is not None:
            self.marks.batch_started()

    def batch_ended(self, batch: Any) -> int | None:
        """A batch is done; the global step when an optimiser step ended with it."""
        samples = len(batch) if isinstance(batch, Tensor) and batch.ndim else samples_in(batch)
        self.samples += samples * self._world
        times = self.stopwatch.batch_ended(self._trainer.global_step, samples)
        if times is None:
            if self.stopwatch.open_batches % STUCK_BATCHES == 0:
                self._tell_stuck()
            return None
        if self.marks is not None:
            self.marks.step_ended()
        self.newest = times
        if len(self._steps) < MAX_BATCHED_STEPS:
            self._steps.append(times)
        else:
            self._dropped += 1
        if self._clock() >= self._next_send:
            self.flush(self._trainer.callback_metrics if self._tells_metrics else {})
        return times.step

    def epoch_ended(self) -> None:
        """Between the last batch of an epoch and the first of the next."""
        self._tell_checked("epoch")
        self.flush({}, epoch=int(self._trainer.current_epoch) + 1)

    def stretch_started(self) -> None:
        self.stopwatch.stretch_started()

    def validation_ended(self) -> None:
        stretch = self.stopwatch.stretch_ended("validation")
        if stretch is not None:
            self._send(stretch)
        self._tell_checked("validation")

    def flush(self, metrics: Mapping[str, Any], *, epoch: int | None = None) -> None:
        """Send what has gathered.

        Args:
            metrics: newest logged values.
            epoch: epochs done, when one has just ended.
        """
        now = self._clock()
        self._next_send = now + self._every_seconds(now)
        if self._steps:
            timings = [step._asdict() for step in self._sampled_steps()]
            self._send(StepsTimed.model_validate({"timings": timings, "dropped": self._dropped}))
            self._steps, self._dropped = [], 0
        self._send(
            Progressed(
                fit=self._facts.fit,
                step=int(self._trainer.global_step),
                epoch=int(self._trainer.current_epoch) if epoch is None else epoch,
                samples=self.samples,
                metrics=self._metrics.read(metrics),
                at=boottime(),
                **self._memory(),
            )
        )
        observed = self._watch.take(boottime()) if self._watch is not None else None
        if observed is not None:
            self.gpus = observed.devices
            self._send(observed)

    def close(self) -> None:
        """Take every watch off the Trainer."""
        if self._watch is not None:
            self._watch.close()
        while self._undo:
            self._undo.pop()()

    # --- inside ----------------------------------------------------------------------

    def _tell_stuck(self) -> None:
        why = self.why_no_step
        if why is not None and self.stopwatch.open_batches > 2 * int(self._trainer.accumulate_grad_batches):
            self._send(Warned(code="no_steps", message=why, is_printed=False))

    def _tell_checked(self, moment: Literal["validation", "epoch"]) -> None:
        """What early stopping looks at now, if it does: its curve tells when the fit may end."""
        seen = checked(self._trainer, moment) if self._facts.stopping else None
        if seen is not None:
            self._send(seen)

    def _every_seconds(self, now: float) -> float:
        if self._tells_metrics:
            return SEND_EVERY_SECONDS
        return min(max(ALONE_EVERY_SHARE * (now - self._began), ALONE_EVERY_SECONDS), ALONE_AT_MOST_SECONDS)

    def _sampled_steps(self) -> list[StepTimes]:
        """The gathered steps; the last one carries what is only sampled."""
        steps, meter = self._steps, self._communication
        marked = self.marks.read() if self.marks is not None else None
        if not meter.exchanges:  # passes differ, but not by an exchange
            steps = [step._replace(communication_seconds=None) for step in steps]
        elif marked is not None:
            steps[-1] = steps[-1]._replace(communication_seconds=marked.exposed)
        last = steps[-1]
        if meter.exchanges:
            last = self._checked(steps)
        if marked is not None:
            last = last._replace(
                forward_seconds=marked.forward,
                backward_seconds=marked.backward,
                optimiser_seconds=marked.optimiser,
            )
        return [*steps[:-1], last]

    def _checked(self, steps: list[StepTimes]) -> StepTimes:
        """The last of these steps, with DDP's sample where its passes tell nothing."""
        meter, last = self._communication, steps[-1]
        for step in steps:
            if step.communication_seconds is not None and not step.warm_up:
                meter.accumulated(step.communication_seconds, step.seconds)
        logged = meter.read_seconds()
        if logged is not None and not meter.told_by_passes:
            last = last._replace(communication_seconds=logged)
        if last.communication_seconds is not None:
            self.communication_seconds = last.communication_seconds
        if self.doubt is None:
            self.doubt = meter.disagreement()
            if self.doubt is not None:
                self._send(Warned(code="communication_differs", message=self.doubt, is_printed=False))
        return last

    def _put_in(self) -> None:
        trainer = self._trainer
        clock = self.stopwatch
        clock.sees_fetches = watch_fetching(trainer, clock.fetch_started, clock.fetch_ended)
        if clock.sees_fetches:
            self._undo.append(lambda: unwatch_fetching(trainer))
        save = trainer.save_checkpoint
        own = "save_checkpoint" in vars(trainer)

        def timed_save(filepath: Any, *arguments: Any, **named: Any) -> None:
            self.stopwatch.stretch_started()
            try:
                save(filepath, *arguments, **named)
            finally:
                self._saved(filepath)

        def put_back() -> None:
            if own:
                trainer.save_checkpoint = save
            else:
                vars(trainer).pop("save_checkpoint", None)

        trainer.save_checkpoint = timed_save
        self._undo.append(put_back)

    def _saved(self, filepath: Any) -> None:
        stretch = self.stopwatch.stretch_ended("checkpoint_save", size_bytes=_file_bytes(filepath))
        if stretch is not None and not _lies_below(filepath, self._saved_elsewhere):
            self._send(stretch)


def _lies_below(filepath: Any, directory: Path | None) -> bool:
    try:
        return directory is not None and Path(filepath).is_relative_to(directory)
    except TypeError:
        return False  # no path of a file system


def _file_bytes(filepath: Any) -> int | None:
    try:
        path = Path(filepath)
        return path.stat().st_size if path.is_file() else None
    except (OSError, TypeError, ValueError):
        return None  # a remote address: its size is not ours to ask for


def _device_marks(module: Any) -> DeviceMarks | None:
    device = getattr(module, "device", None)
    if getattr(device, "type", "cpu") != "cuda":
        return None
    import torch

    return DeviceMarks(lambda: torch.cuda.Event(enable_timing=True))


def _device_watch(trainer: Any, module: Any) -> DeviceWatch | None:
    devices = gpu_uuids(trainer, module)
    if not devices:
        return None
    reader = NvmlReader(devices)
    watch = DeviceWatch(devices, reader.read, close=reader.close)
    watch.start()
    return watch


def _memory_reader(module: Any) -> Callable[[], dict[str, Any]]:
    """Reads the allocator's own counts: no synchronisation, nothing of the driver."""
    device = getattr(module, "device", None)
    if getattr(device, "type", "cpu") != "cuda":
        return dict
    import torch

    whole = int(torch.cuda.get_device_properties(device).total_memory)
    return lambda: {
        "peak_bytes": int(torch.cuda.max_memory_reserved(device)),
        "resident_bytes": int(torch.cuda.memory_allocated(device)),
        "device_bytes": whole,
    }
