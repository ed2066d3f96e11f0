"""From values to places in a drawing, and the round values that its axes name. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_ROUND_SECONDS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200,
    86_400, 172_800, 432_000, 864_000,
)  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """Maps [low, high] onto [begin, end]; a range that holds nothing is widened."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        width = (self.high - self.low) or 1.0
        part = (value - self.low) / width
        return self.begin + min(1.0, max(0.0, part)) * (self.end - self.begin)


def round_values(high: float, most: int = 4) -> list[float]:
    """Round values from 0 to `high` (above 0), at most `most` of them beside 0."""
    if not (high > 0 and math.isfinite(high)):
        return [0.0]
    raw = high / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    return [step * index for index in range(int(high / step * (1 + 1e-9)) + 1)]


def round_counts(counts: Sequence[int], most: int = 8) -> list[int]:
    """Of device counts those that an axis names: all, or evenly chosen ones with the first and last."""
    if len(counts) <= most:
        return list(counts)
    stride = (len(counts) - 1) / (most - 1)
    return [counts[round(index * stride)] for index in range(most)]


def round_durations(high: float, most: int = 4) -> list[float]:
    """Round durations from 0 to `high` seconds, at most `most` of them beside 0."""
    for step in _ROUND_SECONDS:
        if high / step <= most:
            return [float(step * index) for index in range(int(max(0.0, high) / step) + 1)]
    return round_values(high, most)


def short_duration(seconds: float) -> str:
    """A round duration on an axis: `0`, `30 s`, `5 min`, `2 h`, `3 d`."""
    if seconds <= 0:
        return "0"
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"
