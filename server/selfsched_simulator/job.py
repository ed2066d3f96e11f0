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
    Resume,
    StandingBid,
)
from selfsched_simulator.trace import TraceJob
from selfsched_simulator.truth import RigidTruth

PLANNED_STEPS = 1_000_000
# Progress is a sum of floats: what is left below this is none.
_DONE = 1.0 - 1e-9


@dataclass(slots=True)
class SimulatedJob:
    """One job of the trace, from its arrival to its end."""

    row: TraceJob
    truth: RigidTruth
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
    starts: int = 0
    """Segments begun."""
    held_device_seconds: float = 0.0
    finished_at: float | None = None
    _sequence: int = 0

    def registration(self) -> RegisterJob:
        """The words by which it registers."""
        gang = self.row.gpus
        return RegisterJob(name=self.row.name, min_devices=gang, max_devices=gang, resume=Resume.SAME_SIZE)

    def advance(self, now: float) -> None:
        """Let its progress catch up with the time."""
        if self.devices:
            self.held_device_seconds += len(self.devices) * (now - self.counted_at)
            worked = max(0.0, now - max(self.productive_at, self.counted_at))
            self.fraction_done += worked / self.truth.run_seconds(len(self.devices))
        self.counted_at = now

    @property
    def is_done(self) -> bool:
        return self.fraction_done >= _DONE

    def next_event_at(self) -> float:
        """When it makes its first step or its last, whichever comes next; infinity while it waits."""
        if not self.devices or not self.truth.runs_on(len(self.devices)):
            return math.inf
        if self.productive_at > self.counted_at:
            return self.productive_at
        return self.counted_at + self._remaining_seconds()

    def _remaining_seconds(self) -> float:
        return (1.0 - self.fraction_done) * self.truth.run_seconds(max(1, len(self.devices)))

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
            steady_steps=step,
            devices_in_use=self.devices,
            leases=tuple(LeaseRef(lease=lease, fence=fence) for lease, fence in self.leases.items()),
            bid=self._bid(),
        )

    def _bid(self) -> StandingBid:
        gang = self.row.gpus
        remaining = max(0.0, self._remaining_seconds()) * self.claim_factor
        restart = 0.0 if len(self.devices) == gang else self.restart_seconds
        row = BidRow(placement=Placement(devices=gang), remaining_seconds=remaining, restart_seconds=restart)
        return StandingBid(rows=(row,))

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
            self.productive_at = now + self.restart_seconds if devices else math.inf
            self.starts += bool(devices)
        return releases
