"""The broker's books: every record it keeps, and the one door through which they change.

Records are frozen; a decision returns *changes*, the new values of records, and the service
commits them to the store before it applies them here (`Books.apply`). So the books in
memory never hold what the store does not.

Instants are *broker time*: seconds since the broker's first start, from its monotonic
clock, carried on over restarts and never going back. A wall clock that jumps moves nothing.

What must never happen is written down twice: in `Books.validate`, and as constraints of the
SQL tables (`store/tables.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    clock: float = 0.0
    """Broker time at the last commit."""

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
    """Integral of the share over the job's life, devices x seconds, up to `share_at`."""
    share_at: float = 0.0
    visited: bool = False
    """Has made its first visit."""
    moved_at: float | None = None
    """When its device set last changed by a move that cost a restart."""
    move_cost_seconds: float = 0.0
    steady_seconds: float = 0.0
    """Productive time since `moved_at`, towards repaying that move."""
    passed_over: int = 0
    """Ticks at which it wanted devices and got none."""
    waiting_since: float | None = 0.0
    """Since when it holds nothing and wants something."""
    last_devices: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    """Why it has what it has, newest last, at most 20."""
    instructions_version: int = 0
    rho: float | None = None

    @property
    def key(self) -> str:
        return self.id

    @property
    def live(self) -> bool:
        return self.state is not JobState.ENDED


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPulse(Record):
    """What a job's last report said that need not survive a restart."""

    durable: ClassVar[bool] = False
    job: str
    incarnation: int
    sequence: int
    reported_at: float
    state: JobState
    devices_in_use: tuple[str, ...] = ()
    steady_steps: int = 0
    notice_seconds: float = 0.0
    idle_seconds: float = 0.0
    forecast: Forecast | None = None

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
    renewed_at: float
    """Last report, for the ttl. After a restart: the restart."""
    visit: bool = False
    ended_at: float | None = None
    end_reason: str = ""

    @property
    def key(self) -> str:
        return self.id


@dataclass(frozen=True, kw_only=True, slots=True)
class Holding(Record):
    """One device of a lease."""

    lease: str
    device: str
    state: Literal["held", "yielding", "quarantined", "ended"]
    since: float
    leave_by: float | None = None
    """While yielding: when the job must have left."""

    @property
    def key(self) -> str:
        return f"{self.lease}/{self.device}"

    @property
    def live(self) -> bool:
        return self.state != "ended"


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


Change = Record
"""A change is the new value of a record: insert or replace by (type, key)."""


class BooksBroken(AssertionError):
    """An invariant does not hold: our own mistake, never an input's."""


@dataclass(slots=True)
class Books:
    """All records by kind and key, and the indexes that decisions need."""

    broker: Broker
    accounts: dict[str, Account] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    pulses: dict[str, DevicePulse] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    job_pulses: dict[str, JobPulse] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    holdings: dict[str, Holding] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    auctions: dict[str, Auction] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    audits: dict[str, Audit] = field(default_factory=dict)
    _holding_of_device: dict[str, str] = field(default_factory=dict, repr=False)
    _claim_of_device: dict[str, str] = field(default_factory=dict, repr=False)
    _leases_of_job: dict[str, set[str]] = field(default_factory=dict, repr=False)
    _holdings_of_lease: dict[str, set[str]] = field(default_factory=dict, repr=False)
    _live_jobs: set[str] = field(default_factory=set, repr=False)

    def apply(self, changes: Iterable[Change]) -> None:
        """Take committed changes into the books."""
        for change in changes:
            if isinstance(change, Broker):
                self.broker = change
                continue
            table = self._table(type(change))
            table[change.key] = change
            self._index(change)

    def _table(self, kind: type[Record]) -> dict[str, Record]:
        return getattr(self, _TABLES[kind])  # type: ignore[no-any-return]

    def _index(self, record: Record) -> None:
        if isinstance(record, Holding):
            self._holdings_of_lease.setdefault(record.lease, set()).add(record.key)
            if record.live:
                self._holding_of_device[record.device] = record.key
            elif self._holding_of_device.get(record.device) == record.key:
                del self._holding_of_device[record.device]
        elif isinstance(record, Claim):
            if record.state == "open":
                self._claim_of_device[record.device] = record.key
            elif self._claim_of_device.get(record.device) == record.key:
                del self._claim_of_device[record.device]
        elif isinstance(record, Lease):
            ids = self._leases_of_job.setdefault(record.job, set())
            (ids.discard if record.ended_at is not None else ids.add)(record.id)
        elif isinstance(record, Job):
            (self._live_jobs.add if record.live else self._live_jobs.discard)(record.id)

    def live_jobs(self) -> Iterator[Job]:
        """Jobs that have not ended, in order of registration."""
        return iter(sorted((self.jobs[j] for j in self._live_jobs), key=lambda job: job.number))

    def holding_of(self, device: str) -> Holding | None:
        """The one live holding of a device."""
        key = self._holding_of_device.get(device)
        return self.holdings[key] if key else None

    def claim_on(self, device: str) -> Claim | None:
        """The one open claim on a device."""
        key = self._claim_of_device.get(device)
        return self.claims[key] if key else None

    def leases_of(self, job: str) -> list[Lease]:
        """Leases of a job that have not ended, oldest first."""
        ids = self._leases_of_job.get(job, ())
        return sorted((self.leases[i] for i in ids), key=lambda lease: lease.fence)

    def holdings_of(self, lease: str) -> list[Holding]:
        """Live holdings of a lease, by device."""
        keys = self._holdings_of_lease.get(lease, ())
        return sorted((h for k in keys if (h := self.holdings[k]).live), key=lambda h: h.device)

    def claims_of(self, job: str) -> list[Claim]:
        """Open claims of a job."""
        return [c for k in self._claim_of_device.values() if (c := self.claims[k]).job == job]

    def devices_of(self, job: str) -> list[str]:
        """Devices a job holds (held or yielding, not quarantined), sorted."""
        held = (h for lease in self.leases_of(job) for h in self.holdings_of(lease.id))
        return sorted(h.device for h in held if h.state in ("held", "yielding"))

    def validate(self) -> None:
        """Raise BooksBroken unless every invariant holds (S1, S2, S7 and the references)."""
        live: dict[str, str] = {}
        for holding in self.holdings.values():
            if not holding.live:
                continue
            if holding.device in live:
                raise BooksBroken(f"{holding.device} is in {holding.key} and {live[holding.device]}")
            live[holding.device] = holding.key
            lease = self.leases.get(holding.lease)
            if lease is None or lease.ended_at is not None:
                raise BooksBroken(f"{holding.key} is live, its lease is not")
            if holding.device not in self.devices:
                raise BooksBroken(f"{holding.key} holds a device nobody reported")
        fences = [lease.fence for lease in self.leases.values()]
        if len(set(fences)) < len(fences) or any(f >= self.broker.next_fence for f in fences):
            raise BooksBroken("a fence was given twice or from the future")
        claimed = [c.device for c in self.claims.values() if c.state == "open"]
        if len(set(claimed)) < len(claimed):
            raise BooksBroken("a device is claimed twice")
        for claim in self.claims.values():
            if claim.state == "open" and not self.jobs[claim.job].live:
                raise BooksBroken(f"claim {claim.key} outlived its job")
        for lease in self.leases.values():
            if lease.ended_at is None and not self.holdings_of(lease.id):
                raise BooksBroken(f"lease {lease.id} is open and empty")


_TABLES: dict[type[Record], str] = {
    Account: "accounts",
    Token: "tokens",
    Device: "devices",
    DevicePulse: "pulses",
    Node: "nodes",
    Job: "jobs",
    JobPulse: "job_pulses",
    Lease: "leases",
    Holding: "holdings",
    Claim: "claims",
    Auction: "auctions",
    Answer: "answers",
    Audit: "audits",
}
