"""All steps of a job on one device count, and how well their mean cost is known.

The cost of a step that a forecast needs is its *cycle*: the time from the end of one
optimiser step to the end of the next, waits for data, logging and callbacks included,
validations, checkpoints and the gaps between epochs taken out (they are counted on their
own, as `Spans`). Many cycles are summed to a finish time, so what counts is their mean, heavy
tail included, and how well that mean is known. A median would be robust but too early.

Three things would spoil a mean, and each is met by its own rule:

- *Warm-up* (first steps of a segment: allocation, bucket rebuilding, compilation) is kept
  apart; it belongs to the cost of a restart.
- *Interruptions*: a process that was stopped for a minute shows one enormous cycle. A cycle
  far beyond everything seen is put aside. One is an accident; from the third on they are a
  habit of the job and their time per step belongs to the mean.
- *Drift*: cycles are summed in blocks of consecutive steps. When the newest blocks differ
  from the older ones by more than both scatter, the older ones fade (`Series.level`). The
  scatter between blocks, not between single steps, says how well the mean is known: noise
  of neighbours is correlated (the method of batch means, e.g. Law, "Simulation Modeling and
  Analysis", 9.5.3).

Blocks are merged in pairs when there are too many, so that a run of any length takes the
same memory. Everything can be written to plain JSON and read back.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from selfsched.core.measurement import LONGEST_SECONDS, SHORTEST_SECONDS, Running, Sketch, running_of

MAX_BLOCKS = 64
FIRST_BLOCK_STEPS = 4
RAW_STEPS = 8
"""So many cycles are kept as they are, until a median of them can tell accidents apart."""
KEPT_WARM_UP = 16
INTERRUPTION_FACTOR = 20.0
INTERRUPTION_SECONDS = 5.0
HABIT = 3
NEW_REGIME = 5
"""So many interruptions in a row are no interruptions: the job has become that slow."""
EARLY_SCATTER = 0.05
PRIOR_STEP_SIGMA = 0.3
"""Scatter (log) of single cycles before there are blocks to measure it."""



@dataclass(frozen=True, kw_only=True)
class Level:
    """The cost of a step on one device count, as its own measurements have it."""

    count: int
    """Steady steps it rests on; 0: only warm-up was seen."""
    seconds: float
    """Mean cycle, tail and habitual interruptions included."""
    sigma_log: float
    """Standard deviation of the logarithm of that mean: how well it is known."""
    scatter_log: float
    """Scatter between blocks beyond what independent steps explain: neighbours and drift."""
    step_sigma: float
    """Standard deviation of one cycle around the mean, relative to the mean."""
    drifted: bool
    """The newest blocks differ from the older ones, which therefore count little."""


@dataclass
class Series:
    """All steps of a job on one device count."""

    steady: int = 0
    steady_seconds: float = 0.0
    warm_up: Running = field(default_factory=Running)
    interruptions: int = 0
    interrupted_seconds: float = 0.0
    cycles: Running = field(default_factory=Running)
    sketch: Sketch = field(default_factory=Sketch)
    blocks: list[tuple[int, float]] = field(default_factory=list)
    """(steps, mean cycle), oldest first."""
    block_steps: int = FIRST_BLOCK_STEPS
    parts: dict[str, Running] = field(default_factory=dict)
    log_step: Running = field(default_factory=Running)
    log_compute: Running = field(default_factory=Running)
    log_communication: Running = field(default_factory=Running)
    _raw: list[float] = field(default_factory=list)
    _warm_cycles: list[float] = field(default_factory=list)
    _open: tuple[int, float] = (0, 0.0)
    _in_a_row: list[float] = field(default_factory=list)
    _level: Level | None = field(default=None, compare=False)
    """Cached until the next step."""

    def warmed_up(self, cycle_seconds: float) -> None:
        """Count a step of the warm-up."""
        self._level = None
        self._warm_cycles = [*self._warm_cycles[1 - KEPT_WARM_UP :], cycle_seconds]
        self.warm_up.update(cycle_seconds)

    def update(self, cycle_seconds: float) -> bool:
        """Count a steady step.

        Args:
            cycle_seconds: usable seconds from the last step's end to this one's.

        Returns:
            False when the cycle was put aside as an interruption.
        """
        self._level = None
        if self.sketch.count < RAW_STEPS:
            self._raw.append(cycle_seconds)
            self.steady += 1
            if len(self._raw) >= RAW_STEPS:
                self._sort_raw()
            return True
        if self._is_interruption(cycle_seconds):
            self._interrupt(cycle_seconds)
            return False
        self._in_a_row.clear()
        self._count(cycle_seconds)
        self.steady += 1
        return True

    def part(self, name: str, seconds: Sequence[float | None]) -> None:
        """Count a part (`data`, `forward`, ...) of several steps; None was not measured."""
        usable = [s for s in seconds if s is not None and 0.0 <= s <= LONGEST_SECONDS]
        self.parts.setdefault(name, Running()).merge(running_of(usable))

    def level(self) -> Level | None:
        """Mean cost of a step and how well it is known; None before the first step."""
        if self._level is None:
            self._level = self._early_level() if self.sketch.count < RAW_STEPS else self._steady_level()
        return self._level

    def quantile(self, fraction: float) -> float | None:
        """Quantile of the cycles; None before the first step."""
        if self.sketch.count:
            return self.sketch.quantile(fraction)
        seen = self._raw or self._warm_cycles
        return sorted(seen)[min(len(seen) - 1, int(fraction * len(seen)))] if seen else None

    def part_means(self) -> dict[str, float]:
        """Mean seconds of each measured part."""
        return {name: part.mean for name, part in self.parts.items() if part.count}

    # --- inside ----------------------------------------------------------------------

    def _steady_level(self) -> Level:
        # Plain Python: for some sixty blocks it is several times faster than numpy's calls.
        blocks = self._whole_blocks()
        means = [mean for _, mean in blocks]
        total = sum(steps for steps, _ in blocks)
        drifted = _has_drifted(means)
        half_life = (0.1 if drifted else 0.5) * total
        weights, age = [], 0
        for steps, _ in reversed(blocks):
            weights.append(steps * 2.0 ** (-age / half_life))
            age += steps
        weights.reverse()
        weight = math.fsum(weights)
        mean = math.fsum(w * x for w, x in zip(weights, means, strict=True)) / weight
        effective = weight**2 / math.fsum(w * w for w in weights)
        relative = math.fsum(w * (x / mean - 1.0) ** 2 for w, x in zip(weights, means, strict=True))
        scatter = math.sqrt(relative / weight)
        deviation = math.sqrt(self.cycles.variance or 0.0) / max(self.cycles.mean, SHORTEST_SECONDS)
        beyond = math.sqrt(max(0.0, scatter**2 - deviation**2 * len(blocks) / total))
        few = (0.5 * PRIOR_STEP_SIGMA) ** 2 / self.steady  # what few blocks may not have shown
        sigma = math.sqrt(scatter**2 / max(1.0, effective - 1.0) + few)
        return Level(
            count=self.steady,
            seconds=mean + self._habit_seconds(),
            sigma_log=min(sigma, 3.0),
            scatter_log=min(beyond, 3.0),
            step_sigma=min(deviation, 30.0),
            drifted=drifted,
        )

    def _early_level(self) -> Level | None:
        if self._raw:
            seconds = statistics.median(self._raw)
            sigma = PRIOR_STEP_SIGMA / math.sqrt(len(self._raw)) + 0.1
        elif self._warm_cycles:
            # Warm-up steps are slower than what comes, the first ones by far: hence the median.
            seconds, sigma = 0.9 * statistics.median(self._warm_cycles), 0.5
        else:
            return None
        return Level(
            count=len(self._raw), seconds=seconds, sigma_log=sigma, scatter_log=EARLY_SCATTER,
            step_sigma=PRIOR_STEP_SIGMA, drifted=False,
        )  # fmt: skip

    def _is_interruption(self, cycle_seconds: float) -> bool:
        if cycle_seconds < INTERRUPTION_SECONDS:
            return False
        usual = self.sketch.quantile(0.5) or cycle_seconds
        return cycle_seconds > max(INTERRUPTION_FACTOR * usual, usual + INTERRUPTION_SECONDS)

    def _interrupt(self, cycle_seconds: float) -> None:
        self.interruptions += 1
        self.interrupted_seconds += cycle_seconds
        self._in_a_row.append(cycle_seconds)
        if len(self._in_a_row) < NEW_REGIME:
            return
        slow = list(self._in_a_row)
        self.interruptions -= len(slow)
        self.interrupted_seconds -= sum(slow)
        self.blocks.clear()
        self.cycles, self.sketch, self._open = Running(), Sketch(), (0, 0.0)
        self.block_steps = FIRST_BLOCK_STEPS
        self._in_a_row.clear()
        self.steady += len(slow)
        for seconds in slow * 2:  # twice, so that the sketch can tell accidents apart again
            self._count(seconds)

    def _sort_raw(self) -> None:
        raw, self._raw = self._raw, []
        usual = statistics.median(raw)
        limit = max(INTERRUPTION_FACTOR * usual, usual + INTERRUPTION_SECONDS)
        for seconds in raw:
            if seconds > limit:
                self.interruptions += 1
                self.interrupted_seconds += seconds
                seconds = usual
            self._count(seconds)

    def _count(self, seconds: float) -> None:
        self.steady_seconds += seconds
        self.cycles.update(seconds)
        self.sketch.update(seconds)
        steps, total = self._open
        steps, total = steps + 1, total + seconds
        if steps >= self.block_steps:
            self.blocks.append((steps, total / steps))
            steps, total = 0, 0.0
            if len(self.blocks) >= MAX_BLOCKS:
                self._merge_blocks()
        self._open = (steps, total)

    def _merge_blocks(self) -> None:
        pairs = zip(self.blocks[::2], self.blocks[1::2], strict=True)
        self.blocks = [(a + b, (a * x + b * y) / (a + b)) for (a, x), (b, y) in pairs]
        self.block_steps *= 2

    def _whole_blocks(self) -> list[tuple[int, float]]:
        steps, total = self._open
        if steps and (steps >= self.block_steps // 2 or not self.blocks):
            return [*self.blocks, (steps, total / steps)]
        return self.blocks

    def _habit_seconds(self) -> float:
        if self.interruptions < HABIT:
            return 0.0
        return self.interrupted_seconds / (self.steady + self.interruptions)

    # --- state -----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Plain JSON values; `from_state` gives an equal series back."""
        return {
            "steady": self.steady,
            "steady_seconds": self.steady_seconds,
            "warm_up": asdict(self.warm_up),
            "interruptions": self.interruptions,
            "interrupted_seconds": self.interrupted_seconds,
            "cycles": asdict(self.cycles),
            "bins": self.sketch.to_state(),
            "blocks": [list(block) for block in self.blocks],
            "block_steps": self.block_steps,
            "open": list(self._open),
            "raw": list(self._raw),
            "warm_cycles": list(self._warm_cycles),
            "in_a_row": list(self._in_a_row),
            "parts": {name: asdict(part) for name, part in self.parts.items()},
            "logs": [asdict(x) for x in (self.log_step, self.log_compute, self.log_communication)],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Series:
        step, compute, communication = (Running(**logs) for logs in state["logs"])
        return cls(
            steady=state["steady"],
            steady_seconds=state["steady_seconds"],
            warm_up=Running(**state["warm_up"]),
            interruptions=state["interruptions"],
            interrupted_seconds=state["interrupted_seconds"],
            cycles=Running(**state["cycles"]),
            sketch=Sketch.from_state(state["bins"]),
            blocks=[(steps, mean) for steps, mean in state["blocks"]],
            block_steps=state["block_steps"],
            parts={name: Running(**part) for name, part in state["parts"].items()},
            log_step=step,
            log_compute=compute,
            log_communication=communication,
            _raw=list(state["raw"]),
            _warm_cycles=list(state["warm_cycles"]),
            _open=(state["open"][0], state["open"][1]),
            _in_a_row=list(state["in_a_row"]),
        )


def _has_drifted(means: Sequence[float]) -> bool:
    """Whether the newest blocks lie off the older ones by more than chance and 5 %."""
    recent = max(3, len(means) // 6)
    if len(means) < 3 * recent:
        return False
    logs = [math.log(mean) for mean in means]
    old, new = logs[:-recent], logs[-recent:]
    middle_old, middle_new = statistics.median(old), statistics.median(new)
    difference = abs(middle_new - middle_old)
    spread = max(_spread(old, middle_old), _spread(new, middle_new))
    return difference > 0.05 and difference > 4.0 * spread / math.sqrt(recent)


def _spread(values: Sequence[float], middle: float) -> float:
    """Robust standard deviation: 1.4826 times the median absolute deviation."""
    return 1.4826 * statistics.median(abs(value - middle) for value in values)
