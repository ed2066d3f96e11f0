"""What jobs say of their steps: a ring over so many bytes a second, and nonsense; and where they were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from selfsched.protocol import Moments, Placement, StepStatistics
from selfsched_broker.core.books import Books, Device, Holding, Lease, Record
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


def devices_of(hardware: str, count: int, nodes: int = 1) -> list[Device]:
    """Devices, dealt over nodes."""
    return [
        Device(id=f"{hardware}-{n}", node=f"node{n % nodes}", index=n, model=hardware, kind="gpu")
        for n in range(count)
    ]


def past_lease(
    job: str, fence: int, devices: Sequence[Device], begun: float, left: float
) -> list[Record]:
    """Records of a lease that is over."""
    lease = Lease(
        id=f"lease-{fence}", job=job, fence=fence, granted_at=begun, term_ends_at=left, ended_at=left,
        end_reason="released",
    )  # fmt: skip
    holdings = [
        Holding(lease=lease.id, device=device.id, state="ended", since=left, left_at=left)
        for device in devices
    ]
    return [*devices, lease, *holdings]


def past_leases(
    books: Books, job: str, *, hardware: str = "Tesla-V100", counts: Sequence[int] = (1, 2, 4)
) -> list[Record]:
    """Records of leases that are over, on so many devices each, one after the other."""
    fence = books.broker.next_fence
    records: list[Record] = [replace(books.broker, next_fence=fence + len(counts))]
    for number, count in enumerate(counts):
        begun = -2.0 * (number + 1)
        records += past_lease(job, fence + number, devices_of(hardware, count), begun, begun + 1.0)
    return records
