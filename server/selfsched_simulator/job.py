"""A simulated job: what supervisor, ranks and model do in reality, in a few numbers.

It registers, reports, bids, obeys instructions, leaves and ends by the same messages. Its
progress follows the hidden truth: from `restart_seconds` after it got its devices it advances
at the rate of the truth; leaving when told is immediate and loses nothing. When a node dies under
it, it goes back to its last checkpoint; when it cannot reach the broker it stops by its own deadline.
"""

from __future__ import annotations

import math
from collections.abc import Collection
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
from selfsched_simulator.cluster import Cluster
from selfsched_simulator.trace import TraceJob
from selfsched_simulator.truth import claim_factor, row_factor

PLANNED_STEPS = 1_000_000
STEPS_PER_SECOND = 10
MEASURING_SECONDS = 5.0
# Progress is a sum of floats: what is left below this is none.
_DONE = 1.0 - 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Habits:
    """What is the same for all jobs of a simulation."""

    restart_seconds: float = 20.0
    """What a start costs a job that does not say."""
    noise: float = 0.0
    row_noise: float = 0.0
    seed: int = 1
    checkpoint_seconds: float = 600.0
    """Work between two periodic checkpoints: only what a crash can lose."""


@dataclass(slots=True)
class SimulatedJob:
    """One job of the trace, from its arrival to its end."""

    row: TraceJob
    habits: Habits
    cluster: Cluster
    id: str = ""
    fraction_done: float = 0.0
    leases: dict[str, int] = field(default_factory=dict)
    """Fences by lease."""
    lease_of: dict[str, str] = field(default_factory=dict)
    """Lease of each device that it has a right to."""
    devices: tuple[str, ...] = ()
    counted_at: float = 0.0
    """Up to when `fraction_done` is right."""
    productive_at: float = math.inf
    """When the present segment makes its first step."""
    measured: bool = False
    """Knows its own speed."""
    history: list[tuple[float, int]] = field(default_factory=list)
    """(since when, how many devices)."""
    busy_device_seconds: float = 0.0
    """Devices x seconds in which they made steps that counted."""
    finished_at: float | None = None
    claims: dict[Placement, float] = field(default_factory=dict)
    """Seconds it believes its whole run takes, by placement."""
    _here: Placement | None = None
    _run_seconds: float = math.inf
    """Of the whole run where it is."""
    _saved: float = 0.0
    """`fraction_done` when this segment began."""
    _sequence: int = 0

    def __post_init__(self) -> None:
        self.measured = self.row.knows_its_speed
        name, habits = self.row.name, self.habits
        whole = claim_factor(name, noise=habits.noise, seed=habits.seed)
        self.claims = {
            place: seconds * whole * row_factor(name, place, noise=habits.row_noise, seed=habits.seed)
            for place, seconds in self.row.speed.placements.items()
        }

    @property
    def restart_seconds(self) -> float:
        """What a start costs it."""
        own = self.row.restart_seconds
        return self.habits.restart_seconds if own is None else own

    @property
    def starts(self) -> int:
        """Segments begun."""
        return sum(devices > 0 for _, devices in self.history)

    @property
    def started_at(self) -> float | None:
        """When it first had devices."""
        return next((at for at, devices in self.history if devices), None)

    def registration(self) -> RegisterJob:
        """The words by which it registers."""
        counts = sorted({placement.devices for placement in self.row.speed.placements})
        return RegisterJob(
            name=self.row.name,
            min_devices=counts[0],
            max_devices=counts[-1],
            allowed_devices=tuple(counts),
            resume=self.row.resume,
        )

    # --- progress ------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Let its progress catch up with the time."""
        worked = max(0.0, now - max(self.productive_at, self.counted_at))
        if worked:
            self.fraction_done += worked / self._run_seconds
            self.busy_device_seconds += worked * len(self.devices)
            if now >= self.productive_at + MEASURING_SECONDS:
                self._learn()
        self.counted_at = now

    def _learn(self) -> None:
        """It has seen its own speed: of this placement it is wrong by its misjudged work alone."""
        self.measured = True
        if self.habits.row_noise and self._here in self.claims:
            name, noise, seed = self.row.name, self.habits.noise, self.habits.seed
            self.claims[self._here] = self._run_seconds * claim_factor(name, noise=noise, seed=seed)

    @property
    def is_done(self) -> bool:
        return self.fraction_done >= _DONE

    @property
    def has_all(self) -> bool:
        """Whether it has as many devices as it can use."""
        return len(self.devices) == max(placement.devices for placement in self.claims)

    @property
    def remaining_seconds(self) -> float:
        """Where it is now, as of the last `advance`."""
        return max(0.0, 1.0 - self.fraction_done) * self._run_seconds

    def next_event_at(self) -> float:
        """Its first step, the end of its measuring, or its last step; infinity while it waits."""
        if self.productive_at > self.counted_at:
            return self.productive_at
        end = self.counted_at + self.remaining_seconds
        return end if self.measured else min(end, self.productive_at + MEASURING_SECONDS)

    # --- messages ------------------------------------------------------------------------

    def report(self) -> JobReport:
        """Its next report, as of the last `advance`."""
        self._sequence += 1
        running = bool(self.devices) and self.productive_at <= self.counted_at
        state = JobState.RUNNING if running else JobState.STARTING if self.leases else JobState.WAITING
        return JobReport(
            incarnation=1,
            sequence=self._sequence,
            state=state,
            step=int(min(1.0, self.fraction_done) * PLANNED_STEPS),
            planned_steps=PLANNED_STEPS,
            fraction_done=min(1.0, self.fraction_done),
            steady_steps=int(max(0.0, self.counted_at - self.productive_at) * STEPS_PER_SECOND),
            devices_in_use=self.devices,
            leases=tuple(LeaseRef(lease=lease, fence=fence) for lease, fence in self.leases.items()),
            bid=self._bid(),
        )

    def _bid(self) -> StandingBid:
        left = max(0.0, 1.0 - self.fraction_done)
        return StandingBid(
            rows=tuple(self._bid_row(place, left * whole) for place, whole in self.claims.items())
        )

    def _bid_row(self, placement: Placement, remaining_seconds: float) -> BidRow:
        visited = placement == self._here and self.measured
        spread = math.hypot(self.habits.noise, 0.0 if visited else self.habits.row_noise)
        return BidRow(
            placement=placement,
            remaining_seconds=remaining_seconds if self.measured else None,
            sigma_log=spread,
            restart_seconds=0.0 if placement == self._here else self.restart_seconds,
        )

    def follow(self, word: Instructions, now: float) -> list[tuple[str, ReleaseDevices]]:
        """Obey instructions; returns what it releases, by lease.

        A changed set of devices ends the segment and begins the next one.
        """
        self.advance(now)
        releases = []
        self.lease_of = {}
        for lease in word.leases:
            if lease.leave:
                release = ReleaseDevices(fence=lease.fence, devices=lease.leave, reason="left as told")
                releases.append((lease.lease, release))
            left = set(lease.leave)
            self.lease_of |= {device.id: lease.lease for device in lease.devices if device.id not in left}
        self.leases = {
            lease.lease: lease.fence for lease in word.leases if len(lease.leave) < len(lease.devices)
        }
        self._sit_on(tuple(sorted(self.lease_of)), now)
        return releases

    def _sit_on(self, devices: tuple[str, ...], now: float) -> None:
        if devices == self.devices:
            return
        layout = self.cluster.layout(devices)
        self.devices = devices
        self._here = self._placement(layout)
        self._run_seconds = self.row.speed.run_seconds(layout) if devices else math.inf
        self._saved = self.fraction_done
        begins = max(now + self.restart_seconds, self.row.ready_seconds)
        self.productive_at = begins if math.isfinite(self._run_seconds) else math.inf
        self.history.append((now, len(devices)))

    def _placement(self, layout: tuple[tuple[str, int], ...]) -> Placement | None:
        """The placement it bids for that its devices are; None: none."""
        if not layout:
            return None
        models = {model for model, _ in layout}
        named = next(iter(models)) if len(models) == 1 and len(self.cluster.models) > 1 else None
        here = Placement(devices=sum(n for _, n in layout), nodes=len(layout), model=named)
        return here if here in self.claims else None

    # --- faults --------------------------------------------------------------------------

    def crash(self, dead: Collection[str], now: float) -> list[tuple[str, ReleaseDevices]]:
        """Devices die under it: back to its last checkpoint, on with what is left.

        Returns:
            Its word that it has left the dead devices, by lease.
        """
        self.advance(now)
        self._roll_back()
        releases = []
        for lease, fence in list(self.leases.items()):
            gone = tuple(d for d in sorted(dead) if self.lease_of.get(d) == lease)
            if gone:
                releases.append((lease, ReleaseDevices(fence=fence, devices=gone, reason="its node died")))
            if all(device in dead for device, owner in self.lease_of.items() if owner == lease):
                del self.leases[lease]
        self.lease_of = {device: lease for device, lease in self.lease_of.items() if device not in dead}
        self._sit_on(tuple(device for device in self.devices if device not in dead), now)
        return releases

    def _roll_back(self) -> None:
        if not math.isfinite(self._run_seconds) or self.productive_at >= self.counted_at:
            return
        worked = (self.fraction_done - self._saved) * self._run_seconds
        lost = worked % self.habits.checkpoint_seconds if self.habits.checkpoint_seconds > 0 else 0.0
        self.fraction_done = max(self._saved, self.fraction_done - lost / self._run_seconds)
        self.busy_device_seconds -= lost * len(self.devices)

    def stop(self, now: float) -> None:
        """Its own deadline passed without an answer: it saves and leaves its devices, rights or not."""
        self.advance(now)
        self._sit_on((), now)

    def forget_leases(self) -> None:
        """The broker said that they are lost."""
        self.leases, self.lease_of = {}, {}
