"""What was measured, kept in bounded memory: moments, quantiles, stretches.

Every statistic carries an explicit count, so that zero is a value and never "no data",
merges exactly with another of its kind, and can be written to plain JSON and read back.
Durations that cannot be (NaN, infinite, zero, negative) are no measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from selfsched.protocol import Moments

SHORTEST_SECONDS = 1e-7
LONGEST_SECONDS = 1e8
BIN_RATIO = 1.05
"""Width of a bin of the sketch: quantiles are right to 2.5 %."""


def usable_seconds(seconds: float | None) -> float | None:
    """A duration that can be counted, clipped to a sane range; None for nonsense.

    Args:
        seconds: as a clock gave it; NaN, infinite, zero and negative ones are nonsense.
    """
    if seconds is None or not math.isfinite(seconds) or seconds <= 0:
        return None
    return min(max(seconds, SHORTEST_SECONDS), LONGEST_SECONDS)


@dataclass
class Running:
    """Count, mean and squared deviations of a stream (Welford); merges exactly."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    def update(self, value: float) -> None:
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self.m2 += delta * (value - self.mean)

    def merge(self, other: Running) -> None:
        """Add another stream (Chan et al. 1979)."""
        if other.count == 0:
            return
        total = self.count + other.count
        delta = other.mean - self.mean
        self.m2 += other.m2 + delta * delta * self.count * other.count / total
        self.mean += delta * other.count / total
        self.count = total

    @property
    def variance(self) -> float | None:
        """Unbiased variance; None below two values."""
        return self.m2 / (self.count - 1) if self.count > 1 else None

    def moments(self) -> Moments:
        return Moments(count=self.count, mean=self.mean, m2=max(0.0, self.m2))


def running_of(values: Sequence[float]) -> Running:
    """The `Running` of several values at once."""
    count = len(values)
    if count == 0:
        return Running()
    mean = math.fsum(values) / count
    return Running(count, mean, math.fsum((value - mean) ** 2 for value in values))


@dataclass
class Sketch:
    """Quantiles of positive values from logarithmic bins: bounded, exactly mergeable.

    After Masson, Rim, Lee, "DDSketch", VLDB 2019, with the range of values bounded
    beforehand, so at most some 700 bins.
    """

    bins: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def update(self, seconds: float) -> None:
        index = math.floor(math.log(seconds) / math.log(BIN_RATIO))
        self.bins[index] = self.bins.get(index, 0) + 1
        self.count += 1

    def merge(self, other: Sketch) -> None:
        for index, count in other.bins.items():
            self.bins[index] = self.bins.get(index, 0) + count
        self.count += other.count

    def to_state(self) -> list[list[int]]:
        return [[index, count] for index, count in sorted(self.bins.items())]

    @classmethod
    def from_state(cls, state: Iterable[Sequence[int]]) -> Sketch:
        bins = {int(index): int(count) for index, count in state}
        return cls(bins=bins, count=sum(bins.values()))

    def quantile(self, fraction: float) -> float | None:
        """The value below which `fraction` of all lie; None when there are none."""
        below = 0
        for index in sorted(self.bins):
            below += self.bins[index]
            if below >= fraction * self.count:
                return math.exp((index + 0.5) * math.log(BIN_RATIO))
        return None


ACCIDENT_FACTOR = 20.0
ACCIDENT_SECONDS = 5.0
ENOUGH_SPANS = 4
MOST_ACCIDENTS = 2


@dataclass
class Spans:
    """Stretches of one kind that are no steps: validations, checkpoints, starts.

    One that took over twenty times the usual, and five seconds more, was most likely no longer
    itself: a process that was stopped, a disk that hung. The first two such are put aside, as
    with steps; a third says that they belong to it, and then all count.
    """

    running: Running = field(default_factory=Running)
    sketch: Sketch = field(default_factory=Sketch)
    aside: list[float] = field(default_factory=list)
    """Seconds of accidents, at most two."""

    def update(self, seconds: float) -> None:
        """Count a stretch; a zero one counts as zero, nonsense not at all."""
        if not math.isfinite(seconds) or seconds < 0:
            return
        clipped = min(max(seconds, SHORTEST_SECONDS), LONGEST_SECONDS)
        if not self._is_accident(clipped):
            self._count(clipped)
            return
        self.aside.append(clipped)
        if len(self.aside) > MOST_ACCIDENTS:
            for accident in self.aside:
                self._count(accident)
            self.aside = []

    def _is_accident(self, seconds: float) -> bool:
        if self.count < ENOUGH_SPANS or seconds < ACCIDENT_SECONDS:
            return False
        usual = self.sketch.quantile(0.5) or seconds
        return seconds > max(ACCIDENT_FACTOR * usual, usual + ACCIDENT_SECONDS)

    def _count(self, seconds: float) -> None:
        self.running.update(seconds)
        self.sketch.update(seconds)

    @property
    def count(self) -> int:
        return self.running.count

    def mean(self, *, prior_seconds: float = 0.0, prior_count: float = 0.0) -> float:
        """Mean, drawn towards a prior that weighs as much as `prior_count` stretches."""
        weight = self.running.count + prior_count
        if weight == 0:
            return prior_seconds
        return (self.running.mean * self.running.count + prior_seconds * prior_count) / weight

    def to_state(self) -> dict[str, Any]:
        return {
            "running": asdict(self.running), "bins": self.sketch.to_state(), "aside": list(self.aside),
        }  # fmt: skip

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Spans:
        return cls(
            running=Running(**state["running"]),
            sketch=Sketch.from_state(state["bins"]),
            aside=list(state.get("aside", ())),
        )
