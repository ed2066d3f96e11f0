"""The finish time as a distribution, and the record by which it is scored.

    remaining = restart + steps * cycle + validations + checkpoints + ends of epochs

Two kinds of uncertainty are kept apart. What is common to all remaining steps does not
average out: how well the mean cycle is known, and how far it will wander before the end,
which grows with the horizon over the time watched so far. What is independent from step to
step does: n steps of relative scatter r add n r^2. The sum is taken as log-normal, which is
never negative and is right where one factor, the mean cycle, dominates.

Every forecast made is kept with its inputs in a `ForecastLog`, so that it can be held
against what came.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from selfsched.core.measurement import Spans
from selfsched.core.performance import StepTime
from selfsched.core.progress import RemainingWork
from selfsched.core.series import Level
from selfsched.protocol import MAX_SECONDS, Forecast

Z90 = 1.2815515655446004
"""Standard normal quantile of 0.9."""
DRIFT_SIGMA = 0.025
"""What the mean cycle of an undisturbed job wanders by (log) over as long as it was watched."""
MAX_SIGMA = 3.0
NOTHING_SECONDS = 1e-9
"""Less than this is no time at all."""
KEPT_FORECASTS = 256


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """Time until the end, log-normal."""

    median_seconds: float
    sigma_log: float

    def quantile(self, z: float) -> float:
        """Seconds at `z` standard deviations of the logarithm, within the protocol's range."""
        return min(self.median_seconds * math.exp(z * self.sigma_log), MAX_SECONDS)

    def forecast(self, assumption: Literal["as_now", "look_ahead"] = "as_now") -> Forecast:
        """As the wire has it; `as_now`: the devices stay as they are."""
        return Forecast(
            p10_seconds=self.quantile(-Z90),
            p50_seconds=self.quantile(0.0),
            p90_seconds=self.quantile(Z90),
            assumption=assumption,
        )


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """The mean cycle on the devices in question and what is uncertain about it."""

    seconds: float
    sigma_log: float
    step_sigma: float
    watched_seconds: float
    """Steady time measured so far, on any devices."""
    drift_log: float = DRIFT_SIGMA
    """Wandering of the mean (log) over a time as long as `watched_seconds`."""


def step_cost(step: StepTime, level: Level | None, watched_seconds: float) -> StepCost:
    """Join the model's word on a step with the scatter seen on those devices, if any."""
    scatter = level.scatter_log if level is not None else 0.0
    return StepCost(
        seconds=step.seconds,
        sigma_log=step.sigma_log,
        step_sigma=level.step_sigma if level is not None else 0.3,
        watched_seconds=watched_seconds,
        drift_log=max(DRIFT_SIGMA, min(1.6 * scatter, 0.5)),
    )


def remaining_time(
    work: RemainingWork,
    cost: StepCost,
    spans: Mapping[str, Spans],
    *,
    restart_seconds: float = 0.0,
    restart_sigma_log: float = 0.0,
    elapsed_seconds: float = 0.0,
) -> Remaining:
    """How long until the end.

    Args:
        work: what is left.
        cost: of a step on the devices in question.
        spans: measured validations, checkpoints and ends of epochs.
        restart_seconds: a restart that is under way or ordered.
        restart_sigma_log: how well that is known.
        elapsed_seconds: time since the last step that is counted in `work`.
    """
    if math.isinf(work.steps):
        return _until_cap(work, restart_seconds)
    steps_seconds = work.steps * cost.seconds
    horizon = steps_seconds / max(cost.watched_seconds, cost.seconds)
    wander = cost.drift_log * math.sqrt(min(1.0, horizon) + math.log2(1.0 + horizon))
    common = (steps_seconds * math.hypot(cost.sigma_log, wander)) ** 2
    variance = common + work.steps * (cost.seconds * cost.step_sigma) ** 2
    total = steps_seconds
    for kind, count in _stretches(work):
        seconds, spread = _span_cost(spans.get(kind))
        total += count * seconds
        variance += (count * spread) ** 2
    total += restart_seconds
    variance += (restart_seconds * restart_sigma_log) ** 2
    total = max(total - elapsed_seconds, 0.02 * total)
    if total < NOTHING_SECONDS:
        return Remaining(median_seconds=0.0, sigma_log=0.0)
    sigma = min(math.sqrt(math.log1p(variance / total**2)), MAX_SIGMA)
    if work.cap_seconds is not None and total > work.cap_seconds + restart_seconds:
        return _until_cap(work, restart_seconds)
    return Remaining(median_seconds=min(total, MAX_SECONDS), sigma_log=sigma)


def joined(parts: Sequence[Remaining]) -> Remaining:
    """Stretches one after the other: what is uncertain about one is half shared by the others."""
    total = math.fsum(part.median_seconds for part in parts)
    if total <= 0:
        return Remaining(median_seconds=0.0, sigma_log=0.0)
    shares = [part.median_seconds * part.sigma_log / total for part in parts]
    sigma = math.sqrt(0.5 * math.fsum(shares) ** 2 + 0.5 * math.fsum(share**2 for share in shares))
    return Remaining(median_seconds=min(total, MAX_SECONDS), sigma_log=min(sigma, MAX_SIGMA))


def _until_cap(work: RemainingWork, restart_seconds: float) -> Remaining:
    # max_time is checked at the end of a step: the end is certain but for a step.
    seconds = (work.cap_seconds or 0.0) + restart_seconds
    return Remaining(median_seconds=min(seconds, MAX_SECONDS), sigma_log=0.01)


def _stretches(work: RemainingWork) -> tuple[tuple[str, float], ...]:
    return (
        ("validation", work.validations),
        ("checkpoint_save", work.checkpoints),
        ("epoch_end", work.epoch_ends),
    )


def _span_cost(spans: Spans | None) -> tuple[float, float]:
    """(mean seconds, standard deviation of what the mean may be)."""
    if spans is None or spans.count == 0:
        return 0.0, 0.0
    mean = spans.running.mean
    deviation = math.sqrt(spans.running.variance or (0.3 * mean) ** 2)
    return mean, math.hypot(deviation / math.sqrt(spans.count), 0.05 * mean)


@dataclass(frozen=True, kw_only=True)
class LoggedForecast:
    """A forecast with what it was made from."""

    made_at: float
    """CLOCK_BOOTTIME seconds."""
    devices: int
    segment: int
    """Ordinal of the segment: a forecast holds while the allocation does."""
    step: int
    fraction_done: float
    step_seconds: float
    sigma_log: float
    p10_seconds: float
    p50_seconds: float
    p90_seconds: float


@dataclass(frozen=True, kw_only=True)
class ScoredForecast:
    """A past forecast against what came."""

    forecast: LoggedForecast
    actual_seconds: float
    error: float
    """|predicted - actual| / actual."""
    covered80: bool
    allocation_held: bool


@dataclass
class ForecastLog:
    """Forecasts of a run, bounded: when full, every second one of the older half goes."""

    entries: list[LoggedForecast] = field(default_factory=list)

    def add(self, entry: LoggedForecast) -> None:
        self.entries.append(entry)
        if len(self.entries) > KEPT_FORECASTS:
            half = len(self.entries) // 2
            self.entries = self.entries[:half:2] + self.entries[half:]

    def score(self, finished_at: float, last_segment: int) -> tuple[ScoredForecast, ...]:
        """Hold every forecast against the end.

        Args:
            finished_at: CLOCK_BOOTTIME seconds of the run's end.
            last_segment: the segment in which the run ended; the allocation held for
                forecasts made in it.
        """
        scores = []
        for entry in self.entries:
            actual = finished_at - entry.made_at
            if actual <= 0:
                continue
            scores.append(
                ScoredForecast(
                    forecast=entry,
                    actual_seconds=actual,
                    error=abs(entry.p50_seconds - actual) / actual,
                    covered80=entry.p10_seconds <= actual <= entry.p90_seconds,
                    allocation_held=entry.segment == last_segment,
                )
            )
        return tuple(scores)

    def to_state(self) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in self.entries]

    @classmethod
    def from_state(cls, state: list[dict[str, Any]]) -> ForecastLog:
        return cls(entries=[LoggedForecast(**entry) for entry in state])
