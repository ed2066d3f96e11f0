"""What jobs say of their steps: a ring over so many bytes a second, and nonsense."""

from __future__ import annotations

import math
from collections.abc import Sequence

from selfsched.protocol import Moments, Placement, StepStatistics
from selfsched_broker.core.evidence import heard
from selfsched_broker.core.past_records import JobEvidence

BYTES = 4 * 10**8


def entry(devices: int, seconds: float, *, steps: int = 100, **changes: object) -> StepStatistics:
    values: dict[str, object] = {
        "hardware": "Tesla-V100", "placement": Placement(devices=devices), "local_samples": 64 // devices,
        "gradient_bytes": BYTES, "log_step": Moments(count=steps, mean=math.log(seconds), m2=0.01 * steps),
    }  # fmt: skip
    return StepStatistics(**(values | changes))  # type: ignore[arg-type]


def said(
    bandwidth: float,
    *,
    compute_seconds: float = 0.1,
    counts: Sequence[int] = (1, 2, 4),
    steps: int = 100,
    hardware: str = "Tesla-V100",
) -> tuple[StepStatistics, ...]:
    """Of a job whose ring reaches this bandwidth and hides nothing."""
    return tuple(
        entry(
            n, compute_seconds / n + 2 * (n - 1) / n * BYTES / bandwidth, steps=steps, hardware=hardware
        )
        for n in counts
    )


def evidence_of(account: str, name: str, *statistics: StepStatistics, at: float = 1.0) -> JobEvidence:
    found = heard(None, account, name, statistics, at)
    assert found is not None
    return found
