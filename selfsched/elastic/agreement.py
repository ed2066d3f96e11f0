"""All ranks leave, or save, at the same batch.

Each rank reads the order and its own clock, and might see them a step apart. So every K
steps the ranks take the maximum of what each wants, in one tiny CPU tensor over a gloo group
of their own; K is chosen from the measured cost so that it stays under 0.1 % of a step, but
never so large that ranks talk less often than about twice a second.
A planned cut needs none of it: every rank knows the step beforehand.
"""

from __future__ import annotations

import datetime
import math
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist

_SHARE_OF_STEP = 0.001
_LONGEST_STRIDE_SECONDS = 0.5
_SIDE_TIMEOUT = datetime.timedelta(seconds=60)


class Reason(IntEnum):
    """Why to leave; where ranks differ the highest counts."""

    NONE = 0
    PLANNED = 1
    ORDERED = 2
    DEADLINE = 3
    STOPPED = 4


@dataclass(frozen=True)
class Wish:
    """What one rank, or all of them together, want before the next batch."""

    leave: Reason = Reason.NONE
    save: bool = False


class Ranks:
    """The side group of this segment's ranks. Every method is called by all ranks alike."""

    def __init__(self, world_size: int, rank: int) -> None:
        self.world_size = world_size
        self.rank = rank
        self._group: Any = None

    def _side_group(self) -> Any:
        if self._group is None:
            self._group = dist.new_group(backend="gloo", timeout=_SIDE_TIMEOUT)
        return self._group

    @property
    def alone(self) -> bool:
        """One rank, or no process group (yet)."""
        return self.world_size == 1 or not (dist.is_available() and dist.is_initialized())

    def maximum(self, values: list[int]) -> list[int]:
        """Element-wise maximum over the ranks."""
        if self.alone:
            return values
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._side_group())
        return [int(value) for value in tensor]

    def gathered(self, value: Any) -> list[Any]:
        """Every rank's value, by rank. For small objects."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._side_group())
        return values

    def barrier(self) -> None:
        """Wait for all ranks."""
        if not self.alone:
            dist.barrier(group=self._side_group())


class Agreement:
    """Decides before each step, with as little talk as will do."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._stride = 1
        self._since = 0
        self._cost_seconds: float | None = None
        self._exchanged_at: float | None = None

    @property
    def stride(self) -> int:
        """Steps between two exchanges."""
        return 1 if self._ranks.alone else self._stride

    def due(self) -> bool:
        """Count a step; True when the ranks exchange their wishes before it."""
        self._since += 1
        if self._since < self.stride:
            return False
        self._since = 0
        return True

    def exchange(self, wish: Wish, step_seconds: float | None) -> Wish:
        """The wish of all ranks together; sets the next stride from rank 0's figures.

        Args:
            wish: This rank's own.
            step_seconds: Time of a recent step; None: not known yet.
        """
        if self._ranks.alone:
            return wish
        started = time.perf_counter()
        pace = self._pace(started, step_seconds)
        proposal = stride_for(self._cost_seconds, step_seconds, pace) if self._ranks.rank == 0 else 0
        leave, save, stride = self._ranks.maximum([int(wish.leave), int(wish.save), proposal])
        # The smallest is its cost; the rest is waiting for the others, which the step does anyway.
        self._cost_seconds = min(time.perf_counter() - started, self._cost_seconds or math.inf)
        self._stride = max(1, stride)
        self._exchanged_at = time.perf_counter()
        return Wish(Reason(leave), bool(save))


    def _pace(self, now: float, step_seconds: float | None) -> float | None:
        """Seconds a step really took since the last exchange; the quickest step says too little."""
        if step_seconds is None or self._exchanged_at is None:
            return step_seconds
        return max(step_seconds, (now - self._exchanged_at) / self._stride)


def stride_for(
    cost_seconds: float | None, step_seconds: float | None, pace_seconds: float | None = None
) -> int:
    """Steps between two exchanges: a thousandth of the time, but half a second apart at most.

    Args:
        cost_seconds: Of one exchange; None: not measured yet.
        step_seconds: Of one step; None: not measured yet.
        pace_seconds: Mean from step to step, waits and all; None: as `step_seconds`.
    """
    if not step_seconds or cost_seconds is None:
        return 1
    cheap = math.ceil(cost_seconds / (_SHARE_OF_STEP * step_seconds) - 1e-9)
    soon = max(1, math.floor(_LONGEST_STRIDE_SECONDS / (pace_seconds or step_seconds) + 1e-9))
    return max(1, min(cheap, soon))
