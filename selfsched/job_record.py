"""What a job knows and writes down of itself: its model, its history, and their files.

Used by the negotiator's worker thread alone. Rank events and segments go in; facts for the
broker, a line for the progress bar, `history.json` and `model.json` come out. Instants are
CLOCK_BOOTTIME seconds.
"""

from __future__ import annotations

import json
import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from selfsched.core import history as histories
from selfsched.core.bidding import duration_words
from selfsched.core.calibration import KEPT_RUNS, Calibration
from selfsched.core.events import FitFinished, FitStarted, StepsTimed
from selfsched.core.hardware_figures import HardwareFigures, unusable
from selfsched.core.history import JobHistory
from selfsched.core.job_model import JobModel
from selfsched.core.reporting import JobFacts
from selfsched.elastic.allocation import Device, SegmentEnd
from selfsched.elastic.job import JobDescription
from selfsched.elastic.segment import boottime
from selfsched.protocol import (
    EndJob,
    Forecast,
    ForecastScores,
    HardwarePrior,
    Instructions,
    Outcome,
    StepStatistics,
)

MODEL_FILE = "model.json"
UNKNOWN_HARDWARE = "unknown"
NOTICE_FACTOR = 1.5
"""The model's notice is a 95 % quantile of what it saw; a machine may be busier than that."""
LEAVING_SECONDS = 5.0
"""For the ranks to agree on a step, and for their processes to end after the checkpoint."""
FIXED_NOTICE_SECONDS = 20.0
"""Of a program that cannot be cut: for its SIGTERM, and what it does then."""
LONGEST_NOTICE_SECONDS = 3600.0
_STATISTICS_EVERY_SECONDS = 30.0


class JobRecord:
    """One run's knowledge of itself, over all its segments."""

    def __init__(self, job: JobDescription, name: str) -> None:
        self._job = job
        self.history = JobHistory(name=name)
        self._figures: dict[str, HardwareFigures] = {}
        self._model = self._from_earlier_life(job.run_directory / MODEL_FILE)
        self._fit: FitStarted | None = None
        self._is_stepping = False
        self._began = (0, 0.0)
        """Devices of the running segment, and when it started."""
        self._registered_at = boottime()
        self._look_ahead: tuple[Forecast, float] | None = None
        """The broker's, and when it came: it counts from then."""
        self._as_now: Forecast | None = None
        self._finished_at: float | None = None
        self._is_visiting = False
        self._statistics: tuple[float, tuple[StepStatistics, ...]] = (float("-inf"), ())
        self._saved: JobHistory | None = None
        self._saved_model = ""

    def _from_earlier_life(self, path: Path) -> JobModel:
        state = _read_json(path)
        try:
            return self._restored(state["hardware"] if state else UNKNOWN_HARDWARE, state)
        except (AttributeError, KeyError, TypeError, ValueError):
            # Of another version, or damaged: learn anew.
            return self._restored(UNKNOWN_HARDWARE, None)

    def prior(self, hardware: str) -> HardwarePrior | None:
        """What the broker knows of this hardware; None: the built-in figures are used."""
        figures = self._figures.get(hardware)
        return None if figures is None else figures.prior

    def told_of_hardware(self, hardware: str, prior: HardwarePrior) -> str | None:
        """The broker told what it knows; used at once before the first step of a segment, else from the next.

        Returns:
            Words for the user where it cannot be used, and that is news.
        """
        refused = unusable(prior, hardware)
        if refused is not None:
            return self.refused_figures(hardware, refused)
        self._note_figures(HardwareFigures(hardware=hardware, prior=prior))
        is_early = hardware == self._model.hardware and self._model.devices and not self._is_stepping
        if is_early and prior != self._model.prior:
            self._begin(hardware, *self._began)
        return None

    def refused_figures(self, hardware: str, why: str) -> str | None:
        """What the broker told is no prior; words for the user where that is news."""
        before = self._figures.get(hardware)
        new = HardwareFigures(hardware=hardware, prior=before.prior if before else None, refused=why)
        self._note_figures(new)
        return new.refusal_words if new != before else None

    def _note_figures(self, figures: HardwareFigures) -> None:
        self._figures[figures.hardware] = figures
        self.history = self.history.model_copy(update={"figures": figures})

    def _restored(self, hardware: str, state: dict[str, Any] | None) -> JobModel:
        return JobModel(
            hardware=hardware,
            min_devices=self._job.min_devices,
            max_devices=self._job.max_devices,
            prior=self.prior(hardware),
            state=state,
        )

    # --- what happens ----------------------------------------------------------------

    def registered(self, job: str, at: float) -> None:
        """The broker knows the job under this id, since then."""
        if self.history.registered_at_unix is None:
            self._registered_at = at
            unix = time.time() - (boottime() - at)
            self.history = self.history.model_copy(update={"registered_at_unix": unix})
        self.history = self.history.model_copy(update={"job": job})

    def told_scores(self, scores: ForecastScores) -> None:
        """How the account's earlier forecasts came out: the widths of this run's begin from there."""
        runs = [[abs(z) for z in run] for run in scores.runs if run]
        if len(runs) >= len(self._model.calibration.runs):
            self._model.calibration = Calibration(runs=runs[-KEPT_RUNS:])

    def instructed(self, instructions: Instructions, now: float) -> None:
        """Note what the broker granted and why."""
        granted = tuple(
            device.id
            for lease in instructions.leases
            for device in lease.devices
            if device.id not in lease.leave
        )
        why = instructions.reasons[-1] if instructions.reasons else ""
        self._look_ahead = (instructions.forecast, now) if instructions.forecast is not None else None
        self.history = histories.allocated(self.history, granted, now_s=self._since(now), why=why)
        if self._is_visiting and not instructions.visit:
            self.history = histories.visit_ended(self.history, granted, why=why)
        self._is_visiting = instructions.visit
        if instructions.rho is not None:
            self.history = self.history.model_copy(update={"rho": instructions.rho})

    def segment_started(self, ordinal: int, devices: tuple[Device, ...], why: str, now: float) -> None:
        """A segment begins on these devices."""
        hardware = devices[0].model
        self._is_stepping = False
        self._began = (len(devices), now)
        self._begin(hardware, *self._began)
        self.history = histories.segment_started(
            self.history, ordinal, tuple(device.id for device in devices),
            now_s=self._since(now), step=self._model.progress().step, why=why,
        )  # fmt: skip

    def _begin(self, hardware: str, devices: int, now: float) -> None:
        prior = self.prior(hardware)
        if hardware != self._model.hardware or (prior is not None and self._model.prior != prior):
            self._model = self._restored(hardware, self._model.to_state())
        self._model.segment_started(devices, now)

    def segment_ended(self, end: SegmentEnd, now: float) -> None:
        """A segment is over."""
        self._model.segment_ended(now)
        self._is_stepping = False
        step = end.step if end.checkpoint_step is None or end.reason == "finished" else end.checkpoint_step
        self.history = histories.segment_ended(
            self.history, end.ordinal, now_s=self._since(now), step=step, ended_by=end.reason
        )
        self.save_model()

    def ran_out_of_memory(self, devices: int) -> None:
        """The job needed more memory than so many devices have."""
        self._model.ran_out_of_memory(devices)

    def event(self, event: Any, now: float) -> None:
        """One event of a rank."""
        self._model.observe(event, now)
        if isinstance(event, FitStarted):
            self._fit = event
        elif isinstance(event, StepsTimed):
            self._is_stepping = self._is_stepping or bool(event.timings)
        elif isinstance(event, FitFinished):
            self._finished_at = now

    # --- what is known ---------------------------------------------------------------

    def facts(self, now: float) -> JobFacts:
        """What the broker should know at this moment; passes milestones of the history."""
        model, devices = self._model, self._model.devices
        if self._job.fixed:
            return JobFacts(is_stepping=devices > 0, notice_seconds=FIXED_NOTICE_SECONDS)
        progress = model.progress(now)
        self._as_now = model.forecast(devices, now) if devices else None
        self._pass_milestone(progress.fraction_done, devices, now)
        self.history = self.history.model_copy(update={"planned_steps": progress.planned_steps})
        return JobFacts(
            step=progress.step,
            planned_steps=progress.planned_steps,
            fraction_done=min(1.0, max(0.0, progress.fraction_done)),
            steady_steps=progress.steady_steps,
            is_stepping=self._is_stepping,
            notice_seconds=self._notice_seconds(),
            idle_seconds=model.idle_seconds(now),
            bid=model.standing_bid(devices, now),
            allowed_devices=self._allowed(devices),
            forecast=self._as_now,
            forecast_width=model.log.entries[-1].width if model.log.entries else 1.0,
            statistics=self._counted(now),
        )

    def _notice_seconds(self) -> float:
        notice = NOTICE_FACTOR * self._model.notice_seconds() + LEAVING_SECONDS
        return min(notice, LONGEST_NOTICE_SECONDS) if math.isfinite(notice) else LONGEST_NOTICE_SECONDS

    def _allowed(self, devices: int) -> tuple[int, ...] | None:
        if self._fit is None:
            return None
        if self._fit.resume != "elastic" and devices:
            return (devices,)
        return self._model.allowed_devices

    def _counted(self, now: float) -> tuple[StepStatistics, ...]:
        at, counted = self._statistics
        if now - at >= _STATISTICS_EVERY_SECONDS:
            counted = self._model.statistics()
            self._statistics = (now, counted)
        return counted

    def _pass_milestone(self, fraction_done: float, devices: int, now: float) -> None:
        mark = histories.milestone_passed(self.history, fraction_done)
        look_ahead = _aged(self._look_ahead[0], now - self._look_ahead[1]) if self._look_ahead else None
        made = tuple(forecast for forecast in (self._as_now, look_ahead) if forecast is not None)
        if mark is None or not made or not devices:
            return
        self.history = histories.forecast_made(
            self.history, mark, devices, now_s=self._since(now), forecasts=made
        )

    def status_line(self) -> str | None:
        """The predicted finish in a few words; None when nothing can be said."""
        forecast, devices = self._as_now, self._model.devices
        if forecast is None or not devices:
            return None
        p50 = duration_words(forecast.p50_seconds)
        p10, p90 = duration_words(forecast.p10_seconds), duration_words(forecast.p90_seconds)
        on = "1 device" if devices == 1 else f"{devices} devices"
        return f"{p50} left ({p10} to {p90}) on {on}"

    def _since(self, now: float) -> float:
        return max(0.0, now - self._registered_at)

    # --- files -----------------------------------------------------------------------

    def finish(self, outcome: str, now: float) -> None:
        """The run is over: close the history and write everything."""
        finished_at = self._finished_at if outcome == "finished" and self._finished_at is not None else now
        self.history = histories.finished(
            self.history, finish_s=self._since(finished_at), outcome=outcome
        )
        self.save_history()
        self.save_model()

    def last_word(self, outcome: Outcome, reason: str, now: float) -> EndJob:
        """What the broker is told at the end."""
        is_own_end = outcome is Outcome.FINISHED and self._finished_at is not None
        return EndJob(
            outcome=outcome,
            reason=reason[:2000],
            finished_ago_seconds=max(0.0, now - (self._finished_at or now)) if is_own_end else 0.0,
            statistics=() if self._job.fixed else self._model.statistics()[:64],
        )

    def save_history(self) -> None:
        """Write `history.json` where it changed. A full disk loses it until the next time, never the run."""
        if self.history != self._saved:
            with suppress(OSError):
                _write(self._job.run_directory / histories.FILE_NAME, self.history.model_dump_json(indent=1))
                self._saved = self.history

    def save_model(self) -> None:
        """Write what was learned where it changed: for whoever looks, and for a later start of the job.

        A full disk loses it as it does the history.
        """
        text = json.dumps(self._model.to_state())
        if text != self._saved_model:
            with suppress(OSError):
                _write(self._job.run_directory / MODEL_FILE, text)
                self._saved_model = text


def _aged(forecast: Forecast, elapsed_seconds: float) -> Forecast:
    """A forecast as it reads so much later."""
    return Forecast(
        p10_seconds=max(0.0, forecast.p10_seconds - elapsed_seconds),
        p50_seconds=max(0.0, forecast.p50_seconds - elapsed_seconds),
        p90_seconds=max(0.0, forecast.p90_seconds - elapsed_seconds),
        assumption=forecast.assumption,
    )


def _write(path: Path, text: str) -> None:
    """Replace a file in one step: a reader sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)


def _read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object of an earlier life; None when there is none that can be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def read_history(run: Path) -> JobHistory | None:
    """The history in a run's directory; None where there is none that can be read."""
    try:
        return JobHistory.model_validate_json((run / histories.FILE_NAME).read_text())
    except (OSError, ValidationError):
        return None


def read_model(run: Path, history: JobHistory | None = None) -> JobModel | None:
    """What a run learned of itself; None where there is nothing that can be read.

    Args:
        run: its directory.
        history: the run's, which has the figures of the hardware that it was told.
    """
    try:
        state = json.loads((run / MODEL_FILE).read_text())
        allowed, hardware = state["allowed_devices"], state["hardware"]
        figures = history.figures if history is not None else None
        is_told = figures is not None and figures.hardware == hardware
        return JobModel.from_state(
            state, hardware=hardware, min_devices=min(allowed), max_devices=max(allowed),
            prior=figures.prior if figures is not None and is_told else None,
        )  # fmt: skip
    except (OSError, KeyError, TypeError, ValueError):
        return None
