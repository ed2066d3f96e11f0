"""Who decides on which devices a job runs: the contract between the supervisor and that.

The supervisor knows how to run a segment on a set of devices, how to end it with a
checkpoint and how to begin the next. On *which* devices, it asks an `AllocationSource`:
`plan.Plan` plays a fixed list, `plan.Local` takes what this machine has, and
`selfsched.negotiator` speaks with a broker.

One question, asked again and again: `wanted(now)`, the allocation that the job should be
running on at this moment. The supervisor compares it with what is running:

====================  ==================================================================
running on            and `wanted().devices` is
====================  ==================================================================
nothing               not empty: take the devices' locks, start a segment on them
nothing               empty: wait, and show `reason`
D                     D again: go on (`lease_ends_at` is passed to the ranks)
D                     anything else: order the ranks to leave by `leave_by`; once they
                      are gone close the locks of what is not wanted any more, call
                      `segment_ended`, and go on with whatever is wanted by then
====================  ==================================================================

- **Shrink**: wanted becomes a subset of D, with the lease's own deadline as `leave_by`.
  `segment_ended` names the devices that were `left`, and only these are to be released;
  the next segment starts at once on the kept ones.
- **Grow**: wanted becomes D and further devices, *after* these were granted and found
  empty: a grow never leaves a job with nothing.
- **Lease lost**: wanted becomes what remains (perhaps nothing), `leave_by` = the deadline.
  At `min(leave_by, lease_ends_at)` ranks that are still there are killed.
- **The end by the source** (cancelled by its owner, told to stop, nothing will ever come):
  `ends_because` is set. The ranks leave with a checkpoint, then the run ends.

Instants are CLOCK_BOOTTIME seconds (`segment.boottime`).

Threads: every method is called by the supervisor's one thread and returns at once, except
`start` (may take as long as registering takes, and may raise) and `end` (bounded). A source
with a thread of its own calls `wake` (from any thread, as often as it likes) when its answer
changed; without that it is asked about five times a second. Nothing it does may raise
later than `start`; what goes wrong then is said in `reason`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from selfsched.elastic.job import JobDescription
from selfsched.protocol import LeasedDevice, Outcome

Device = LeasedDevice
"""One device as a job knows it: `id` (also the name of its lock), `kind`, `cores`."""


@dataclass(frozen=True)
class Allocation:
    """The devices a job should be running on, and until when the others may still be used."""

    devices: tuple[Device, ...] = ()
    """Empty: hold nothing, wait."""
    reason: str = ""
    """Why, in words for the user; shown when it changes."""
    leave_by: float = float("inf")
    """When a running segment must be gone if it sits on any other set of devices."""
    lease_ends_at: float = float("inf")
    """Until when the devices in use may be used at all as far as is known now."""
    cut_at: tuple[int, int] | None = None
    """(fit ordinal, global step) at which the segment leaves with no order needed."""
    ends_because: str | None = None
    """The run ends here; this is the reason shown."""
    outcome: Outcome = Outcome.CANCELLED
    """With `ends_because`: as what it ends."""


@dataclass(frozen=True)
class SegmentEnd:
    """How a segment ended, told once its processes are gone and `left` is unlocked."""

    ordinal: int
    devices: tuple[Device, ...]
    """What it ran on."""
    left: tuple[Device, ...]
    """Of these, what the supervisor does not hold any more: to be released."""
    reason: Literal["yielded", "planned", "finished", "stopped", "failed", "never_started"]
    """`failed`: a rank raised or died. `never_started`: a lock could not be taken."""
    words: str = ""
    """The same, for people."""
    fit: int = 1
    """The fit it was in when it ended."""
    step: int = 0
    """Global step it reached."""
    checkpoint_step: int | None = None
    """Global step of the newest complete checkpoint; None: there is none."""


class AllocationSource(Protocol):
    """What decides on a job's devices. The module's head says how it is used."""

    def start(self, job: JobDescription, wake: Callable[[], None]) -> None:
        """Begin to look for devices.

        Raises:
            SelfschedError: the job can never run this way (shown to the user, with its exit
                code). A broker that is away is no such case: wait for it, and say so.
        """

    def wanted(self, now: float) -> Allocation:
        """The allocation the job should be running on now."""

    def handle(self, event: Any) -> None:
        """One event of a rank (`core.events`), in order; cheap, since it is called for each."""

    def segment_started(self, ordinal: int, devices: tuple[Device, ...]) -> None:
        """A segment's processes are being started; its devices are locked."""

    def segment_ended(self, end: SegmentEnd) -> None:
        """A segment's processes are gone."""

    def status_line(self) -> str | None:
        """A few words for the progress bar (the predicted finish), or None."""

    def news(self) -> tuple[str, ...]:
        """Lines for the user that were not said yet; each is given once."""

    def end(self, outcome: Outcome, reason: str) -> None:
        """The run is over and holds nothing: release everything and say so. At most 5 s."""
