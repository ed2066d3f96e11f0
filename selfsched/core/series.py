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
- *Drift*: cycles are summed in blocks of consecutive steps. What the blocks say of the steps
  to come, when the level wandered, sloped or changed, is the business of `wander`. The
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
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from selfsched.core.batch_sizes import BatchSizes
from selfsched.core.drift import Drift, PartHistory, drift_of
from selfsched.core.measurement import (
    BIN_RATIO,
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    Running,
    Sketch,
    running_of,
)
from selfsched.core.wander import Wander

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
CONTRADICTION = math.log(1.4)
"""Steps of another segment that are off by more (log) are not those that were measured."""
LEAST_WARM_UP = 3
"""So many steps of a warm-up tell how fast steps may become."""
EARLY_WANDER = 0.15
"""Wandering (log) of the mean before there are blocks."""
NOW_SHARE = 0.1
"""The present level is that of so much more as was watched."""
REFIT_SHARE = 40
"""What the blocks say is asked anew when there is so much more of it."""
PRIOR_CHANGE_SIGMA = 0.1
PRIOR_CHANGES = 4
"""Noise of a step before steps have shown it, with the weight of so many."""
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
    step_sigma: float
    """Standard deviation of one cycle around the mean, relative to the mean."""
    drifted: bool
    """The level changed on the way; steps before that say little."""


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
    history: PartHistory = field(default_factory=PartHistory)
    """Its parts along the way: why a step became slower."""
    _last_cycle: float | None = None
    changes: Running = field(default_factory=Running)
    """Squared differences of consecutive cycles: noise of single steps, whatever the level does."""
    _sizes: BatchSizes = field(default_factory=BatchSizes, compare=False)
    _rescaled_after: int = 0
    """Counted steps that had another batch than the present one."""
    _fresh: list[float] | None = field(default=None, compare=False)
    """Steady cycles since the steps went on in another segment; None: they do not contradict."""
    _fresh_warm: list[float] = field(default_factory=list, compare=False)
    _level: Level | None = field(default=None, compare=False)
    """Cached until the next step."""
    _wander: tuple[int, Wander] | None = field(default=None, compare=False)
    """Cached until there are more blocks: (steps counted, what they say)."""

    def went_on(self) -> None:
        """Steps go on in another segment, maybe of another training: they may say otherwise."""
        self._level = None
        self._fresh, self._fresh_warm = ([], []) if self.sketch.count >= RAW_STEPS else (None, [])

    def warmed_up(self, cycle_seconds: float) -> None:
        """Count a step of the warm-up."""
        self._level = None
        if self._fresh is not None:
            self._fresh_warm.append(cycle_seconds)
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
        cycle_seconds = min(max(cycle_seconds, SHORTEST_SECONDS), LONGEST_SECONDS)
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
        if self._fresh is not None:
            self._fresh.append(cycle_seconds)
            if len(self._fresh) >= RAW_STEPS:
                self._judge_fresh(self._fresh)
        return True

    def sized(self, samples: int, passes: int = 1) -> float:
        """The next step has so many samples; 0: not told.

        Where the batch changes for good, what was measured is taken as what the new batch would
        have needed at the same time a sample: a first guess, which its own steps then correct.
        Where batches vary from step to step nothing is rescaled (`batch_sizes`).

        Args:
            samples: on one device.
            passes: of accumulation.

        Returns:
            What the cycle of that step is to be multiplied by before it is counted.
        """
        judged = self._sizes.judge(samples, passes)
        if judged.rescale != 1.0:
            self._rescale(judged.rescale)
        return judged.scale

    def part(self, name: str, seconds: Sequence[float | None]) -> list[float]:
        """Count a part (`data`, `forward`, ...) of several steps; None was not measured.

        Returns:
            Those that were counted.
        """
        usable = [s for s in seconds if s is not None and 0.0 <= s <= LONGEST_SECONDS]
        self.parts.setdefault(name, Running()).merge(running_of(usable))
        return usable

    def level(self) -> Level | None:
        """Mean cost of a step and how well it is known; None before the first step."""
        if self._level is None:
            early = self.sketch.count < RAW_STEPS
            self._level = self._early_level() if early else self._contradicted(self._steady_level())
        return self._level

    def ahead(self, steps: float) -> tuple[float, float]:
        """The mean cycle of the next `steps` steps against that of now.

        Returns:
            (factor, what it may be off by as a standard deviation of the logarithm).
        """
        wander = self.wander()
        if wander is None:
            return 1.0, EARLY_WANDER
        now, then = wander.ahead(NOW_SHARE * wander.steps), wander.ahead(steps)
        beyond = math.sqrt(max(0.0, then.sigma_log**2 - now.sigma_log**2))
        return then.seconds / now.seconds, beyond

    def wander(self) -> Wander | None:
        """What the blocks say of the steps to come; None before there are any."""
        if self.sketch.count < RAW_STEPS:
            return None
        count = self.sketch.count
        fresh = self._wander is not None and count < self._wander[0] + max(1, count // REFIT_SHARE)
        if self._wander is None or not fresh:
            self._wander = count, Wander(
                self._whole_blocks(), self._step_sigma(), rescaled_after=self._rescaled_after
            )
        return self._wander[1]

    def parts_of(self, means: Mapping[str, float], count: int) -> None:
        """Means of the parts over the newest `count` steady steps."""
        self.history.add(self.steady, count, means)

    def drift(self) -> Drift | None:
        """The newest change of the level, with its reason; None: there was none."""
        wander = self.wander()
        if wander is None or not wander.shifts:
            return None
        shifts = wander.shifts
        return drift_of(self.history, shifts[-1], steady=self.steady, changes=len(shifts))

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
        wander = self.wander()
        assert wander is not None
        now = wander.ahead(NOW_SHARE * wander.steps)
        habit = self._habit_seconds()
        few = (0.5 * PRIOR_STEP_SIGMA) ** 2 / self.steady  # what few blocks may not have shown
        return Level(
            count=self.steady,
            seconds=now.seconds + habit,
            sigma_log=min(math.sqrt(now.sigma_log**2 + few), 3.0),
            step_sigma=min(self._step_sigma(), 30.0),
            drifted=bool(wander.shifts),
        )

    def _contradicted(self, level: Level) -> Level:
        """The level, widened where the first steps of a segment say something else."""
        if self._fresh:
            seen = statistics.median(self._fresh)
        elif len(self._fresh_warm) >= LEAST_WARM_UP:  # slower than what comes, but for the fastest
            seen = min(self._fresh_warm)
        else:
            return level
        off = abs(math.log(seen / level.seconds))
        if off <= max(CONTRADICTION, 3.0 * level.step_sigma / math.sqrt(max(1, len(self._fresh or ())))):
            return level
        return replace(level, seconds=math.sqrt(seen * level.seconds), sigma_log=max(level.sigma_log, off))

    def _judge_fresh(self, fresh: list[float]) -> None:
        """Enough steps of a segment: where they contradict, only they speak from now on."""
        usual = self.sketch.quantile(0.5) or fresh[0]
        off = abs(math.log(statistics.median(fresh) / usual))
        self._fresh, self._fresh_warm = None, []
        if off > max(CONTRADICTION, 3.0 * self._step_sigma() / math.sqrt(len(fresh))):
            self._begin_anew(fresh)

    def _early_level(self) -> Level | None:
        if self._raw:
            seconds = statistics.median(self._raw)
            sigma = PRIOR_STEP_SIGMA / math.sqrt(len(self._raw)) + 0.1
        elif self._warm_cycles:
            # Warm-up steps are slower than what comes, the first ones by far: hence the median.
            seconds = 0.9 * statistics.median(self._warm_cycles)
            sigma = 0.5 + 0.5 / len(self._warm_cycles)
        else:
            return None
        return Level(
            count=len(self._raw), seconds=seconds, sigma_log=sigma, step_sigma=PRIOR_STEP_SIGMA,
            drifted=False,
        )  # fmt: skip

    def _step_sigma(self) -> float:
        mean = max(self.cycles.mean, SHORTEST_SECONDS)
        seen, expected = self.changes.mean / (2.0 * mean**2), PRIOR_CHANGE_SIGMA**2
        count = self.changes.count
        return math.sqrt((seen * count + expected * PRIOR_CHANGES) / (count + PRIOR_CHANGES))

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
        self.steady += len(slow)
        self._begin_anew(slow * 2)  # twice, so that the sketch can tell accidents apart again

    def _begin_anew(self, cycles: Sequence[float]) -> None:
        """The job's steps have become others: from now on these cycles speak."""
        self.blocks.clear()
        self.cycles, self.sketch, self._open = Running(), Sketch(), (0, 0.0)
        self.changes, self._last_cycle, self._wander = Running(), None, None
        self._rescaled_after = 0
        self.block_steps = FIRST_BLOCK_STEPS
        self._in_a_row.clear()
        self.parts, self.history = {}, PartHistory()
        for seconds in cycles:
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
        if self._last_cycle is not None:
            self.changes.update((seconds - self._last_cycle) ** 2)
        self._last_cycle = seconds
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

    def _rescale(self, factor: float) -> None:
        self.blocks = [(steps, min(factor * mean, LONGEST_SECONDS)) for steps, mean in self.blocks]
        self._open = (self._open[0], factor * self._open[1])
        self._raw = [factor * seconds for seconds in self._raw]
        self._warm_cycles = [factor * seconds for seconds in self._warm_cycles]
        for running in (self.cycles, *self.parts.values()):
            running.mean, running.m2 = factor * running.mean, factor**2 * running.m2
        self.changes = Running(self.changes.count, factor**2 * self.changes.mean, factor**4 * self.changes.m2)
        shift = round(math.log(factor) / math.log(BIN_RATIO))
        self.sketch = Sketch.from_state([[index + shift, n] for index, n in self.sketch.to_state()])
        self.history = self.history.scaled(factor)
        self._rescaled_after = self.sketch.count
        self._last_cycle = self._level = self._wander = None

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
            "history": self.history.to_state(),
            "changes": asdict(self.changes),
            "last_cycle": self._last_cycle,
            "samples": [self._sizes.usual, self._rescaled_after],
            "in_a_row": list(self._in_a_row),
            "parts": {name: asdict(part) for name, part in self.parts.items()},
            "logs": [asdict(x) for x in (self.log_step, self.log_compute, self.log_communication)],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Series:
        """What `to_state` gave.

        Raises:
            ValueError: no series has such counts or times.
        """
        step, compute, communication = (Running(**logs) for logs in state["logs"])
        series = cls(
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
            history=PartHistory.from_state(state["history"]),
            changes=Running(**state["changes"]),
            _last_cycle=state["last_cycle"],
            _sizes=BatchSizes(state["samples"][0]),
            _rescaled_after=state["samples"][1],
            _in_a_row=list(state["in_a_row"]),
        )
        series._check()
        return series

    def _check(self) -> None:
        """Raises ValueError where counts or times are none."""
        runnings = (self.cycles, self.warm_up, self.changes, *self.parts.values())
        counts = [self.steady, self.interruptions, self._sizes.usual, self._rescaled_after]
        counts += [self.block_steps - 1, self._open[0]]
        counts += [*(running.count for running in runnings), *self.sketch.bins.values()]
        times = [self.steady_seconds, self.interrupted_seconds, self._open[1], *self._in_a_row]
        times += [running.mean for running in runnings] + [running.m2 for running in runnings]
        cycles = [*(mean for _, mean in self.blocks), *self._raw, *self._warm_cycles]
        counted = sum(steps for steps, _ in self.blocks) + self._open[0]
        if min(counts) < 0 or min(times) < 0 or min(cycles, default=1.0) <= 0:
            raise ValueError("a negative count or time")
        shortest = min((steps for steps, _ in self.blocks), default=1)
        if shortest < 1 or max(cycles, default=0.0) > LONGEST_SECONDS:
            raise ValueError("a block without steps, or for ever")
        if self.sketch.count >= RAW_STEPS and not (counted and self.cycles.mean > 0):
            raise ValueError("steps without times")

