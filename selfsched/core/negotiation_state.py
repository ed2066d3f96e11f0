"""What a negotiation consists of: its events, its effects and its state, all frozen.

`negotiation` says how they follow from each other, `wanted` what a state means for the
supervisor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from selfsched.core.held_leases import NEVER, HeldLease, Safety
from selfsched.core.reporting import JobFacts
from selfsched.protocol import Instructions, JobReport, JobState, Outcome, ReleaseDevices, StandingBid


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What never changes during a run."""

    incarnation: int
    """Of this supervisor."""
    min_devices: int = 1
    max_devices: int = 1
    safety: Safety = field(default_factory=Safety)
    phase: float = 0.0
    """In [0, 1), different for each job: spreads the retries."""


# --- events ------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimePassed:
    """Nothing else happened."""


@dataclass(frozen=True)
class Registered:
    """The broker knows the job."""

    job: str
    instructions: Instructions
    sent_at: float


@dataclass(frozen=True)
class Instructed:
    """An answer to the report with this sequence."""

    instructions: Instructions
    sequence: int
    sent_at: float


Trouble = Literal[
    "unreachable", "no_broker", "not_allowed", "refused", "lease_lost", "not_found", "job_ended", "other"
]
"""`no_broker`: something else than a broker answered; once a job runs that is a broker that is away."""


@dataclass(frozen=True)
class CallFailed:
    """A call brought no effect that we know of."""

    call: Literal["register", "report", "release"]
    trouble: Trouble
    words: str
    sequence: int = 0
    """Of a report."""
    key: str = ""
    """Of a release."""
    outcome: Outcome | None = None
    """With `job_ended`: as what, where the broker said so."""


@dataclass(frozen=True)
class DevicesReleased:
    """The broker took note of a release."""

    key: str


@dataclass(frozen=True)
class DevicesProbed:
    """Which devices were free, and which somebody still holds."""

    free: frozenset[str]
    busy: frozenset[str]


@dataclass(frozen=True)
class SegmentStarted:
    """Processes are being started on these devices; their locks are taken."""

    devices: tuple[str, ...]


@dataclass(frozen=True)
class SegmentEnded:
    """The processes are gone."""

    left: frozenset[str]
    """Devices that are not locked by this job any more."""
    never_started: bool
    checkpoint_step: int | None


@dataclass(frozen=True)
class FactsLearned:
    """What the job's model says now."""

    facts: JobFacts


Event = (
    TimePassed
    | Registered
    | Instructed
    | CallFailed
    | DevicesReleased
    | DevicesProbed
    | SegmentStarted
    | SegmentEnded
    | FactsLearned
)


# --- effects -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Register:
    """Call `POST /jobs`; a new `attempt` needs a new key."""

    attempt: int


@dataclass(frozen=True)
class Report:
    """Call `POST /jobs/{id}/report`."""

    job: str
    report: JobReport


@dataclass(frozen=True)
class Release:
    """Call `POST /leases/{id}/release`; its key stays the same over all tries."""

    lease: str
    key: str
    message: ReleaseDevices


@dataclass(frozen=True)
class Probe:
    """Find out whether these devices are free."""

    devices: tuple[str, ...]


Effect = Register | Report | Release | Probe


# --- state -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OpenReport:
    """A report whose answer has not come."""

    sequence: int
    sent_at: float
    wait_seconds: float


@dataclass(frozen=True, kw_only=True)
class PendingRelease:
    """Devices being given back."""

    effect: Release
    try_at: float = 0.0
    failures: int = 0
    is_open: bool = False
    """A call is under way."""
    is_done: bool = False
    """Acknowledged; kept until the broker does not list the devices any more."""


@dataclass(frozen=True, kw_only=True)
class Contact:
    """How well the broker can be reached."""

    failures: int = 0
    """In a row."""
    words: str = ""
    """Of the last failure."""
    try_at: float = 0.0

    @property
    def is_away(self) -> bool:
        return self.failures > 0


@dataclass(frozen=True, kw_only=True)
class Told:
    """What has been sent to the broker. Forgotten as soon as any of it may not have arrived."""

    bid: StandingBid | None = None
    bid_at: float = 0.0
    allowed_devices: tuple[int, ...] | None = None
    statistics_at: float = -NEVER
    state: JobState | None = None
    running: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The run ends by a word of the broker."""

    reason: str
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class Negotiation:
    """Everything the job's side knows of its leases. Never changed in place."""

    terms: Terms
    started_at: float
    job: str | None = None
    attempt: int = 1
    is_registering: bool = False
    registered_at: float | None = None
    instructions: Instructions | None = None
    """The newest; its clocks count from when it came."""
    instructions_sequence: int = 0
    """Of the report that they answered."""
    leases: tuple[HeldLease, ...] = ()
    gone_by: float = NEVER
    """When devices must be left that no lease of ours holds any more."""
    order_by: float = NEVER
    """When a pause or stop must have been followed."""
    facts: JobFacts = field(default_factory=JobFacts)
    running: tuple[str, ...] = ()
    """Devices of the running segment."""
    held: frozenset[str] = frozenset()
    """Devices whose locks this job holds: those of its segment, between segments those it kept."""
    free: frozenset[str] = frozenset()
    """Found free, not yet taken."""
    busy_since: Mapping[str, float] = field(default_factory=dict)
    probe_at: float = 0.0
    is_probing: bool = False
    failed_starts: int = 0
    start_at: float = 0.0
    """No segment before this instant, after one that could not start."""
    checkpoint_step: int | None = None
    contact: Contact = Contact()
    sequence: int = 0
    answered_sequence: int = 0
    """The newest report that was answered."""
    open_reports: tuple[OpenReport, ...] = ()
    report_at: float = 0.0
    last_sent_at: float = -NEVER
    wants_answer: bool = False
    """Report at once, answer at once: something must be known now."""
    states_leases: bool = True
    """False after a lost lease: the next report claims none."""
    told: Told = field(default_factory=Told)
    releases: tuple[PendingRelease, ...] = ()
    release_count: int = 0
    ending: Ending | None = None
