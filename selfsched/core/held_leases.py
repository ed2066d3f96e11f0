"""Which devices a job may use, and until when: its leases as the broker last stated them.

Two rules carry the safety of the whole:

- *The job stops first.* A lease is over for the job at an instant of its own clock: the
  moment before its report was sent, plus the ttl, minus a margin (Gray and Cheriton, SOSP'89;
  Chubby, OSDI'06, 2.8). The broker counts the ttl from the report's arrival, which is later.
  No instant of another machine's clock is ever used; a machine that was suspended, or a
  process that was stopped, finds the deadline passed when it wakes.
- *The broker's word is whole.* What an answer does not list is gone. Answers that were
  overtaken (a lower `version` of the same incarnation) say nothing.

Instants are seconds of the job's own clock that goes on during suspend (CLOCK_BOOTTIME).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from selfsched.protocol import Instructions, LeasedDevice, LeaseInstruction, LeaseRef

NEVER = float("inf")


@dataclass(frozen=True, kw_only=True)
class HeldLease:
    """One lease as the job may use it."""

    lease: str
    fence: int
    devices: tuple[LeasedDevice, ...]
    ends_at: float
    """From here on it must not be used any more, unless a report renews it before."""
    lead_seconds: float
    """While the broker is away: how long before `ends_at` the segment is asked to leave."""
    term_ends_at: float = NEVER
    leave: frozenset[str] = frozenset()
    """Ids of its devices that are to be left ..."""
    leave_by: float = NEVER
    """... by this instant."""

    @property
    def reference(self) -> LeaseRef:
        return LeaseRef(lease=self.lease, fence=self.fence)


@dataclass(frozen=True, kw_only=True)
class Safety:
    """How far the job stays away from the broker's own deadline."""

    margin_seconds: float = 5.0

    def usable_seconds(self, ttl_seconds: float) -> float:
        """Of a ttl: what the job counts on. A short ttl has a margin of a quarter."""
        return ttl_seconds - min(self.margin_seconds, ttl_seconds / 4)


@dataclass(frozen=True, kw_only=True)
class Heard:
    """When an answer's question was sent and the answer received, and the job's own notice."""

    sent_at: float
    received_at: float
    notice_seconds: float


def leases_of(
    instructions: Instructions, before: Iterable[HeldLease], heard: Heard, safety: Safety
) -> tuple[HeldLease, ...]:
    """The job's leases after an answer, the oldest first.

    Args:
        instructions: the answer.
        before: the leases as they were known.
        heard: when it was asked for and came.
        safety: the margin.
    """
    known = {(lease.lease, lease.fence): lease for lease in before}
    held = (_lease(new, known.get((new.lease, new.fence)), heard, safety) for new in instructions.leases)
    return tuple(sorted(held, key=lambda lease: lease.fence))


def _lease(stated: LeaseInstruction, known: HeldLease | None, heard: Heard, safety: Safety) -> HeldLease:
    usable = safety.usable_seconds(stated.ttl_seconds)
    leave_by = NEVER
    if stated.within_seconds is not None:
        # Counted from the answer: a notice that began while the answer was held back would be
        # shorter by the wait. Nothing unsafe follows, since `ends_at` bounds it all.
        leave_by = heard.received_at + stated.within_seconds
    lease = HeldLease(
        lease=stated.lease,
        fence=stated.fence,
        devices=stated.devices,
        ends_at=heard.sent_at + usable,
        lead_seconds=min(heard.notice_seconds, usable / 2),
        term_ends_at=heard.received_at + stated.term_seconds,
        leave=frozenset(stated.leave),
        leave_by=leave_by,
    )
    if known is None:
        return lease
    # Every answer is a lower bound of the broker's own deadline, so the latest one holds; an
    # order to leave stays where it first stood.
    same_order = lease.leave <= known.leave
    return replace(
        lease,
        ends_at=max(lease.ends_at, known.ends_at),
        leave_by=min(lease.leave_by, known.leave_by) if same_order else lease.leave_by,
    )


def usable(
    leases: Iterable[HeldLease],
    now: float,
    *,
    given_back: Collection[tuple[str, str]],
    broker_is_away: bool,
) -> dict[str, LeasedDevice]:
    """Devices that a segment may go on with, by id: not ordered away, not past their deadline.

    Args:
        leases: what is held.
        now: the job's clock.
        given_back: (lease, device) whose release is on its way.
        broker_is_away: reports fail; then the segment leaves in time to save before the
            deadline. While the broker answers, a short rest of a ttl means nothing.
    """
    return {
        device.id: device
        for lease in leases
        if now < lease.ends_at - (lease.lead_seconds if broker_is_away else 0.0)
        for device in lease.devices
        if device.id not in lease.leave and (lease.lease, device.id) not in given_back
    }


def leave_by(leases: Iterable[HeldLease], device: str) -> float | None:
    """When a device must be left; None when no lease holds it."""
    for lease in leases:
        if any(held.id == device for held in lease.devices):
            return min(lease.leave_by, lease.ends_at) if device in lease.leave else lease.ends_at
    return None


def ends_at(leases: Iterable[HeldLease], devices: Collection[str]) -> float:
    """Until when all of these devices may be used: the earliest end of their leases."""
    return min(
        (lease.ends_at for lease in leases if any(held.id in devices for held in lease.devices)),
        default=NEVER,
    )


def largest_allowed(available: int, allowed: Sequence[int]) -> int:
    """The largest allowed device count that `available` devices can fill; 0 when there is none."""
    return max((count for count in allowed if count <= available), default=0)
