"""Forecasts as people say them, for every command that shows one."""

from __future__ import annotations

from collections.abc import Iterable

from selfsched.core.bidding import duration_words
from selfsched.protocol import Forecast, ForecastScores, JobState, JobView


def forecast_words(forecast: Forecast | None) -> str:
    """When, as a range: `3 min (2 min 40 s to 4 min)`."""
    if forecast is None:
        return "not measured yet"
    low, middle, high = map(
        duration_words, (forecast.p10_seconds, forecast.p50_seconds, forecast.p90_seconds)
    )
    return middle if low == middle == high else f"{middle} ({low} to {high})"


def start_words(starts: Forecast | None) -> str:
    """When a job has its devices: `now`, `in 6 min (2 min to 20 min)`."""
    if starts is None:
        return "not with these devices"
    return "now" if starts.p90_seconds < 1 else f"in {forecast_words(starts)}"


def expected_start(job: JobView) -> str:
    """`expected to start in 6 min (2 min to 20 min)`; empty unless it waits and something is expected."""
    if job.state is not JobState.WAITING or job.starts is None:
        return ""
    return f"expected to start {start_words(job.starts)}"


def assumption_words(forecasts: Iterable[Forecast | None], newcomers_per_hour: float) -> str:
    """What shown ranges are and assume: `Ranges: 10 to 90 %, if nobody new comes`; empty without any."""
    made = {forecast.assumption for forecast in forecasts if forecast is not None}
    conditions = []
    if "look_ahead" in made:
        comes = f"new jobs come as of late ({newcomers_per_hour:.2g} an hour)"
        conditions.append(comes if newcomers_per_hour else "nobody new comes")
    if "as_now" in made:
        conditions.append("jobs keep the devices that they have")
    return f"Ranges: 10 to 90 %, if {' and '.join(conditions)}" if conditions else ""


def score_words(scores: ForecastScores | None) -> str:
    """`Of the last 40 forecasts 33 held (80 % expected); for 6 the devices changed meanwhile`."""
    if scores is None or not scores.made:
        return "No forecast has been held against an end yet"
    resized = f"; for {scores.resized} the devices changed meanwhile" if scores.resized else ""
    return f"Of the last {scores.made} forecasts {scores.held} held (80 % expected){resized}"
