"""A run's own history: its segments, why it had what it had, and what it forecast when.

Written as `history.json` into the run's directory, for reports and for a reopened notebook.
All times are seconds since the job first registered at its broker, on the job's own clock;
`registered_at_unix` places that moment on the wall clock, so that several jobs can be drawn
on one axis.

A forecast is noted when the run passes 10, 25, 50 and 75 % of its planned steps: `as_now` is
the job's own, on the devices it has; `look_ahead` the broker's, which sees what is coming.
How it came out is filled in at the end: a forecast's error is
|predicted - actual| / (actual - made).
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from selfsched.core.hardware_figures import HardwareFigures
from selfsched.protocol import Forecast

MILESTONES = (0.10, 0.25, 0.50, 0.75)
FILE_NAME = "history.json"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SegmentSpan(_Frozen):
    """A stretch on one fixed set of devices."""

    ordinal: int
    devices: tuple[str, ...]
    start_s: float
    end_s: float | None = None
    """None: it runs."""
    first_step: int
    last_step: int | None = None
    why: str = ""
    """Why it had these devices."""
    ended_by: str = ""
    """`yielded`, `finished`, ... as `SegmentEnd.reason`."""

    @property
    def steps(self) -> int:
        return 0 if self.last_step is None else max(0, self.last_step - self.first_step)


class AllocationChange(_Frozen):
    """From here on the broker granted these devices, for this reason."""

    at_s: float
    devices: tuple[str, ...]
    why: str


class ForecastMade(_Frozen):
    """A forecast at a milestone, and what came."""

    at: float
    """Fraction of the planned steps."""
    made_at_s: float
    devices: int
    assumption: Literal["as_now", "look_ahead"]
    predicted_finish_s: float
    """Median."""
    low_s: float
    """10 % ..."""
    high_s: float
    """... and 90 % quantile."""
    allocation_held: bool | None = None
    """Whether no segment began after it was made; None while the run goes on."""
    actual_finish_s: float | None = None

    @property
    def error(self) -> float | None:
        """|predicted - actual| / (actual - made); None while it cannot be told."""
        if self.actual_finish_s is None or self.actual_finish_s <= self.made_at_s:
            return None
        return abs(self.predicted_finish_s - self.actual_finish_s) / (self.actual_finish_s - self.made_at_s)


class JobHistory(_Frozen):
    """`history.json`."""

    version: Literal[1] = 1
    name: str
    job: str | None = None
    """The broker's id of it; None until it answered."""
    registered_at_unix: float | None = None
    planned_steps: int | None = None
    segments: tuple[SegmentSpan, ...] = ()
    allocations: tuple[AllocationChange, ...] = ()
    forecasts: tuple[ForecastMade, ...] = ()
    figures: HardwareFigures | None = None
    """Of the hardware it last ran on; None: no broker was asked."""
    rho: float | None = None
    """Finish-time fairness as the broker last said."""
    finish_s: float | None = None
    outcome: str | None = None


def segment_started(
    history: JobHistory, ordinal: int, devices: tuple[str, ...], *, now_s: float, step: int, why: str
) -> JobHistory:
    """Note that a segment began."""
    span = SegmentSpan(ordinal=ordinal, devices=devices, start_s=now_s, first_step=step, why=why)
    return history.model_copy(update={"segments": (*history.segments, span)})


def segment_ended(history: JobHistory, ordinal: int, *, now_s: float, step: int, ended_by: str) -> JobHistory:
    """Note that a segment is over. One that nobody saw begin is passed over."""
    update = {"end_s": now_s, "last_step": step, "ended_by": ended_by}
    spans = tuple(
        span.model_copy(update=update) if span.ordinal == ordinal and span.end_s is None else span
        for span in history.segments
    )
    return history.model_copy(update={"segments": spans})


def visit_ended(history: JobHistory, devices: tuple[str, ...], *, why: str) -> JobHistory:
    """Note why a segment that began as a first visit goes on, if it does, on the same devices."""
    last = history.segments[-1] if history.segments else None
    if last is None or last.end_s is not None or set(last.devices) != set(devices):
        return history
    last = last.model_copy(update={"why": f"{last.why}; then {why}"})
    return history.model_copy(update={"segments": (*history.segments[:-1], last)})


def allocated(history: JobHistory, devices: tuple[str, ...], *, now_s: float, why: str) -> JobHistory:
    """Note what the broker grants; the same devices again are no news."""
    last = history.allocations[-1].devices if history.allocations else ()
    if devices == last:
        return history
    change = AllocationChange(at_s=now_s, devices=devices, why=why)
    return history.model_copy(update={"allocations": (*history.allocations, change)})


def milestone_passed(history: JobHistory, fraction_done: float) -> float | None:
    """The largest milestone that was passed and has no forecast yet; smaller ones were missed."""
    noted = max((forecast.at for forecast in history.forecasts), default=0.0)
    return max((mark for mark in MILESTONES if noted < mark <= fraction_done), default=None)


def forecast_made(
    history: JobHistory, at: float, devices: int, *, now_s: float, forecasts: tuple[Forecast, ...]
) -> JobHistory:
    """Note the forecasts of a milestone (each assumption its own)."""
    made = tuple(
        ForecastMade(
            at=at,
            made_at_s=now_s,
            devices=devices,
            assumption=forecast.assumption,
            predicted_finish_s=now_s + forecast.p50_seconds,
            low_s=now_s + forecast.p10_seconds,
            high_s=now_s + forecast.p90_seconds,
        )
        for forecast in forecasts
    )
    return history.model_copy(update={"forecasts": (*history.forecasts, *made)})


def finished(history: JobHistory, *, finish_s: float, outcome: str) -> JobHistory:
    """Close the history: forecasts learn what came, if the run came to its own end."""
    update: dict[str, object] = {"finish_s": finish_s, "outcome": outcome}
    if outcome == "finished":
        last_start_s = max((span.start_s for span in history.segments), default=0.0)
        update["forecasts"] = tuple(
            forecast.model_copy(
                update={"actual_finish_s": finish_s, "allocation_held": forecast.made_at_s >= last_start_s}
            )
            for forecast in history.forecasts
        )
    return history.model_copy(update=update)
