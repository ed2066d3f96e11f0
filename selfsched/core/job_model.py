"""What a job knows of itself: events in; progress, forecast, bid and reasons out.

`JobModel` joins measurement, progress, performance, forecast and bidding. It is pure: `now`
is passed in (CLOCK_BOOTTIME seconds), nothing is read, nothing happens. It lives where
segments do not end it: in the supervisor, or in rank 0 when there is none. Its state is
plain JSON, so that a resubmitted job keeps its knowledge.

A job is able to bid after its first visit: 30 steady steps, or a minute of training. A
forecast is given earlier, wide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from selfsched.core.batch_sizes import BatchSizes
from selfsched.core.bidding import (
    UNKNOWN_END_SECONDS,
    Explanation,
    aside_words,
    devices_words,
    duration_words,
    limit_words,
    saving_words,
    standing_bid,
)
from selfsched.core.calibration import Calibration
from selfsched.core.events import (
    Checked,
    CheckpointSaved,
    DevicesObserved,
    FitFinished,
    FitStarted,
    Progressed,
    StepsTimed,
    StepTiming,
    StretchTimed,
)
from selfsched.core.forecast import (
    Beside,
    ForecastLog,
    LoggedForecast,
    Remaining,
    StepCost,
    joined,
    mixed,
    remaining_time,
)
from selfsched.core.forecast_record import ForecastRecord
from selfsched.core.kept_state import EVERYTHING, PARTS, is_sound, rehearse, survives
from selfsched.core.memory import MemoryModel
from selfsched.core.performance import StepTime, documented_prior
from selfsched.core.progress import Ledger, Progress, RemainingWork
from selfsched.core.restart_cost import RestartCost
from selfsched.core.series import PRIOR_STEP_SIGMA, Series
from selfsched.core.step_knowledge import VISIT_STEPS, StepKnowledge, cycle_seconds
from selfsched.protocol import Forecast, HardwarePrior, StandingBid, StepStatistics

STATE_VERSION = 3
LONGEST_NEWS_SECONDS = 2.0
"""Steps are told in batches that are no farther apart."""
VALIDATION_PASS_SHARE = 0.4
"""A batch of a validation takes this part of a training pass: no backward pass, no optimiser."""
UNSEEN_VALIDATION_SIGMA = 0.5
UNSEEN_SAVE_SIGMA = 0.8
"""What an unmeasured one may differ by (log)."""


class JobModel:
    """One job's model of itself, over all its segments.

    Not thread-safe: one thread drives it.

    Args:
        hardware: model of the devices; what is learned holds for it.
        min_devices: smallest and
        max_devices: largest count the job wants.
        prior: of the hardware; None: the makers' documented figures.
        state: what `to_state` gave in an earlier life of this job.
        calibration: scores of other jobs of the same user; those in `state` go before.
    """

    def __init__(
        self,
        *,
        hardware: str,
        min_devices: int,
        max_devices: int,
        prior: HardwarePrior | None = None,
        state: Mapping[str, Any] | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.hardware = hardware
        self.prior = prior or documented_prior(hardware)
        self._dividing: tuple[int, ...] = tuple(range(min_devices, max_devices + 1))
        """Device counts that keep the global batch."""
        self._range = (min_devices, max_devices)
        self._record = ForecastRecord(calibration=calibration or Calibration())
        self._steps = StepKnowledge(self.prior)
        self._ledger = Ledger()
        self._restart = RestartCost()
        self._memory = MemoryModel()
        self._segments = 0
        self._devices = 0
        self._started_at: float | None = None
        self._first_step_at: float | None = None
        self._load_seconds = 0.0
        self._observed: DevicesObserved | None = None
        self._newest_start: float | None = None
        self._news_at: float | None = None
        self._news_every_seconds = 0.0
        self._is_first_segment = True
        self._last_work_at: float | None = None
        self._saved_step: int | None = None
        self._warm_up_seconds: list[float] = []
        self._present_steady = 0
        self._validation_batches, self._passes = 0, 1
        self._sizes, self._batch_changed = BatchSizes(), False
        self._trained: tuple[str, int, int] = ("", 0, 0)
        """Module, gradient bytes and global batch of what was measured; empty: not told."""
        self.unusable: tuple[str, ...] = ()
        """What of `state` is no knowledge and is learned anew, in words."""
        if state is not None:
            self._restore(state)

    # --- what happens ----------------------------------------------------------------

    def segment_started(self, devices: int, now: float) -> None:
        """The ranks of a segment on `devices` devices were ordered to start."""
        if devices < 1:
            raise ValueError(f"a segment needs at least one device, not {devices}")
        self._is_first_segment = self._devices == 0 and self._newest_start is None
        self._newest_start = now
        self._devices = devices
        self._segments += 1
        self._started_at, self._first_step_at, self._load_seconds = now, None, 0.0
        self._news_at, self._news_every_seconds = None, 0.0
        self._warm_up_seconds = []
        self._present_steady = 0
        self._sizes, self._batch_changed = BatchSizes(), False
        self._steps.went_on(devices)
        self._last_work_at = now

    def segment_ended(self, now: float) -> None:
        """The running segment is over, its devices left."""
        self._close_warm_up()
        if self._saved_step == self._ledger.step:
            self._ledger.forget_checkpoint()  # it belongs to the move, not to the training
        self._ledger.segment_ended(now)
        self._devices = 0
        self._started_at = self._first_step_at = None

    def observe(self, event: Any, now: float) -> None:
        """Take over an event of `core.events`; one that says nothing of speed is ignored."""
        if isinstance(event, StepsTimed):
            self._steps_timed(event, now)
        elif isinstance(event, FitStarted):
            self._fit_started(event)
        elif isinstance(event, Progressed):
            self._progressed(event)
        elif isinstance(event, StretchTimed):
            self._stretch_timed(event, now)
        elif isinstance(event, Checked):
            self._ledger.checked(event)
        elif isinstance(event, DevicesObserved):
            self._observed = event
        elif isinstance(event, CheckpointSaved):
            self._checkpoint_saved(event, now)
        elif isinstance(event, FitFinished):
            self._ledger.fit_finished(event)
            self._record.fit_finished(fit=event.fit, segment=self._segments, now=now)

    # --- what is known ---------------------------------------------------------------

    @property
    def devices(self) -> int:
        """Devices of the running segment; 0 when none runs."""
        return self._devices

    @property
    def fit(self) -> int:
        """Ordinal of the fit that was last begun; 0 before the first."""
        return self._ledger.fit

    @property
    def fit_finished(self) -> bool:
        return self._ledger.finished

    @property
    def allowed_devices(self) -> tuple[int, ...]:
        """Device counts to bid for: they keep the global batch, and the job fits into their memory."""
        return tuple(n for n in self._dividing if self._memory.fits(n)) or self._dividing[-1:]

    @property
    def log(self) -> ForecastLog:
        """Forecasts that were made, to be held against what came."""
        return self._record.log

    @property
    def calibration(self) -> Calibration:
        """What the ends of past fits teach of the width of intervals."""
        return self._record.calibration

    @calibration.setter
    def calibration(self, calibration: Calibration) -> None:
        self._record.calibration = calibration

    def ran_out_of_memory(self, devices: int) -> None:
        """The job needed more memory than there is on so many devices."""
        self._memory.ran_out(devices)

    def progress(self, now: float | None = None) -> Progress:
        """Where the run stands.

        Args:
            now: for a limit of time; None: as of the last event.
        """
        ledger = self._ledger
        at = now if now is not None else self._last_work_at
        return Progress(
            step=ledger.step,
            planned_steps=ledger.planned_steps,
            fraction_done=ledger.fraction_done(at if at is not None else 0.0),
            steady_steps=self._present_steady,
            epoch=ledger.epoch,
            end_is_unknown=ledger.end_is_unknown,
        )

    def forecast(self, devices: int, now: float) -> Forecast | None:
        """When the job will be done if it stays on, or moves to, `devices` devices.

        Returns:
            10-50-90 %, seconds from now; None before any evidence, or while no limit of
            the run is known. A move, or a start, is in it with its cost.
        """
        left = self._remaining(devices, now)
        if left is None or self._ledger.end_is_unknown:
            return None
        widths = self._widths(left, now)
        left = left.scaled(widths[0] * widths[1])
        forecast = left.forecast()
        if devices == self._devices:
            self._keep(forecast, left, widths, now)
        return forecast

    def forecast_over(self, stages: Sequence[tuple[int, int]], now: float) -> Forecast | None:
        """When the job will be done if its devices change along the way.

        Args:
            stages: (devices, from this global step on) of each change to come, in order.
            now: CLOCK_BOOTTIME seconds.

        Returns:
            As `forecast`, on the assumption `look_ahead`; every change is in it with its cost.
        """
        work = self._ledger.remaining(now)
        here = self._remaining(self._devices, now) if self._devices else None
        if work is None or here is None or self._ledger.end_is_unknown:
            return None
        if not stages or math.isinf(work.steps):
            return here.forecast()
        ends = [(weight, self._time_over(stages, work, steps)) for steps, weight in work.stops]
        at_limit = self._time_over(stages, work, work.steps)
        whole = mixed(ends, limit_seconds=at_limit.median_seconds) if ends else at_limit
        return whole.scaled(self._widths(None, now)[0]).forecast("look_ahead")

    def _time_over(self, stages: Sequence[tuple[int, int]], work: RemainingWork, end: float) -> Remaining:
        """Time until `end` more steps are made, devices changing along the way."""
        parts = [
            self._time_of(work.part(steps), devices, move)
            for devices, steps, move in self._stretches(stages, end)
            if steps > 0 or move > 0
        ]
        return joined([part for part in parts if part is not None])

    def _stretches(self, stages: Sequence[tuple[int, int]], left: float) -> list[tuple[int, float, float]]:
        """(devices, steps on them, cost of moving there) from here to the end."""
        counts = [self._devices, *(devices for devices, _ in stages)]
        at = [0.0, *(min(max(0.0, step - self._ledger.step), left) for _, step in stages), left]
        moves = [0.0]
        for (one, other), from_here in zip(pairwise(counts), at[1:], strict=False):
            moves.append(self._move_seconds(one, other) if from_here < left else 0.0)
        return [
            (devices, max(0.0, end - begin), move)
            for devices, (begin, end), move in zip(counts, pairwise(at), moves, strict=True)
        ]

    def standing_bid(self, current: int, now: float) -> StandingBid:
        """The table of what each allowed device count would bring.

        Args:
            current: devices the job holds; 0 when it waits.
            now: CLOCK_BOOTTIME seconds.
        """
        counts = set(self.allowed_devices) | ({current} if current else set())
        able = self._steps.is_enough_to_bid
        reference = current or min(counts)

        def remaining(devices: int) -> Remaining | None:
            return self._remaining_work_time(devices, reference, now) if able else None

        return standing_bid(
            sorted(counts),
            remaining=remaining,
            restart_seconds=lambda devices: self._move_seconds(current, devices),
            peak_bytes=self._memory.peak_bytes,
            end_is_unknown=self._ledger.end_is_unknown,
            doubt=self._steps.doubt,
        )

    def notice_seconds(self) -> float:
        """How long after an order the job is surely gone with a checkpoint (95 %)."""
        stretches = [self._steps.series(self._devices).quantile(0.95) or 0.0]
        validation = self._ledger.spans.get("validation")
        if validation is not None:
            stretches.append(validation.sketch.quantile(0.95) or 0.0)
        return max(stretches) + self._restart.longest_save_seconds(self._steps.gradient_bytes)

    def idle_seconds(self, now: float) -> float:
        """Time since the last step, validation or checkpoint (or the segment's start)."""
        if self._last_work_at is None or self._devices == 0:
            return 0.0
        return max(0.0, now - self._last_work_at)

    def step_time(self, devices: int) -> tuple[float, float] | None:
        """(median seconds, sigma of its logarithm) of a step on `devices` devices."""
        step = self._steps.step(devices)
        return None if step is None else (step.seconds, step.sigma_log)

    def statistics(self) -> tuple[StepStatistics, ...]:
        """Mergeable statistics of each device count, for the hardware's prior."""
        return self._steps.statistics(self.hardware)

    def explanation(self, now: float | None = None) -> Explanation:
        """The model for a reader: parts of a step, points, curve with band, words."""
        at = now if now is not None else (self._last_work_at or 0.0)
        steps, model = self._steps, self._steps.model()
        devices = self._devices or max(
            steps.counts, key=lambda count: steps.series(count).steady, default=self._range[0]
        )
        counts = sorted(set(self.allowed_devices) | set(steps.counts))[:256]
        return Explanation(
            devices=devices,
            parts=steps.series(devices).part_means(),
            measured=tuple(model.at(count) for count in sorted(model.seen)) if model else (),
            curve=model.curve(counts) if model else (),
            steps={count: steps.series(count).steady for count in steps.counts},
            restart_parts=self._restart.parts(steps.gradient_bytes),
            words=self._words(devices, at),
        )

    # --- events ----------------------------------------------------------------------

    def _fit_started(self, event: FitStarted) -> None:
        if self._is_of_another(event):
            self._steps.forget()
            self._memory = MemoryModel()
        self._trained = _known((event.module, event.gradient_bytes, event.global_batch), self._trained)
        self._ledger.fit_started(event)
        low, high = self._range
        allowed = tuple(n for n in sorted(set(event.allowed_devices)) if low <= n <= high)
        self._dividing = allowed or self._dividing
        self._steps.know_gradient_bytes(event.gradient_bytes)
        self._validation_batches = max(0, event.validation_batches or 0)

    def _is_of_another(self, event: FitStarted) -> bool:
        """Whether another module, or another batch in another fit, is trained than was measured."""
        module, gradient_bytes, batch = self._trained
        if (event.module and module and event.module != module) or (
            event.gradient_bytes > 0 and gradient_bytes and event.gradient_bytes != gradient_bytes
        ):
            return True
        goes_on = event.fit == self._ledger.fit and not self._is_first_segment
        return bool(not goes_on and batch and event.global_batch and event.global_batch != batch)

    def _progressed(self, event: Progressed) -> None:
        epoch, known = self._ledger.epoch, self._ledger.epoch_step_samples
        self._ledger.progressed(event)
        if not self._batch_changed and self._ledger.epoch_step_samples != known:
            # An epoch's mean is less than the usual batch by its ragged one: no other batch for that.
            self._ledger.epoch_step_samples = self._ledger.step_samples
        self._batch_changed = self._batch_changed and self._ledger.epoch == epoch
        self._memory.observe(
            self._devices, peak=event.peak_bytes, resident=event.resident_bytes, device=event.device_bytes
        )

    def _stretch_timed(self, event: StretchTimed, now: float) -> None:
        self._ledger.stretch(event)
        if event.stretch in ("validation", "checkpoint_save"):
            self._last_work_at = now
        if event.stretch == "checkpoint_save" and event.step != self._saved_step:
            self._restart.saved(event.seconds, event.size_bytes or 0)
        if event.stretch == "checkpoint_load":
            self._restart.loaded(event.seconds, event.size_bytes or 0)
            self._load_seconds += event.seconds

    def _checkpoint_saved(self, event: CheckpointSaved, now: float) -> None:
        self._last_work_at, self._saved_step = now, event.step
        self._restart.saved(event.seconds, event.size_bytes)

    def _steps_timed(self, event: StepsTimed, now: float) -> None:
        if not event.timings or self._devices == 0:
            return
        if self._first_step_at is None:
            cycles = [cycle_seconds(timing) for timing in event.timings[1:]]
            self._first_step(now, sum(cycle for cycle in cycles if cycle is not None))
        self._take_sizes(event.timings)
        warm_up, steady = self._steps.add(self._devices, event.timings)
        if self._present_steady < VISIT_STEPS:  # later ones (a compilation) are no cost of a restart
            self._warm_up_seconds += warm_up
        self._present_steady += steady
        if self._present_steady >= VISIT_STEPS:
            self._close_warm_up()
        self._ledger.stepped(max(timing.step for timing in event.timings))
        if self._news_at is not None:  # steps are told in batches: those since the last one were made, too
            self._news_every_seconds = min(max(0.0, now - self._news_at), LONGEST_NEWS_SECONDS)
        self._last_work_at = self._news_at = now

    def _take_sizes(self, timings: Sequence[StepTiming]) -> None:
        """Samples and passes of a step now: an epoch has more or fewer steps of another batch.

        Where batches vary from step to step it has as many as its loader says.
        """
        self._passes = timings[-1].passes
        for timing in timings:
            judged = self._sizes.judge(timing.local_samples * self._devices, timing.passes)
            self._batch_changed = self._batch_changed or judged.kind == "new"
        if self._sizes.vary:
            self._ledger.step_samples = None
        else:
            self._ledger.sized(self._sizes.usual)

    def _first_step(self, now: float, since: float) -> None:
        self._first_step_at = now - since
        if self._started_at is not None:
            took = self._first_step_at - self._started_at - self._load_seconds
            self._restart.started(max(0.0, took), first=self._is_first_segment)

    def _close_warm_up(self) -> None:
        level = self._steps.level(self._devices)
        if self._warm_up_seconds and level is not None and level.count:
            # The first step's own time is in `start` already.
            excess = sum(max(0.0, cycle - level.seconds) for cycle in self._warm_up_seconds[1:])
            self._restart.warmed_up(excess)
        self._warm_up_seconds = []

    # --- model -----------------------------------------------------------------------

    def _move_seconds(self, current: int, devices: int) -> float:
        return self._restart.seconds(
            from_devices=current, to_devices=devices, gradient_bytes=self._steps.gradient_bytes
        )

    def _remaining(self, devices: int, now: float) -> Remaining | None:
        if devices != self._devices:
            move = self._move_seconds(self._devices, devices)
            return self._time_of(self._ledger.remaining(now), devices, move)
        restart, elapsed = 0.0, 0.0
        if self._first_step_at is None and self._started_at is not None:
            expected = self._move_seconds(0, devices)
            restart = max(0.0, expected - max(0.0, now - self._started_at))
        elif self._last_work_at is not None:
            elapsed = min(max(0.0, now - self._last_work_at), self._longest_usual_silence(devices))
        return self._time_of(self._ledger.remaining(now), devices, restart, elapsed)

    def _remaining_work_time(self, devices: int, reference: int, now: float) -> Remaining | None:
        work = self._ledger.remaining(now)
        if work is not None and not math.isinf(work.steps):
            return self._time_of(work, devices, 0.0)
        step = self._steps.step(reference)
        if step is None:
            return None
        # No count of steps ends this run: in the time that is left, or stands in for it, other
        # devices would do the same work sooner.
        seconds = UNKNOWN_END_SECONDS if work is None or work.cap_seconds is None else work.cap_seconds
        steps = seconds / max(self._cost(step, seconds / max(step.seconds, 1e-9)).seconds, 1e-9)
        return self._time_of(RemainingWork(steps=steps), devices, 0.0)

    def _time_of(
        self, work: RemainingWork | None, devices: int, restart_seconds: float, elapsed_seconds: float = 0.0
    ) -> Remaining | None:
        step = self._steps.step(devices)
        if work is None or step is None:
            return None
        beside = Beside(
            spans=self._ledger.usual_spans(), expected=self._expected_stretches(step),
            restart_seconds=restart_seconds, restart_sigma_log=self._restart.sigma_log,
            elapsed_seconds=elapsed_seconds,
        )  # fmt: skip
        return remaining_time(work, self._cost(step, work.steps), beside)

    def _expected_stretches(self, step: StepTime) -> dict[str, tuple[float, float]]:
        """(seconds, sigma) of a validation or checkpoint before the first was measured."""
        save = self._restart.parts(self._steps.gradient_bytes)["save"]
        expected = {"checkpoint_save": (save, UNSEEN_SAVE_SIGMA)}
        if self._validation_batches:
            share = VALIDATION_PASS_SHARE * step.seconds / max(1, self._passes)
            expected["validation"] = (self._validation_batches * share, UNSEEN_VALIDATION_SIGMA)
        return expected

    def _cost(self, step: StepTime, steps: float) -> StepCost:
        """What the next `steps` steps cost each, wandering included."""
        own = self._steps.series(step.devices)
        level = own.level()
        if level is not None and level.count:
            factor, wander = own.ahead(steps)
        else:  # wanders as the job did elsewhere
            factor, wander = 1.0, self._fullest().ahead(steps)[1]
        return StepCost(
            seconds=step.seconds * factor,
            sigma_log=math.hypot(step.sigma_log, wander),
            step_sigma=level.step_sigma if level is not None else PRIOR_STEP_SIGMA,
        )

    def _fullest(self) -> Series:
        counts = self._steps.counts
        return max(map(self._steps.series, counts), key=lambda s: s.steady) if counts else Series()

    def _whole_time(self, devices: int) -> Remaining | None:
        """What all the fit's steps would have taken on `devices` devices throughout."""
        return self._time_of(self._ledger.whole(), devices, 0.0)

    def _longest_usual_silence(self, devices: int) -> float:
        usual = self._steps.series(devices).quantile(0.5) or 0.0
        validation = self._ledger.spans.get("validation")
        return max(usual, validation.running.mean if validation else 0.0, self._news_every_seconds)

    def _widths(self, left: Remaining | None, now: float) -> tuple[float, float]:
        """What scores of earlier forecasts, of past fits and of this one, make of the interval."""
        return self._record.widths(left, fit=self._ledger.fit, segment=self._segments, now=now)

    def _keep(self, forecast: Forecast, left: Remaining, widths: tuple[float, float], now: float) -> None:
        step = self.step_time(self._devices)
        self._record.keep(
            LoggedForecast(
                made_at=now, devices=self._devices, segment=self._segments, step=self._ledger.step,
                fraction_done=self._ledger.fraction_done(now), step_seconds=step[0] if step else 0.0,
                sigma_log=left.sigma_log, p10_seconds=forecast.p10_seconds,
                p50_seconds=forecast.p50_seconds, p90_seconds=forecast.p90_seconds,
                fit=self._ledger.fit, width=widths[0], surprise=widths[1],
            )
        )  # fmt: skip

    def _words(self, devices: int, now: float) -> tuple[str, ...]:
        step = self.step_time(devices)
        if step is None:
            return ("No step has been measured yet.",)
        words = [f"A step takes {duration_words(step[0])} on {devices_words(devices)}."]
        done = self._ledger.all_done
        here = self._whole_time(devices) if done else self._remaining_work_time(devices, devices, now)
        others = {}
        for count in self.allowed_devices:
            there = self._whole_time(count) if done else self._remaining_work_time(count, devices, now)
            if count != devices and there is not None:
                others[count] = (there, 0.0 if done else self._move_seconds(devices, count))
        series = self._steps.series(devices)
        cycle_seconds = series.cycles.mean if series.cycles.count else step[0]
        words += limit_words(series.part_means(), devices, cycle_seconds)
        whole = self._whole_time(devices)
        words += aside_words(self._ledger.seconds_aside(), whole.median_seconds if whole else 0.0)
        if here is not None and here.median_seconds > 0:
            words += saving_words(here, others, in_hindsight=done)
        drift = None if done else series.drift()
        if drift is not None:
            words.append(drift.words(self._observed))
        words += self._memory.words(self._dividing)
        if self._ledger.has_no_known_limit and not self._ledger.finished:
            words.append("The length of an epoch is unknown until one has been seen.")
        elif self._ledger.early_stopping:
            words.append(self._ledger.stopping_words())
        return tuple(words)

    # --- state -----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Everything learned, as plain JSON values; a running segment is not in it."""
        return {
            "version": STATE_VERSION,
            "hardware": self.hardware,
            "allowed_devices": list(self._dividing),
            "steps": self._steps.to_state(),
            "ledger": self._ledger.to_state(),
            "restart": self._restart.to_state(),
            "gradient_bytes": self._steps.gradient_bytes,
            "trained": list(self._trained),
            "memory": self._memory.to_state(),
            "segments": self._segments,
            "record": self._record.to_state(),
        }

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        *,
        hardware: str,
        min_devices: int,
        max_devices: int,
        prior: HardwarePrior | None = None,
    ) -> JobModel:
        """The model of an earlier life of this job; times of other hardware are dropped."""
        return cls(
            hardware=hardware, min_devices=min_devices, max_devices=max_devices, prior=prior, state=state
        )

    def _restore(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION:
            self.unusable = (EVERYTHING,)
            return
        low, high = self._range
        told, segments = state.get("allowed_devices"), state.get("segments")
        allowed = [n for n in told if type(n) is int and low <= n <= high] if isinstance(told, list) else []
        self._dividing = tuple(allowed) or self._dividing
        gradient_bytes = state.get("gradient_bytes")
        if type(gradient_bytes) is int and is_sound(gradient_bytes):
            self._steps.know_gradient_bytes(gradient_bytes)
        self._segments = segments if type(segments) is int and 0 <= segments < 2**31 else 0
        self._trained = _trained_in(state.get("trained"), gradient_bytes)
        own = state.get("hardware") == self.hardware
        parts = [name for name in PARTS if own or name not in ("steps", "memory")]
        sound = [name for name in parts if self._is_usable(name, state.get(name))]
        for name in sound:
            self._take_back(name, state[name])
        self.unusable = tuple(PARTS[name] for name in parts if name not in sound)

    def _is_usable(self, part: str, state: Any) -> bool:
        """Whether a model with this part of a state, and nothing else of it, can live."""
        low, high = self._range
        trial = JobModel(hardware=self.hardware, min_devices=low, max_devices=high, prior=self.prior)

        def live() -> None:
            trial._take_back(part, state)
            rehearse(trial, low)

        return isinstance(state, Mapping) and is_sound(state) and survives(live)

    def _take_back(self, part: str, state: Mapping[str, Any]) -> None:
        match part:
            case "steps":
                self._steps.restore(state)
            case "ledger":
                self._ledger = Ledger.from_state(state)
            case "restart":
                self._restart = RestartCost.from_state(state)
            case "memory":
                self._memory = MemoryModel.from_state(state)
            case "record":
                self._record = ForecastRecord.from_state(state)


def _known(now: tuple[str, int, int | None], before: tuple[str, int, int]) -> tuple[str, int, int]:
    """What is told of a training, and where it is not, what was told before."""
    return now[0] or before[0], max(now[1], 0) or before[1], max(now[2] or 0, 0) or before[2]


def _trained_in(told: Any, gradient_bytes: Any) -> tuple[str, int, int]:
    """What a state says of the training that it is of."""
    match told:
        case [str(module), int(size), int(batch)]:
            return module, max(size, 0), max(batch, 0)
    return "", gradient_bytes if type(gradient_bytes) is int and gradient_bytes > 0 else 0, 0
