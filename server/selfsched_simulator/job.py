"""A simulated job: what supervisor, ranks and model do in reality, in a few numbers.

It registers, reports, bids, obeys instructions, leaves and ends by the same messages. Its
progress follows the hidden truth: from `restart_seconds` after it got its devices it advances
at the rate of the truth; leaving is immediate and loses nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from selfsched.protocol import (
    BidRow,
    Instructions,
    JobReport,
    JobState,
    LeaseRef,
    Placement,
    RegisterJob,
    ReleaseDevices,
    StandingBid,
)
from selfsched_simulator.trace import TraceJob

PLANNED_STEPS = 1_000_000
STEPS_PER_SECOND = 10
MEASURING_SECONDS = 5.0
# Progress is a sum of floats: what is left below this is none.
_DONE = 1.0 - 1e-9


@dataclass(slots=True)
class SimulatedJob:
    """One job of the trace, from its arrival to its end."""

    row: TraceJob
    claim_factor: float
    restart_seconds: float
    id: str = ""
    fraction_done: float = 0.0
    leases: dict[str, int] = field(default_factory=dict)
    """Fences by lease."""
    devices: tuple[str, ...] = ()
    counted_at: float = 0.0
    """Up to when `fraction_done` is right."""
    productive_at: float = math.inf
    """When the present segment makes its first step."""
    measured: bool = False
    """Knows its own speed."""
    history: list[tuple[float, int]] = field(default_factory=list)
    """(since when, how many devices)."""
    finished_at: float | None = None
    _sequence: int = 0

    def __post_init__(self) -> None:
        self.measured = self.row.knows_its_speed

    @property
    def starts(self) -> int:
        """Segments begun."""
        return sum(devices > 0 for _, devices in self.history)

    def registration(self) -> RegisterJob:
        """The words by which it registers."""
        counts = sorted(self.row.run_seconds)
        return RegisterJob(
            name=self.row.name,
            min_devices=counts[0],
            max_devices=counts[-1],
            allowed_devices=tuple(counts),
            resume=self.row.resume,
        )

    def advance(self, now: float) -> None:
        """Let its progress catch up with the time."""
        worked = max(0.0, now - max(self.productive_at, self.counted_at))
        if worked:
            self.fraction_done += worked / self.row.run_seconds[len(self.devices)]
            self.measured = self.measured or now >= self.productive_at + MEASURING_SECONDS
        self.counted_at = now

    @property
    def is_done(self) -> bool:
        return self.fraction_done >= _DONE

    def next_event_at(self) -> float:
        """Its first step, the end of its measuring, or its last step; infinity while it waits."""
        if self.productive_at > self.counted_at:
            return self.productive_at
        end = self.counted_at + self._remaining_seconds(len(self.devices))
        return end if self.measured else min(end, self.productive_at + MEASURING_SECONDS)

    def _remaining_seconds(self, devices: int) -> float:
        return max(0.0, 1.0 - self.fraction_done) * self.row.run_seconds[devices]

    def report(self) -> JobReport:
        """Its next report, as of the last `advance`."""
        self._sequence += 1
        running = bool(self.devices) and self.productive_at <= self.counted_at
        step = int(min(1.0, self.fraction_done) * PLANNED_STEPS)
        return JobReport(
            incarnation=1,
            sequence=self._sequence,
            state=JobState.RUNNING if running else JobState.STARTING if self.devices else JobState.WAITING,
            step=step,
            planned_steps=PLANNED_STEPS,
            fraction_done=min(1.0, self.fraction_done),
            steady_steps=int(max(0.0, self.counted_at - self.productive_at) * STEPS_PER_SECOND),
            devices_in_use=self.devices,
            leases=tuple(LeaseRef(lease=lease, fence=fence) for lease, fence in self.leases.items()),
            bid=self._bid(),
        )

    def _bid(self) -> StandingBid:
        return StandingBid(rows=tuple(self._bid_row(devices) for devices in sorted(self.row.run_seconds)))

    def _bid_row(self, devices: int) -> BidRow:
        claimed = self._remaining_seconds(devices) * self.claim_factor
        return BidRow(
            placement=Placement(devices=devices),
            remaining_seconds=claimed if self.measured else None,
            restart_seconds=0.0 if len(self.devices) == devices else self.restart_seconds,
        )

    def follow(self, word: Instructions, now: float) -> list[tuple[str, ReleaseDevices]]:
        """Obey instructions; returns what it releases, by lease.

        A changed set of devices ends the segment and begins the next one.
        """
        self.advance(now)
        releases, kept = [], []
        for lease in word.leases:
            if lease.leave:
                release = ReleaseDevices(fence=lease.fence, devices=lease.leave, reason="left as told")
                releases.append((lease.lease, release))
            kept += [device.id for device in lease.devices if device.id not in lease.leave]
        self.leases = {
            lease.lease: lease.fence for lease in word.leases if len(lease.leave) < len(lease.devices)
        }
        devices = tuple(sorted(kept))
        if devices != self.devices:
            self.devices = devices
            runs = len(devices) in self.row.run_seconds
            self.productive_at = now + self.restart_seconds if runs else math.inf
            self.history.append((now, len(devices)))
        return releases
