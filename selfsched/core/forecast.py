"""The finish time as a distribution, and the record by which it is scored.

    remaining = restart + steps * cycle + validations + checkpoints + ends of epochs

Two kinds of uncertainty are kept apart. What is common to all remaining steps does not
average out: how well the mean cycle is known, and how far it will wander before the end
(`wander`). What is independent from step to step does: n steps of relative scatter r add
n r^2. The sum is taken as log-normal, which is never negative and is right where one factor,
the mean cycle, dominates. Where a rule may end the fit at several points, the time is a
mixture of one log-normal for each.

Every forecast made is kept with its inputs in a `ForecastLog`, so that it can be held
against what came.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import NormalDist
from typing import Any, Literal

from selfsched.core.measurement import Spans
from selfsched.core.progress import RemainingWork
from selfsched.protocol import MAX_SECONDS, Forecast

Z90 = 1.2815515655446004
"""Standard normal quantile of 0.9."""
MAX_SIGMA = 3.0
_NODES = tuple(NormalDist().inv_cdf((part + 0.5) / 20) for part in range(20))
"""Equally probable points of the standard normal distribution."""
NOTHING_SECONDS = 1e-9
"""Less than this is no time at all."""
CAP_SIGMA = 0.01
LEAST_SIGMA = 0.1
FIRST_SPAN = 0.95
"""One that stands alone may be the first, which is the slowest."""
SPAN_SIGMA = 0.2
"""What one measured validation or checkpoint may differ from the next ones (log) ..."""
SPAN_WANDER = 0.05
"""... and what their mean may wander by."""
KEPT_FORECASTS = 256


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """Time until the end: log-normal, or a mixture of such."""

    median_seconds: float
    sigma_log: float
    """Of a mixture: that of the log-normal with its 10 and 90 % points."""
    mixture: tuple[tuple[float, float, float], ...] = ()
    """(weight, median seconds, sigma) of the parts; empty: log-normal."""
    limit_seconds: float = math.inf
    """Of a mixture: until the limit of the run, which no end is behind, however wide the interval."""

    def quantile(self, z: float) -> float:
        """Seconds at the standard normal quantile `z`, within the protocol's range."""
        if self.mixture:
            return min(_mixture_quantile(self.mixture, z), MAX_SECONDS)
        return min(self.median_seconds * math.exp(z * self.sigma_log), MAX_SECONDS)

    def forecast(self, assumption: Literal["as_now", "look_ahead"] = "as_now") -> Forecast:
        """As the wire has it; `as_now`: the devices stay as they are."""
        return Forecast(
            p10_seconds=self.quantile(-Z90),
            p50_seconds=self.quantile(0.0),
            p90_seconds=self.quantile(Z90),
            assumption=assumption,
        )

    def scaled(self, width: float) -> Remaining:
        """The same, with an interval `width` times as wide (log)."""
        if width == 1.0:
            return self
        middle = max(self.median_seconds, NOTHING_SECONDS)
        parts = tuple(
            (weight, self._stretched(part, middle, width), min(width * own, MAX_SIGMA))
            for weight, part, own in self.mixture
        )
        sigma = min(width * self.sigma_log, MAX_SIGMA)
        return replace(self, sigma_log=sigma, mixture=parts)

    def _stretched(self, part: float, middle: float, width: float) -> float:
        if part >= self.limit_seconds:
            return part
        exponent = min(width * math.log(max(part, NOTHING_SECONDS) / middle), 700.0)
        return min(middle * math.exp(exponent), self.limit_seconds)


def mixed(parts: Sequence[tuple[float, Remaining]], *, limit_seconds: float = math.inf) -> Remaining:
    """One of several ends, with their weights; none is behind the limit of the run."""
    if len(parts) == 1:
        return parts[0][1]
    whole = math.fsum(weight for weight, _ in parts)
    mixture = tuple((weight / whole, part.median_seconds, part.sigma_log) for weight, part in parts)
    low, median, high = (_mixture_quantile(mixture, z) for z in (-Z90, 0.0, Z90))
    if median < NOTHING_SECONDS:
        return Remaining(median_seconds=0.0, sigma_log=0.0)
    sigma = math.log(max(high, NOTHING_SECONDS) / max(low, 1e-4 * median, NOTHING_SECONDS)) / (2.0 * Z90)
    return Remaining(
        median_seconds=median, sigma_log=min(max(sigma, 0.0), MAX_SIGMA), mixture=mixture,
        limit_seconds=limit_seconds,
    )  # fmt: skip


def _mixture_quantile(mixture: Sequence[tuple[float, float, float]], z: float) -> float:
    """Seconds below which the mixture lies with the probability of `z`, by weighted points."""
    goal = NormalDist().cdf(z)
    points = sorted(
        (median * math.exp(sigma * node), weight / len(_NODES))
        for weight, median, sigma in mixture
        for node in _NODES
    )
    below, last_at, last = 0.0, 0.0, points[0][0]
    for seconds, weight in points:
        at = below + 0.5 * weight
        if at >= goal:
            share = (goal - last_at) / (at - last_at) if at > last_at else 1.0
            return last + share * (seconds - last)
        below, last_at, last = below + weight, at, seconds
    return last


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """The mean cycle on the devices in question and what is uncertain about it."""

    seconds: float
    """Mean over the steps to come."""
    sigma_log: float
    """Common to all of them: doubt about the mean, and its wandering until the end."""
    step_sigma: float
    """Noise of one step, independent of the others, relative to the mean."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What is in the remaining time besides steps."""

    spans: Mapping[str, Spans] = field(default_factory=dict)
    """Measured validations, checkpoints and ends of epochs."""
    expected: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """(seconds, sigma of its logarithm) of one that was not measured yet."""
    restart_seconds: float = 0.0
    """A restart that is under way or ordered."""
    restart_sigma_log: float = 0.0
    elapsed_seconds: float = 0.0
    """Time since the last step that is counted in the work."""


def remaining_time(work: RemainingWork, cost: StepCost, beside: Beside) -> Remaining:
    """How long until the end.

    Args:
        work: what is left.
        cost: of a step on the devices in question, over the steps to come.
        beside: what else there is.
    """
    if math.isinf(work.steps):
        return _until_cap(_held_on(work, cost.seconds), beside, work.least_steps * cost.seconds)
    if len(work.stops) > 1:
        ends = [(weight, _time_to(_ended(work, end), cost, beside)) for end, weight in work.stops]
        return mixed(ends, limit_seconds=_time_to(work, cost, beside).median_seconds)
    return _time_to(_ended(work, work.stops[0][0]) if work.stops else work, cost, beside)


def _ended(work: RemainingWork, steps: float) -> RemainingWork:
    part = work.part(steps)
    least = min(work.least_steps, steps)
    return replace(part, cap_seconds=work.cap_seconds, cap_steps=work.cap_steps, least_steps=least)


def _held_on(work: RemainingWork, step_seconds: float) -> RemainingWork:
    """With the time until the end of the epoch in which it is up, where it waits for that."""
    if work.cap_seconds is None or work.cap_steps is None:
        return work
    first, every = (steps * step_seconds for steps in work.cap_steps)
    more = max(0.0, work.cap_seconds - first)
    return replace(work, cap_seconds=first + (math.ceil(more / every) * every if every > 0 else more))


def _time_to(work: RemainingWork, cost: StepCost, beside: Beside) -> Remaining:
    """How long until so many steps are made, or the time is up."""
    total = work.steps * cost.seconds
    variance = (total * cost.sigma_log) ** 2 + work.steps * (cost.seconds * cost.step_sigma) ** 2
    for kind, count in _stretches(work):
        seconds, spread = _span_cost(beside.spans.get(kind), beside.expected.get(kind))
        total += count * seconds
        variance += (count * spread) ** 2
    least = total * work.least_steps / work.steps if work.steps > 0 else 0.0
    if work.steps > 0:
        work = _held_on(work, total / work.steps)
    total += beside.restart_seconds
    variance += (beside.restart_seconds * beside.restart_sigma_log) ** 2
    total = max(total - beside.elapsed_seconds, 0.02 * total)
    if total < NOTHING_SECONDS:
        return Remaining(median_seconds=0.0, sigma_log=0.0)
    sigma = min(math.sqrt(math.log1p(variance / total**2)), MAX_SIGMA)
    if work.cap_seconds is not None and total > max(work.cap_seconds, least) + beside.restart_seconds:
        return _until_cap(work, beside, least)
    return Remaining(median_seconds=min(total, MAX_SECONDS), sigma_log=sigma)


def joined(parts: Sequence[Remaining]) -> Remaining:
    """Stretches one after the other: what is uncertain about one is half shared by the others."""
    total = math.fsum(part.median_seconds for part in parts)
    if total <= 0:
        return Remaining(median_seconds=0.0, sigma_log=0.0)
    shares = [part.median_seconds * part.sigma_log / total for part in parts]
    sigma = math.sqrt(0.5 * math.fsum(shares) ** 2 + 0.5 * math.fsum(share**2 for share in shares))
    return Remaining(median_seconds=min(total, MAX_SECONDS), sigma_log=min(sigma, MAX_SIGMA))


def _until_cap(work: RemainingWork, beside: Beside, least_seconds: float) -> Remaining:
    # max_time is checked at the end of a step: the end is certain but for a step.
    cap = work.cap_seconds or 0.0
    seconds = max(cap, least_seconds) + beside.restart_seconds
    sigma = CAP_SIGMA if cap >= least_seconds else LEAST_SIGMA
    return Remaining(median_seconds=min(seconds, MAX_SECONDS), sigma_log=sigma)


def _stretches(work: RemainingWork) -> tuple[tuple[str, float], ...]:
    return (
        ("validation", work.validations),
        ("checkpoint_save", work.checkpoints),
        ("epoch_end", work.epoch_ends),
    )


def _span_cost(spans: Spans | None, expected: tuple[float, float] | None) -> tuple[float, float]:
    """(mean seconds, standard deviation of what the mean may be)."""
    if spans is None or spans.count == 0:
        return (0.0, 0.0) if expected is None else (expected[0], expected[0] * expected[1])
    mean = spans.running.mean * (FIRST_SPAN if spans.count == 1 else 1.0)
    deviation = math.sqrt(spans.running.variance or (SPAN_SIGMA * mean) ** 2)
    return mean, math.hypot(deviation / math.sqrt(spans.count), SPAN_WANDER * mean)


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
    fit: int = 0
    width: float = 1.0
    """By which the scores of earlier fits had its interval multiplied (log) ..."""
    surprise: float = 1.0
    """... and by which this fit's own earlier forecasts."""


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
