"""What `bench.forecast` notes of a run: forecasts at 10, 25, 50 and 75 % of its work, and what came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from selfsched.protocol import Forecast

MILESTONES = (0.10, 0.25, 0.50, 0.75)


@dataclass(frozen=True, kw_only=True)
class Noted:
    """A forecast at a milestone, and the mean rate's on the same run at the same moment."""

    at: float
    made_at: float
    """On the run's clock, like the finish."""
    ours: Forecast | None
    """None: the end was said to be unknown."""
    mean_rate_seconds: float | None
    """Elapsed time / steps done x steps to the stated limit; None: no limit is stated."""
    end_is_unknown: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the result; the first eight fields are the contract."""

    name: str
    source: Literal["real", "replay"]
    resized: bool
    at: float
    remaining_s: float
    ours_error: float | None
    """|predicted - actual| / actual; None: the end was said to be unknown."""
    tqdm_error: float | None
    covered80: bool | None
    kind: str
    seed: int
    predicted_s: float | None
    low_s: float | None
    high_s: float | None
    end_is_unknown: bool


@dataclass(frozen=True, kw_only=True)
class RunName:
    """Which run a row is of."""

    name: str
    kind: str
    source: Literal["real", "replay"]
    resized: bool
    seed: int = 0


def milestone_step(steps: int, at: float) -> int:
    """The first step at or after such a part of the work."""
    return max(1, round(at * steps))


def mean_rate_seconds(elapsed_seconds: float, done: int, limit: int | None) -> float | None:
    """What a progress bar expects: the steps to the limit at the mean rate so far."""
    if limit is None or done <= 0:
        return None
    return elapsed_seconds / done * max(0, limit - done)


def rows_of(noted: Sequence[Noted], finished_at: float, run: RunName) -> list[Row]:
    """Hold every forecast of a run against its end."""
    return [_row(note, finished_at - note.made_at, run) for note in noted if finished_at > note.made_at]


def _row(note: Noted, remaining: float, run: RunName) -> Row:
    ours, rate = note.ours, note.mean_rate_seconds
    return Row(
        name=run.name, source=run.source, resized=run.resized, at=note.at, remaining_s=remaining,
        ours_error=None if ours is None else abs(ours.p50_seconds - remaining) / remaining,
        tqdm_error=None if rate is None else abs(rate - remaining) / remaining,
        covered80=None if ours is None else ours.p10_seconds <= remaining <= ours.p90_seconds,
        kind=run.kind, seed=run.seed,
        predicted_s=None if ours is None else ours.p50_seconds,
        low_s=None if ours is None else ours.p10_seconds,
        high_s=None if ours is None else ours.p90_seconds,
        end_is_unknown=note.end_is_unknown,
    )  # fmt: skip
