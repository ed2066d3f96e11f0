"""What a job knows of itself: events in; progress, forecast, bid and reasons out.

`JobModel` joins measurement, progress, performance, forecast and bidding. It is pure: `now`
is passed in (CLOCK_BOOTTIME seconds), nothing is read, nothing happens. It lives where
segments do not end it: in the supervisor, or in rank 0 when there is none. Its state is
plain JSON, so that a resubmitted job keeps its knowledge.

A job is able to bid after its first visit: 30 steady steps, or a minute of training. A
forecast is given earlier, wide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selfsched.core.batch_sizes import BatchSizes
from selfsched.core.bidding import Explanation, standing_bid
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
from selfsched.core.forecast import ForecastLog, LoggedForecast, Remaining
from selfsched.core.job_knowledge import JobKnowledge
from selfsched.core.job_times import JobTimes
from selfsched.core.job_words import explanation
from selfsched.core.kept_state import is_sound, rehearse, survives
from selfsched.core.progress import Progress
from selfsched.core.step_knowledge import VISIT_STEPS, cycle_seconds
from selfsched.protocol import Forecast, HardwarePrior, StandingBid, StepStatistics

LONGEST_NEWS_SECONDS = 2.0
"""Steps are told in batches that are no farther apart."""


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
        self.known = JobKnowledge(
            hardware=hardware, min_devices=min_devices, max_devices=max_devices, prior=prior,
            calibration=calibration,
        )  # fmt: skip
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
        self._sizes, self._batch_changed = BatchSizes(), False
        if state is not None:
            self.known.restore(state, is_usable=self._is_usable)

    # --- what happens ----------------------------------------------------------------

    def segment_started(self, devices: int, now: float) -> None:
        """The ranks of a segment on `devices` devices were ordered to start."""
        if devices < 1:
            raise ValueError(f"a segment needs at least one device, not {devices}")
        self._is_first_segment = self._devices == 0 and self._newest_start is None
        self._newest_start = now
        self._devices = devices
        self.known.segments += 1
        self._started_at, self._first_step_at, self._load_seconds = now, None, 0.0
        self._news_at, self._news_every_seconds = None, 0.0
        self._warm_up_seconds = []
        self._present_steady = 0
        self._sizes, self._batch_changed = BatchSizes(), False
        self.known.steps.went_on(devices)
        self._last_work_at = now

    def segment_ended(self, now: float) -> None:
        """The running segment is over, its devices left."""
        self._close_warm_up()
        if self._saved_step == self.known.ledger.step:
            self.known.ledger.forget_checkpoint()  # it belongs to the move, not to the training
        self.known.ledger.segment_ended(now)
        self._devices = 0
        self._started_at = self._first_step_at = None

    def observe(self, event: Any, now: float) -> None:
        """Take over an event of `core.events`; one that says nothing of speed is ignored."""
        if isinstance(event, StepsTimed):
            self._steps_timed(event, now)
        elif isinstance(event, FitStarted):
            self.known.fit_started(event, is_first_segment=self._is_first_segment)
        elif isinstance(event, Progressed):
            self._progressed(event)
        elif isinstance(event, StretchTimed):
            self._stretch_timed(event, now)
        elif isinstance(event, Checked):
            self.known.ledger.checked(event)
        elif isinstance(event, DevicesObserved):
            self._observed = event
        elif isinstance(event, CheckpointSaved):
            self._checkpoint_saved(event, now)
        elif isinstance(event, FitFinished):
            self.known.ledger.fit_finished(event)
            self.known.record.fit_finished(fit=event.fit, segment=self.known.segments, now=now)

    # --- what is known ---------------------------------------------------------------

    @property
    def hardware(self) -> str:
        """Model of the devices."""
        return self.known.hardware

    @property
    def prior(self) -> HardwarePrior:
        """What is assumed of the hardware."""
        return self.known.prior

    @property
    def unusable(self) -> tuple[str, ...]:
        """What of `state` is no knowledge and is learned anew, in words."""
        return self.known.unusable

    @property
    def devices(self) -> int:
        """Devices of the running segment; 0 when none runs."""
        return self._devices

    @property
    def fit(self) -> int:
        """Ordinal of the fit that was last begun; 0 before the first."""
        return self.known.ledger.fit

    @property
    def fit_finished(self) -> bool:
        return self.known.ledger.finished

    @property
    def allowed_devices(self) -> tuple[int, ...]:
        """Device counts to bid for: they keep the global batch, and the job fits into their memory."""
        return self.known.allowed_devices

    @property
    def log(self) -> ForecastLog:
        """Forecasts that were made, to be held against what came."""
        return self.known.record.log

    @property
    def calibration(self) -> Calibration:
        """What the ends of past fits teach of the width of intervals."""
        return self.known.record.calibration

    @calibration.setter
    def calibration(self, calibration: Calibration) -> None:
        self.known.record.calibration = calibration

    def ran_out_of_memory(self, devices: int) -> None:
        """The job needed more memory than there is on so many devices."""
        self.known.memory.ran_out(devices)

    def progress(self, now: float | None = None) -> Progress:
        """Where the run stands.

        Args:
            now: for a limit of time; None: as of the last event.
        """
        ledger = self.known.ledger
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
        if left is None or self.known.ledger.end_is_unknown:
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
        here = self._remaining(self._devices, now) if self._devices else None
        if here is None or self.known.ledger.end_is_unknown:
            return None
        whole = self._times.over(stages, self._devices, now) if stages else None
        if whole is None:
            return here.forecast()
        return whole.scaled(self._widths(None, now)[0]).forecast("look_ahead")

    def standing_bid(self, current: int, now: float) -> StandingBid:
        """The table of what each allowed device count would bring.

        Args:
            current: devices the job holds; 0 when it waits.
            now: CLOCK_BOOTTIME seconds.
        """
        counts = set(self.allowed_devices) | ({current} if current else set())
        able = self.known.steps.is_enough_to_bid
        reference = current or min(counts)

        def remaining(devices: int) -> Remaining | None:
            return self._times.work(devices, reference, now) if able else None

        return standing_bid(
            sorted(counts),
            remaining=remaining,
            restart_seconds=lambda devices: self._times.move_seconds(current, devices),
            peak_bytes=self.known.memory.peak_bytes,
            end_is_unknown=self.known.ledger.end_is_unknown,
            doubt=self.known.steps.doubt,
        )

    def notice_seconds(self) -> float:
        """How long after an order the job is surely gone with a checkpoint (95 %)."""
        stretches = [self.known.steps.series(self._devices).quantile(0.95) or 0.0]
        validation = self.known.ledger.spans.get("validation")
        if validation is not None:
            stretches.append(validation.sketch.quantile(0.95) or 0.0)
        return max(stretches) + self.known.restart.longest_save_seconds(self.known.steps.gradient_bytes)

    def idle_seconds(self, now: float) -> float:
        """Time since the last step, validation or checkpoint (or the segment's start)."""
        if self._last_work_at is None or self._devices == 0:
            return 0.0
        return max(0.0, now - self._last_work_at)

    def step_time(self, devices: int) -> tuple[float, float] | None:
        """(median seconds, sigma of its logarithm) of a step on `devices` devices."""
        step = self.known.steps.step(devices)
        return None if step is None else (step.seconds, step.sigma_log)

    def statistics(self) -> tuple[StepStatistics, ...]:
        """Mergeable statistics of each device count, for the hardware's prior."""
        return self.known.steps.statistics(self.hardware)

    def explanation(self, now: float | None = None) -> Explanation:
        """The model for a reader: parts of a step, points, curve with band, words."""
        at = now if now is not None else (self._last_work_at or 0.0)
        return explanation(self.known, self._devices, at, observed=self._observed)

    # --- events ----------------------------------------------------------------------

    def _progressed(self, event: Progressed) -> None:
        epoch, known = self.known.ledger.epoch, self.known.ledger.epoch_step_samples
        self.known.ledger.progressed(event)
        if not self._batch_changed and self.known.ledger.epoch_step_samples != known:
            # An epoch's mean is less than the usual batch by its ragged one: no other batch for that.
            self.known.ledger.epoch_step_samples = self.known.ledger.step_samples
        self._batch_changed = self._batch_changed and self.known.ledger.epoch == epoch
        self.known.memory.observe(
            self._devices, peak=event.peak_bytes, resident=event.resident_bytes, device=event.device_bytes
        )

    def _stretch_timed(self, event: StretchTimed, now: float) -> None:
        self.known.ledger.stretch(event)
        if event.stretch in ("validation", "checkpoint_save"):
            self._last_work_at = now
        if event.stretch == "checkpoint_save" and event.step != self._saved_step:
            self.known.restart.saved(event.seconds, event.size_bytes or 0)
        if event.stretch == "checkpoint_load":
            self.known.restart.loaded(event.seconds, event.size_bytes or 0)
            self._load_seconds += event.seconds

    def _checkpoint_saved(self, event: CheckpointSaved, now: float) -> None:
        self._last_work_at, self._saved_step = now, event.step
        self.known.restart.saved(event.seconds, event.size_bytes)

    def _steps_timed(self, event: StepsTimed, now: float) -> None:
        if not event.timings or self._devices == 0:
            return
        if self._first_step_at is None:
            cycles = [cycle_seconds(timing) for timing in event.timings[1:]]
            self._first_step(now, sum(cycle for cycle in cycles if cycle is not None))
        self._take_sizes(event.timings)
        warm_up, steady = self.known.steps.add(self._devices, event.timings)
        if self._present_steady < VISIT_STEPS:  # later ones (a compilation) are no cost of a restart
            self._warm_up_seconds += warm_up
        self._present_steady += steady
        if self._present_steady >= VISIT_STEPS:
            self._close_warm_up()
        self.known.ledger.stepped(max(timing.step for timing in event.timings))
        if self._news_at is not None:  # steps are told in batches: those since the last one were made, too
            self._news_every_seconds = min(max(0.0, now - self._news_at), LONGEST_NEWS_SECONDS)
        self._last_work_at = self._news_at = now

    def _take_sizes(self, timings: Sequence[StepTiming]) -> None:
        """Samples and passes of a step now: an epoch has more or fewer steps of another batch.

        Where batches vary from step to step it has as many as its loader says.
        """
        self.known.passes = timings[-1].passes
        for timing in timings:
            judged = self._sizes.judge(timing.local_samples * self._devices, timing.passes)
            self._batch_changed = self._batch_changed or judged.kind == "new"
        if self._sizes.vary:
            self.known.ledger.step_samples = None
        else:
            self.known.ledger.sized(self._sizes.usual)

    def _first_step(self, now: float, since: float) -> None:
        self._first_step_at = now - since
        if self._started_at is not None:
            took = self._first_step_at - self._started_at - self._load_seconds
            self.known.restart.started(max(0.0, took), first=self._is_first_segment)

    def _close_warm_up(self) -> None:
        level = self.known.steps.level(self._devices)
        if self._warm_up_seconds and level is not None and level.count:
            # The first step's own time is in `start` already.
            excess = sum(max(0.0, cycle - level.seconds) for cycle in self._warm_up_seconds[1:])
            self.known.restart.warmed_up(excess)
        self._warm_up_seconds = []

    # --- model -----------------------------------------------------------------------

    @property
    def _times(self) -> JobTimes:
        return JobTimes(self.known)

    def _remaining(self, devices: int, now: float) -> Remaining | None:
        if devices != self._devices:
            move = self._times.move_seconds(self._devices, devices)
            return self._times.on(devices, now, restart_seconds=move)
        restart, elapsed = 0.0, 0.0
        if self._first_step_at is None and self._started_at is not None:
            expected = self._times.move_seconds(0, devices)
            restart = max(0.0, expected - max(0.0, now - self._started_at))
        elif self._last_work_at is not None:
            elapsed = min(max(0.0, now - self._last_work_at), self._longest_usual_silence(devices))
        return self._times.on(devices, now, restart_seconds=restart, elapsed_seconds=elapsed)

    def _longest_usual_silence(self, devices: int) -> float:
        usual = self.known.steps.series(devices).quantile(0.5) or 0.0
        validation = self.known.ledger.spans.get("validation")
        return max(usual, validation.running.mean if validation else 0.0, self._news_every_seconds)

    def _widths(self, left: Remaining | None, now: float) -> tuple[float, float]:
        """What scores of earlier forecasts, of past fits and of this one, make of the interval."""
        known = self.known
        return known.record.widths(left, fit=known.ledger.fit, segment=known.segments, now=now)

    def _keep(self, forecast: Forecast, left: Remaining, widths: tuple[float, float], now: float) -> None:
        step = self.step_time(self._devices)
        self.known.record.keep(
            LoggedForecast(
                made_at=now, devices=self._devices, segment=self.known.segments, step=self.known.ledger.step,
                fraction_done=self.known.ledger.fraction_done(now), step_seconds=step[0] if step else 0.0,
                sigma_log=left.sigma_log, p10_seconds=forecast.p10_seconds,
                p50_seconds=forecast.p50_seconds, p90_seconds=forecast.p90_seconds,
                fit=self.known.ledger.fit, width=widths[0], surprise=widths[1],
            )
        )  # fmt: skip

    # --- state -----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Everything learned, as plain JSON values; a running segment is not in it."""
        return self.known.to_state()

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

    def _is_usable(self, part: str, state: Any) -> bool:
        """Whether a model with this part of a state, and nothing else of it, can live."""
        low, high = self.known.range
        trial = JobModel(
            hardware=self.hardware, min_devices=low, max_devices=high, prior=self.known.prior
        )

        def live() -> None:
            trial.known.take_back(part, state)
            rehearse(trial, low)

        return isinstance(state, Mapping) and is_sound(state) and survives(live)
