"""Replayed runs: the events of a run whose truth is known, fed to the very `JobModel`.

The clock is virtual; events come as a rank would send them: steps in batches, at most two a
second, warm-up marked by the stopwatch's own rule, validations, checkpoints and ends of epochs
as stretches, segments with their restarts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench._forecast_score import (
    MILESTONES,
    Noted,
    Row,
    RunName,
    mean_rate_seconds,
    milestone_step,
    rows_of,
)
from bench._forecast_truth import Truth
from selfsched.core.calibration import Calibration
from selfsched.core.events import (
    Checked,
    CheckpointSaved,
    FitFinished,
    FitStarted,
    Progressed,
    StepsTimed,
    StepTiming,
    StretchTimed,
)
from selfsched.core.job_model import JobModel
from selfsched.measure.fit_meter import MAX_BATCHED_STEPS, SEND_EVERY_SECONDS
from selfsched.measure.warm_up import WarmUp

FORECASTS = 20
"""So many are made along the way besides those that are noted."""


class _Deaf:
    """A model that hears nothing: for finding out when a run ends."""

    def observe(self, event: Any, now: float) -> None:
        """Nothing is learned."""

    def segment_started(self, devices: int, now: float) -> None:
        """As `observe`."""


class Replay:
    """Plays one run to its end.

    Args:
        truth: of the run.
        model: what is told and asked; None: a new one.
        calibration: what earlier runs taught it.
    """

    def __init__(self, truth: Truth, model: Any = None, *, calibration: Calibration | None = None) -> None:
        self.truth = truth
        most = max(2, *(devices for devices, _ in truth.plan), 0)
        self.model = model or JobModel(
            hardware="cpu", min_devices=1, max_devices=most, calibration=calibration
        )
        self.noted: list[Noted] = []
        self._now = self._trained_from = 1000.0
        self._step = 0
        self._warm_up: WarmUp | None = None
        """Of the segment, from its first step on."""
        self._batch: list[StepTiming] = []
        self._devices = 1
        self._done_epochs = 0
        self._elapsed = 0.0

    def rows(self) -> list[Row]:
        """Play it, and hold its forecasts against its end."""
        truth = self.truth
        finished_at = self.play()
        name = RunName(
            name=f"{truth.family}-{truth.seed}", kind=truth.family, source="replay",
            resized=truth.resized, seed=truth.seed,
        )  # fmt: skip
        return rows_of(self.noted, finished_at, name)

    def play(self) -> float:
        """Play it to its end; when that was."""
        truth = self.truth
        self._find_end()
        self._play_steps(truth.steps, {milestone_step(truth.steps, at): at for at in MILESTONES})
        self._flush()
        self._tell(FitFinished(fit=1, step=truth.steps, epoch=self._done_epochs, metrics={}))
        self.model.segment_ended(self._now)
        return self._now

    def _play_steps(self, steps: int, marks: dict[int, float]) -> None:
        starts = {step: devices for devices, step in self.truth.plan}
        looked = max(1, steps // FORECASTS)
        for step in range(steps):
            if step in starts:
                self._move(starts[step], step)
            self._one_step(step)
            last_of_epoch = self._is_last_of_epoch(step)
            if last_of_epoch or step + 1 in marks or step + 1 in starts or self._is_time_to_send():
                self._flush()
            if step + 1 in marks:
                self._note(marks[step + 1])
            elif step % looked == 0 and marks:
                self.model.forecast(self._devices, self._now)  # as a callback does once a second
            if self._is_out_of_time():
                return
            if last_of_epoch:
                self._end_epoch(step + 1)

    # --- parts of a run -----------------------------------------------------------------------

    def _find_end(self) -> None:
        """For max_time: at which step it strikes."""
        if self.truth.max_seconds is not None:
            trial = Replay(self.truth, _Deaf())
            trial._play_steps(self.truth.limit_steps, {})
            self.truth.steps = trial._step

    def _is_out_of_time(self) -> bool:
        limit = self.truth.max_seconds
        return limit is not None and self._elapsed + self._now - self._trained_from >= limit

    def _cost(self, step: int) -> float:
        truth = self.truth
        since = step - max(first for _, first in truth.plan if first <= step)
        cost = float(truth.step_seconds[step])
        if since == 0:
            return cost * truth.first_step_factor
        if since <= truth.settling_steps:
            return cost * (1.0 + 0.5 * (1.0 - since / (truth.settling_steps + 1)))
        return cost

    def _move(self, devices: int, step: int) -> None:
        truth = self.truth
        if step:
            self._flush()
            self._now += truth.save_seconds
            self._tell(
                CheckpointSaved(fit=1, step=step, path=Path("c"), size_bytes=3 * truth.gradient_bytes,
                                seconds=truth.save_seconds)
            )  # fmt: skip
            self._elapsed += self._now - self._trained_from
            self.model.segment_ended(self._now)
        self.model.segment_started(devices, self._now)
        self._now += truth.start_seconds
        self._devices, self._warm_up, self._trained_from = devices, None, self._now
        self._tell(FitStarted(**self._facts(step)))

    def _facts(self, step: int) -> dict[str, Any]:
        truth = self.truth
        stated = truth.length_is_stated
        samples = 32 if truth.batches is None else int(truth.batches[step])
        epochs = self._epochs()
        limit = epochs * truth.epoch_steps if truth.batches is not None else truth.limit_steps
        left = max(0, epochs - step // truth.epoch_steps)
        return {
            "fit": 1, "package": "lightning", "global_batch": samples, "reference_devices": 1, "step": step,
            "planned_steps": limit if stated else None,
            "steps_per_epoch": truth.epoch_steps if stated else None,
            "max_epochs": epochs if truth.counts_epochs else None,
            "max_seconds": truth.max_seconds, "elapsed_seconds": self._elapsed,
            "validations": (left if truth.validation_seconds else 0) if stated else None,
            "validation_batches": round(
                truth.validation_seconds / (truth.validation_pass_share * float(truth.step_seconds.mean()))
            ),
            "checkpoints_per_epoch": 1.0 if truth.checkpoint_seconds else 0.0,
            "early_stopping": truth.rule is not None,
            "stopping": (truth.rule,) if truth.rule is not None else (),
            "allowed_devices": (1, 2, 4), "gradient_bytes": truth.gradient_bytes, "at": self._now,
        }  # fmt: skip

    def _epochs(self) -> int:
        truth = self.truth
        if truth.batches is None:
            return -(-truth.limit_steps // truth.epoch_steps)
        return -(-int(truth.batches.sum() / truth.batches[0]) // truth.epoch_steps)

    def _is_last_of_epoch(self, step: int) -> bool:
        truth = self.truth
        if truth.batches is None:
            return (step + 1) % truth.epoch_steps == 0
        seen = float(truth.batches[: step + 1].sum() / truth.batches[0])
        return seen >= (self._done_epochs + 1) * truth.epoch_steps - 1e-6

    def _one_step(self, step: int) -> None:
        cycle = self._cost(step)
        known = None if self._warm_up is None else cycle
        self._warm_up = self._warm_up or WarmUp()
        self._now += cycle
        samples = 32 if self.truth.batches is None else int(self.truth.batches[step])
        self._batch.append(
            StepTiming(
                step=step + 1, seconds=0.95 * cycle, data_seconds=0.02 * cycle,
                cycle_seconds=known, local_samples=max(1, samples // self._devices),
                warm_up=self._warm_up.judge(known, self._now),
            )
        )  # fmt: skip
        self._step = step + 1

    def _is_time_to_send(self) -> bool:
        seconds = sum(timing.seconds for timing in self._batch[-64:])
        return seconds >= SEND_EVERY_SECONDS or len(self._batch) >= MAX_BATCHED_STEPS

    def _flush(self) -> None:
        if self._batch:
            self._tell(StepsTimed(timings=tuple(self._batch)))
            self._batch = []
        self._tell_position(self._done_epochs)

    def _tell_position(self, epoch: int) -> None:
        batches = self.truth.batches
        samples = 32 * self._step if batches is None else int(batches[: self._step].sum())
        self._tell(Progressed(fit=1, step=self._step, epoch=epoch, samples=samples, at=self._now))

    def _end_epoch(self, step: int) -> None:
        truth = self.truth
        wiggle = 1.0 + 0.05 * ((step * 7919) % 13 - 6) / 6
        if truth.validation_seconds:
            first = 1.3 if self._done_epochs == 0 else 1.0
            self._stretch("validation", truth.validation_seconds * wiggle * first)
        if truth.rule is not None:
            value = truth.curve[self._done_epochs]
            self._tell(Checked(step=step, values={truth.rule.monitor: value}))
        if truth.checkpoint_seconds:
            self._stretch("checkpoint_save", truth.checkpoint_seconds * wiggle)
        self._done_epochs += 1
        self._tell_position(self._done_epochs)
        if step < truth.steps:
            self._stretch("epoch_end", truth.epoch_gap_seconds * wiggle)

    def _stretch(self, kind: Any, seconds: float) -> None:
        self._now += seconds
        size = 3 * self.truth.gradient_bytes if kind == "checkpoint_save" else None
        self._tell(StretchTimed(stretch=kind, seconds=seconds, step=self._step, size_bytes=size))

    def _tell(self, event: Any) -> None:
        self.model.observe(event, self._now)

    def _note(self, at: float) -> None:
        truth, model = self.truth, self.model
        later = [(devices, step) for devices, step in truth.plan if step > self._step]
        ours = model.forecast_over(later, self._now) if later else model.forecast(model.devices, self._now)
        facts = self._facts(0)
        limit = facts["planned_steps"]
        elapsed = self._now - 1000.0 - truth.start_seconds
        self.noted.append(
            Noted(
                at=at, made_at=self._now, ours=ours, end_is_unknown=model.progress(self._now).end_is_unknown,
                mean_rate_seconds=mean_rate_seconds(elapsed, self._step, limit),
            )
        )  # fmt: skip
