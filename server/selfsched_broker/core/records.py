"""The records of the broker's books: frozen rows, each with a key unique within its kind.

Instants are *broker time*: seconds since the broker's first start, from its monotonic
clock, carried on over restarts and never going back. A wall clock that jumps moves nothing.

Records that are only true while somebody keeps saying so (pulses) are not durable: a report
costs no disk write, and after a restart they are said again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from selfsched.protocol import (
    AuctionView,
    DeviceProcess,
    Forecast,
    JobState,
    Outcome,
    ProcessOnNode,
    Resume,
    StandingBid,
)
from selfsched_broker.core.metering import Meter
from selfsched_broker.core.track_record import Tally, TrackRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One row. `key` is unique within its kind."""

    durable: ClassVar[bool] = True
    """False: lost at a restart on purpose (what is only true while somebody keeps saying it)."""

    @property
    def key(self) -> str:
        raise NotImplementedError(type(self).__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Broker(Record):
    """The broker itself; one row. A second broker that took over shows by its incarnation."""

    incarnation: int
    next_fence: int = 1
    next_auction: int = 1
    next_job: int = 1
    next_audit: int = 1
    clock: float = 0.0
    """Broker time at the last durable commit."""
    share_sum: float = 0.0
    """Integral of devices / summed weight up to `share_at` (see `shares`)."""
    share_at: float = 0.0

    @property
    def key(self) -> str:
        return "broker"


@dataclass(frozen=True, kw_only=True, slots=True)
class Account(Record):
    """A person or service that owns jobs."""

    name: str
    weight: float = 1.0
    max_devices: int | None = None
    admin: bool = False
    disabled: bool = False
    used_device_seconds: float = 0.0
    debt_device_seconds: float = 0.0
    share_sum: float = 0.0
    """Integral of the share of one unit of priority in this account (see `shares`)."""
    share_mark: float = 0.0
    """The broker's `share_sum` up to which it is counted."""
    claims: TrackRecord = field(default_factory=TrackRecord)
    """How what its jobs claimed came out."""

    @property
    def key(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Token(Record):
    """A secret, hashed. `node` set: it may only report for that node."""

    token_id: str
    account: str
    secret_hash: str
    """SHA-256 of 32 random bytes, hex: a random secret needs no slow hash."""
    node: str | None = None
    created_at: float = 0.0
    revoked: bool = False

    @property
    def key(self) -> str:
        return self.token_id


@dataclass(frozen=True, kw_only=True, slots=True)
class Device(Record):
    """A leasable unit that some node has reported once."""

    id: str
    node: str
    index: int
    model: str
    kind: Literal["gpu", "cpu"] = "cpu"
    cores: tuple[int, ...] = ()
    drained: bool = False
    """By an administrator: no new holding."""
    sick_at: float | None = None
    """When it was last seen sick: it must be healthy for a while before it is offered again."""
    detail: str = ""

    @property
    def key(self) -> str:
        return self.id


@dataclass(frozen=True, kw_only=True, slots=True)
class DevicePulse(Record):
    """What its node last said of a device."""

    durable: ClassVar[bool] = False
    id: str
    state: Literal["empty", "occupied", "unknown", "sick"]
    reported_at: float
    since: float
    processes: tuple[DeviceProcess, ...] = ()
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilisation: float | None = None
    detail: str = ""

    @property
    def key(self) -> str:
        return self.id


@dataclass(frozen=True, kw_only=True, slots=True)
class Node(Record):
    """A machine; its last report decides whether its devices are known at all."""

    durable: ClassVar[bool] = False
    name: str
    incarnation: int
    sequence: int
    reported_at: float
    silent: bool = False
    """Its devices have been made unknown because it stopped reporting."""

    @property
    def key(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Job(Record):
    """A training run over all its restarts."""

    id: str
    number: int
    name: str
    account: str
    min_devices: int
    max_devices: int
    allowed_devices: tuple[int, ...]
    resume: Resume = Resume.ELASTIC
    stated_seconds: float | None = None
    priority: float = 1.0
    wanted_devices: tuple[str, ...] = ()
    process: ProcessOnNode | None = None
    state: JobState = JobState.WAITING
    outcome: Outcome | None = None
    order: Literal["go_on", "pause", "stop"] = "go_on"
    registered_at: float = 0.0
    paused_at: float | None = None
    paused_seconds: float = 0.0
    """Pauses by the owner that are over: they do not count in rho."""
    ended_at: float | None = None
    bid: StandingBid | None = None
    bid_at: float = 0.0
    fraction_done: float = 0.0
    step: int = 0
    planned_steps: int | None = None
    share_integral: float = 0.0
    """Integral of the share over the job's life, devices x seconds, up to `share_mark`."""
    share_mark: float = 0.0
    """The account's `share_sum` up to which it is counted."""
    meter: Meter = field(default_factory=Meter)
    """Its claims beside the pace seen, ..."""
    tally: Tally = field(default_factory=Tally)
    """... and what it claimed first beside what it took, as last made durable; empty once it has ended."""
    progress_at: float = 0.0
    """When `step`, `fraction_done` and these were last made durable; the pulse has the newest."""
    visited: bool = False
    """Has made its first visit."""
    moved_at: float | None = None
    """When its device set last changed by a move that cost a restart."""
    move_cost_seconds: float = 0.0
    steady_seconds: float = 0.0
    """Productive time since `moved_at`, towards repaying that move, as last made durable."""
    passed_over: int = 0
    """Ticks at which it wanted devices and got none."""
    waiting_since: float | None = 0.0
    """Since when it holds nothing and wants something."""
    last_devices: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    """Why it has what it has, newest last, at most 20."""
    reasons_at: tuple[float, ...] = ()
    """When each was said; of what was said before this was kept none is there, so count from the end."""
    instructions_version: int = 0
    rho: float | None = None
    pays_from: float | None = None
    """Where payments are charged: from when on its devices are taken if somebody waits for them."""
    barred_until: float | None = None
    """It has paid with its devices, and does not ask for them again before while others wait."""
    stands_back_until: float | None = None
    """Its owner gave its devices back: it asks for none before, also where nobody else wants them."""

    @property
    def key(self) -> str:
        return self.id

    def stands_back(self, now: float) -> bool:
        """Whether its owner gave its devices back not long ago, so that it asks for none yet."""
        return self.stands_back_until is not None and now < self.stands_back_until

    @property
    def live(self) -> bool:
        return self.state is not JobState.ENDED

    @property
    def counts(self) -> bool:
        """Whether its weight is in everybody's share."""
        return self.state is not JobState.PAUSED and self.state is not JobState.ENDED


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPulse(Record):
    """What a job's last report said that need not survive a restart."""

    durable: ClassVar[bool] = False
    job: str
    incarnation: int
    sequence: int
    reported_at: float
    """Last accepted report; before the first: the registration, or the broker's restart."""
    state: JobState
    heard: bool = False
    """Has reported since it registered or the broker restarted."""
    step: int = 0
    planned_steps: int | None = None
    fraction_done: float = 0.0
    stepped_at: float = 0.0
    """When `step` last changed, by the broker's clock."""
    running_since: float | None = None
    devices_in_use: tuple[str, ...] = ()
    steady_steps: int = 0
    steady_seconds: float = 0.0
    """As the job's of that name, but the newest."""
    notice_seconds: float = 0.0
    """0: not known yet."""
    idle_seconds: float = 0.0
    forecast: Forecast | None = None
    warned: frozenset[str] = frozenset()
    """Which warnings it has had."""
    meter: Meter = field(default_factory=Meter)
    """Its claims beside the pace seen."""
    tally: Tally = field(default_factory=Tally)
    """What it claimed first beside what it took, for its account's record."""

    @property
    def key(self) -> str:
        return self.job


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease(Record):
    """One award. Its set of live holdings only shrinks; it ends with the last of them."""

    id: str
    job: str
    fence: int
    granted_at: float
    term_ends_at: float
    visit: bool = False
    ended_at: float | None = None
    """When its last device was proven empty."""
    end_reason: Literal["", "released", "expired", "overdue", "forced", "resource_gone"] = ""
    """Why the job has lost its right to it; empty while it has devices that are not quarantined."""

    @property
    def key(self) -> str:
        return self.id


@dataclass(frozen=True, kw_only=True, slots=True)
class LeasePulse(Record):
    """When a lease was last renewed, for the ttl. After a restart: the restart."""

    durable: ClassVar[bool] = False
    lease: str
    renewed_at: float

    @property
    def key(self) -> str:
        return self.lease


@dataclass(frozen=True, kw_only=True, slots=True)
class Holding(Record):
    """One device of a lease."""

    lease: str
    device: str
    state: Literal["held", "yielding", "quarantined", "ended"]
    since: float
    leave_by: float | None = None
    """While yielding: when the job must have left."""
    lost: bool = False
    """The job's right to it was ended without the job's word."""
    left_at: float | None = None
    """When the job left it, or lost it: the end of its use."""

    @property
    def key(self) -> str:
        return f"{self.lease}/{self.device}"

    @property
    def live(self) -> bool:
        return self.state != "ended"

    @property
    def active(self) -> bool:
        """Whether the job still has a right to it."""
        return self.state in ("held", "yielding")


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim(Record):
    """An award of a device that its holder has not left yet."""

    auction: int
    job: str
    device: str
    made_at: float
    term_ends_at: float
    visit: bool = False
    state: Literal["open", "granted", "dead"] = "open"

    @property
    def key(self) -> str:
        return f"{self.auction}/{self.device}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Auction(Record):
    """One decision, for those who ask why."""

    number: int
    at: float
    view: AuctionView

    @property
    def key(self) -> str:
        return str(self.number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer(Record):
    """The stored answer to an idempotency key: the same question gets it again."""

    account: str
    idempotency_key: str
    question_hash: str
    status: int
    body: str
    at: float

    @property
    def key(self) -> str:
        return f"{self.account}/{self.idempotency_key}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit(Record):
    """Who did what: administrators' actions, refusals, broken promises."""

    number: int
    at: float
    account: str | None
    action: str
    subject: str
    detail: str = ""

    @property
    def key(self) -> str:
        return str(self.number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Agenda(Record):
    """When the arbiter decides next; one row, made anew at a restart."""

    durable: ClassVar[bool] = False
    quiet_until: float = 0.0
    """No auction before: after a restart everybody is given time to come back."""
    next_tick_at: float = 0.0
    wake: bool = True
    """Something has changed that an auction or a grant may follow from."""
    took_at: float = float("-inf")
    """Last auction between ticks that could take devices from holders."""
    looked_at: float = float("-inf")
    """When it was last seen whether something can be done for jobs that have nothing."""
    question: frozenset[str] = frozenset()
    """What the last auction between ticks was about: the same is not asked twice."""
    reserve: tuple[tuple[str, int], ...] = ()
    """Wide jobs and the devices kept for them."""
    failed_auctions: int = 0
    """How often the policy raised, since the broker started."""
    failure: str = ""
    """What it raised at the last auction, and where; empty: it gave a ruling."""

    @property
    def key(self) -> str:
        return "agenda"


@dataclass(frozen=True, kw_only=True, slots=True)
class Forget(Record):
    """Drop a record from memory; the store keeps it. Books must not grow for ever."""

    durable: ClassVar[bool] = False
    kind: type[Record]
    forgotten: str

    @property
    def key(self) -> str:
        return f"{self.kind.__name__}/{self.forgotten}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Erase(Forget):
    """Drop a record from memory and from the store: of what is kept only within bounds."""

    durable: ClassVar[bool] = True


Change = Record
"""A change is the new value of a record: insert or replace by (type, key)."""
