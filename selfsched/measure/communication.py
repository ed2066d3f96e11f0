"""Exposed communication of a data-parallel step, from two sources that check each other.

1. `DistributedDataParallel` has a sampled logger of its own, in C++ (CUDA events on a GPU): it
   costs no collective and no synchronisation of ours. It tells how long the backward pass
   communicated, and how long it computed meanwhile. What is not at once is exposed.
2. Where gradients accumulate, all passes but the last leave the exchange out: the last
   backward's surplus over the others is what the exchange costs (`Stopwatch`,
   `DeviceMarks`). It is the wall-clock of the very step, the slowing of computation by the
   exchange included.

Where both exist, the second is told, and the first only compared: when their medians are more
than a factor of two apart, and by more than a hundredth of the step, that is said once.
Where there is one, it is told; where there is none, communication is not known, not zero.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any

from selfsched.measure.lightning_names import ddp_logging_data, sample_ddp_logging

SAMPLE_EVERY_STEPS = 10
KEPT = 32
"""Newest samples of either source."""
ENOUGH = 5
"""Samples of either source for a comparison."""
FACTOR = 2.0
NEGLIGIBLE_SHARE = 0.01


class CommunicationMeter:
    """Reads DDP's logger of one rank now and then, and compares.

    Args:
        ddp_module: what the strategy trains: the DDP wrapper, or the bare module.
        world_size: ranks that exchange gradients.
    """

    def __init__(self, ddp_module: Any, world_size: int) -> None:
        self._module = ddp_module
        self.exchanges = world_size > 1
        self._sampled = self.exchanges and sample_ddp_logging(ddp_module, SAMPLE_EVERY_STEPS)
        self._iteration = -1
        self._logged: deque[float] = deque(maxlen=KEPT)
        self._accumulated: deque[float] = deque(maxlen=KEPT)
        self._steps: deque[float] = deque(maxlen=KEPT)

    def buckets_settled(self) -> bool:
        """Whether DDP's buckets have their final order, or never get another."""
        if not self._sampled:
            return True
        data = ddp_logging_data(self._module)
        return bool(data.get("has_rebuilt_buckets") or data.get("find_unused_parameters"))

    def read_seconds(self) -> float | None:
        """DDP's newest sample; None when there is none since the last look that can be used."""
        if not self._sampled:
            return None
        data = ddp_logging_data(self._module)
        iteration = data.get("iteration")
        if iteration is not None and iteration == self._iteration:
            return None
        spent = _nanoseconds(data, "backward_comm_time")
        overlapped = _nanoseconds(data, "backward_compute_comm_overlap_time")
        if spent is None or overlapped is None or spent <= 0:
            return None
        self._iteration = -1 if iteration is None else iteration
        seconds = max(0.0, spent - overlapped) * 1e-9
        self._logged.append(seconds)
        return seconds

    def accumulated(self, seconds: float, step_seconds: float) -> None:
        """Take note of what the exchanging pass of a steady step took more than the others.

        Args:
            seconds: that surplus.
            step_seconds: of the whole step.
        """
        self._accumulated.append(seconds)
        self._steps.append(step_seconds)

    @property
    def told_by_passes(self) -> bool:
        """Whether accumulation tells it already: DDP's samples then only check it."""
        return len(self._accumulated) >= ENOUGH

    def disagreement(self) -> str | None:
        """In words, how far the two sources are apart; None: they agree, or one is missing."""
        if min(len(self._accumulated), len(self._logged)) < ENOUGH:
            return None
        passes, logged = statistics.median(self._accumulated), statistics.median(self._logged)
        low, high = sorted((passes, logged))
        if high <= FACTOR * low or high - low <= NEGLIGIBLE_SHARE * statistics.median(self._steps):
            return None
        return (
            f"the exchange of gradients takes {1e3 * passes:.3g} ms of a step by the difference between "
            f"accumulation passes and {1e3 * logged:.3g} ms by DDP's own timers; the difference is counted"
        )


def _nanoseconds(data: dict[str, Any], name: str) -> float | None:
    value = data.get(name)
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)
