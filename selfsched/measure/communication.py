"""Exposed communication of a data-parallel step, from what DDP times anyway.

`DistributedDataParallel` has a sampled logger of its own, in C++ (CUDA events on a GPU): it
costs no collective and no synchronisation of ours. It tells how long the backward pass
computed, how long it communicated and how much of both at once. What is not at once is
exposed. Where this torch has no such logger, the difference between accumulation passes
with and without exchange stands in (`Stopwatch`); otherwise communication is not measured.
"""

from __future__ import annotations

import math
from typing import Any

from selfsched.measure.lightning_names import ddp_logging_data, sample_ddp_logging

SAMPLE_EVERY_STEPS = 10


class CommunicationMeter:
    """Reads DDP's logger of one rank now and then.

    Args:
        ddp_module: what the strategy trains: the DDP wrapper, or the bare module.
        world_size: ranks that exchange gradients.
    """

    def __init__(self, ddp_module: Any, world_size: int) -> None:
        self._module = ddp_module
        self.exchanges = world_size > 1
        self._sampled = self.exchanges and sample_ddp_logging(ddp_module, SAMPLE_EVERY_STEPS)

    def read_seconds(self) -> float | None:
        """Exposed communication of a step, averaged by DDP; None where it is not known (yet)."""
        if not self._sampled:
            return None
        data = ddp_logging_data(self._module)
        spent = _nanoseconds(data, "avg_backward_comm_time")
        overlapped = _nanoseconds(data, "avg_backward_compute_comm_overlap_time")
        if spent is None or overlapped is None or spent <= 0:
            return None
        return max(0.0, spent - overlapped) * 1e-9


def _nanoseconds(data: dict[str, Any], name: str) -> float | None:
    value = data.get(name)
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)
