"""The broker's books: every record it keeps, and the one door through which they change.

Records (`records.py`) are frozen; a decision returns *changes*, the new values of records,
and the service commits them to the store before it applies them here (`Books.apply`). So the
books in memory never hold what the store does not.

A decision works on `Books.overlay()`: books that see its own changes on top of these and
leave these as they are.

What must never happen is written down twice: in `Books.validate`, and as constraints of the
SQL tables (`store/tables.py`).

Threads: whoever reads or applies does so one at a time (the service holds its lock).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from selfsched_broker.core.overlay import Overlay
from selfsched_broker.core.past_records import JobEvidence, LearnedPrior, PastForecast
from selfsched_broker.core.records import (
    Account,
    Agenda,
    Answer,
    Auction,
    Audit,
    Broker,
    Change,
    Claim,
    Device,
    DevicePulse,
    Erase,
    Forget,
    Holding,
    Job,
    JobPulse,
    Lease,
    LeasePulse,
    Node,
    Record,
    Token,
)

__all__ = [
    "TABLES", "Account", "Agenda", "Answer", "Auction", "Audit", "Books", "BooksBroken", "Broker",
    "Change", "Claim", "Device", "DevicePulse", "Erase", "Forget", "Holding", "Job", "JobEvidence",
    "JobPulse", "LearnedPrior", "Lease", "LeasePulse", "Node", "PastForecast", "Record", "Token",
]


class BooksBroken(AssertionError):
    """An invariant does not hold: our own mistake, never an input's."""


Ids = frozenset[str]
_NONE: Ids = frozenset()


@dataclass(slots=True)
class Books:
    """All records by kind and key, and the indexes that decisions need."""

    broker: Broker
    agenda: Agenda = field(default_factory=Agenda)
    accounts: MutableMapping[str, Account] = field(default_factory=dict)
    tokens: MutableMapping[str, Token] = field(default_factory=dict)
    nodes: MutableMapping[str, Node] = field(default_factory=dict)
    devices: MutableMapping[str, Device] = field(default_factory=dict)
    pulses: MutableMapping[str, DevicePulse] = field(default_factory=dict)
    jobs: MutableMapping[str, Job] = field(default_factory=dict)
    job_pulses: MutableMapping[str, JobPulse] = field(default_factory=dict)
    leases: MutableMapping[str, Lease] = field(default_factory=dict)
    lease_pulses: MutableMapping[str, LeasePulse] = field(default_factory=dict)
    holdings: MutableMapping[str, Holding] = field(default_factory=dict)
    claims: MutableMapping[str, Claim] = field(default_factory=dict)
    auctions: MutableMapping[str, Auction] = field(default_factory=dict)
    answers: MutableMapping[str, Answer] = field(default_factory=dict)
    audits: MutableMapping[str, Audit] = field(default_factory=dict)
    forecasts: MutableMapping[str, PastForecast] = field(default_factory=dict)
    evidence: MutableMapping[str, JobEvidence] = field(default_factory=dict)
    priors: MutableMapping[str, LearnedPrior] = field(default_factory=dict)
    healthy_devices: int = 0
    """Devices that can be awarded now or later: reported, neither sick nor unknown nor drained."""
    _healthy: MutableMapping[str, bool] = field(default_factory=dict, repr=False)
    _holding_of_device: MutableMapping[str, str] = field(default_factory=dict, repr=False)
    _claim_of_device: MutableMapping[str, str] = field(default_factory=dict, repr=False)
    _leases_of_job: MutableMapping[str, Ids] = field(default_factory=dict, repr=False)
    _holdings_of_lease: MutableMapping[str, Ids] = field(default_factory=dict, repr=False)
    _jobs_of_account: MutableMapping[str, Ids] = field(default_factory=dict, repr=False)
    """Live ones; an account without is absent."""
    _active_of_job: MutableMapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    """Holdings to which a job still has a right, by device; a job without is absent."""
    _open_leases: MutableMapping[str, bool] = field(default_factory=dict, repr=False)
    _idle: MutableMapping[str, bool] = field(default_factory=dict, repr=False)
    """Devices that nobody has or claims and whose node says they are empty (see `idle_devices`)."""
    active_weight: float = 0.0
    """Summed weights of the accounts with a job that counts (neither paused nor ended)."""
    _counting: MutableMapping[str, tuple[int, float]] = field(default_factory=dict, repr=False)
    """By account: its jobs that count, and their summed priorities; an account without is absent."""

    def overlay(self) -> Books:
        """Books that show these and take changes without touching these."""
        copy = Books(broker=self.broker, agenda=self.agenda, healthy_devices=self.healthy_devices)
        copy.active_weight = self.active_weight
        for name in (*TABLES.values(), *_INDEXES):
            setattr(copy, name, Overlay(getattr(self, name)))
        return copy

    def apply(self, changes: Iterable[Change]) -> None:
        """Take committed changes into the books."""
        for change in changes:
            if isinstance(change, Broker):
                self.broker = change
            elif isinstance(change, Agenda):
                self.agenda = change
            elif isinstance(change, Forget):
                self._forget(change)
            else:
                table = self._table(type(change))
                if isinstance(change, Job | Account):
                    self._weigh(table.get(change.key), change)
                table[change.key] = change
                self._index(change)

    def _table(self, kind: type[Record]) -> MutableMapping[str, Any]:
        return getattr(self, TABLES[kind])  # type: ignore[no-any-return]

    def record(self, kind: type[Record], key: str) -> Record | None:
        """The present value of a record kept in a table."""
        return self._table(kind).get(key)

    def _forget(self, forget: Forget) -> None:
        self._table(forget.kind).pop(forget.forgotten, None)
        if forget.kind is Job:
            self._leases_of_job.pop(forget.forgotten, None)
        elif forget.kind is Lease:
            self._holdings_of_lease.pop(forget.forgotten, None)

    def _index(self, record: Record) -> None:
        match record:
            case Holding():
                known = self._holdings_of_lease.get(record.lease, _NONE)
                if record.key not in known:
                    self._holdings_of_lease[record.lease] = known | {record.key}
                _point(self._holding_of_device, record.device, record.key, record.live)
                self._note_active(record)
                self._note_idle(record.device)
            case Claim():
                _point(self._claim_of_device, record.device, record.key, record.state == "open")
                self._note_idle(record.device)
            case Lease():
                known = self._leases_of_job.get(record.job, _NONE)
                if record.id not in known:
                    self._leases_of_job[record.job] = known | {record.id}
                _mark(self._open_leases, record.id, record.ended_at is None)
            case Job():
                _member(self._jobs_of_account, record.account, record.id, record.live)
            case Device() | DevicePulse():
                self._note_health(record.id)
                self._note_idle(record.id)

    def _note_health(self, device: str) -> None:
        known, pulse = self.devices.get(device), self.pulses.get(device)
        healthy = bool(known and not known.drained and pulse and pulse.state in ("empty", "occupied"))
        self.healthy_devices += healthy - self._healthy.get(device, False)
        self._healthy[device] = healthy

    def _note_active(self, holding: Holding) -> None:
        job, key = self.leases[holding.lease].job, holding.key
        known = self._active_of_job.get(job, ())
        if holding.active and key not in known:
            keys = sorted((*known, key), key=lambda k: self.holdings[k].device)
            self._active_of_job[job] = tuple(keys)
        elif not holding.active and key in known:
            if len(known) > 1:
                self._active_of_job[job] = tuple(k for k in known if k != key)
            else:
                del self._active_of_job[job]

    def _note_idle(self, device: str) -> None:
        known, pulse = self.devices.get(device), self.pulses.get(device)
        empty = known is not None and not known.drained and pulse is not None and pulse.state == "empty"
        taken = device in self._holding_of_device or device in self._claim_of_device
        _mark(self._idle, device, empty and not taken)

    def _weigh(self, old: Job | Account | None, new: Job | Account) -> None:
        """Keep the sums from which shares are made in line with a change."""
        if isinstance(new, Account):
            before = old.weight if isinstance(old, Account) else 1.0
            self.active_weight += new.weight - before if new.name in self._counting else 0.0
            return
        was = old.priority if isinstance(old, Job) and old.counts else None
        now = new.priority if new.counts else None
        if was == now:
            return
        count, priorities = self._counting.get(new.account, (0, 0.0))
        owner = self.accounts.get(new.account)
        weight = owner.weight if owner is not None else 1.0
        left = count + (now is not None) - (was is not None)
        if left:
            self._counting[new.account] = (left, priorities + (now or 0.0) - (was or 0.0))
            self.active_weight += 0.0 if count else weight
        else:
            del self._counting[new.account]
            # No sum of floats must be left of nobody.
            self.active_weight = self.active_weight - weight if len(self._counting) else 0.0

    def counting_priorities(self, account: str) -> float:
        """Summed priorities of an account's jobs that are neither paused nor ended."""
        return float(self._counting.get(account, (0, 0.0))[1])

    def idle_devices(self) -> Iterator[str]:
        """Devices that nobody has or claims, not drained, and empty by their node's last word.

        Whether one that was sick has been well for long enough is not in it.
        """
        return iter(self._idle)

    def live_jobs(self) -> Iterator[Job]:
        """Jobs that have not ended, in order of registration."""
        ids = (job for account in self._jobs_of_account for job in self._jobs_of_account[account])
        return iter(sorted((self.jobs[job] for job in ids), key=lambda job: job.number))

    def live_jobs_of(self, account: str) -> list[Job]:
        """Live jobs of an account, in order of registration."""
        jobs = [self.jobs[job] for job in self._jobs_of_account.get(account, _NONE)]
        return jobs if len(jobs) < 2 else sorted(jobs, key=lambda job: job.number)

    def live_accounts(self) -> list[str]:
        """Accounts with a live job."""
        return list(self._jobs_of_account)

    def holding_of(self, device: str) -> Holding | None:
        """The one live holding of a device."""
        key = self._holding_of_device.get(device)
        return self.holdings[key] if key else None

    def claim_on(self, device: str) -> Claim | None:
        """The one open claim on a device."""
        key = self._claim_of_device.get(device)
        return self.claims[key] if key else None

    def open_leases(self) -> list[Lease]:
        """Leases with a live holding, oldest first."""
        return sorted((self.leases[i] for i in self._open_leases), key=lambda lease: lease.fence)

    def leases_of(self, job: str) -> list[Lease]:
        """Leases of a job that have not ended, oldest first."""
        return [lease for lease in self.all_leases_of(job) if lease.ended_at is None]

    def all_leases_of(self, job: str) -> list[Lease]:
        """Every lease a job ever had, oldest first."""
        leases = [self.leases[i] for i in self._leases_of_job.get(job, _NONE)]
        return leases if len(leases) < 2 else sorted(leases, key=lambda lease: lease.fence)

    def holdings_of(self, lease: str) -> list[Holding]:
        """Live holdings of a lease, by device."""
        keys = self._holdings_of_lease.get(lease, _NONE)
        live = [holding for key in keys if (holding := self.holdings[key]).live]
        return live if len(live) < 2 else sorted(live, key=lambda holding: holding.device)

    def all_holdings_of(self, lease: str) -> list[Holding]:
        """Every holding a lease ever had, by device."""
        found = [self.holdings[key] for key in self._holdings_of_lease.get(lease, _NONE)]
        return found if len(found) < 2 else sorted(found, key=lambda holding: holding.device)

    def active_of(self, job: str) -> list[Holding]:
        """Holdings to which a job still has a right (held or yielding), by device."""
        return [self.holdings[key] for key in self._active_of_job.get(job, ())]

    def claims_of(self, job: str) -> list[Claim]:
        """Open claims of a job, by device."""
        if not len(self._claim_of_device):
            return []
        found = (self.claims[key] for key in self._claim_of_device.values())
        return sorted((c for c in found if c.job == job), key=lambda claim: claim.device)

    def open_claims(self) -> list[Claim]:
        """All open claims, by device."""
        return sorted((self.claims[k] for k in self._claim_of_device.values()), key=lambda c: c.device)

    def devices_of(self, job: str) -> list[str]:
        """Devices a job holds (held or yielding, not quarantined), sorted."""
        return [holding.device for holding in self.active_of(job)]

    def validate(self) -> None:
        """Raise BooksBroken unless every invariant holds (S1, S2, S7 and the references)."""
        self._validate_holdings()
        self._validate_claims()
        self._validate_sums()
        fences = [lease.fence for lease in self.leases.values()]
        if len(set(fences)) < len(fences) or any(f >= self.broker.next_fence for f in fences):
            raise BooksBroken("a fence was given twice or from the future")
        for lease in self.leases.values():
            live = self.holdings_of(lease.id)
            if lease.ended_at is None and not live:
                raise BooksBroken(f"lease {lease.id} is open and empty")
            if lease.ended_at is None and (lease.end_reason == "") != any(h.active for h in live):
                raise BooksBroken(f"lease {lease.id} ended by {lease.end_reason!r} against its holdings")
        for job in self.jobs.values():
            if not job.live and self.active_of(job.id):
                raise BooksBroken(f"job {job.id} has ended and holds devices")

    def _validate_holdings(self) -> None:
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

    def _validate_sums(self) -> None:
        for account in {job.account for job in self.jobs.values()}:
            priorities = sum(job.priority for job in self.live_jobs_of(account) if job.counts)
            if abs(priorities - self.counting_priorities(account)) > 1e-9 * max(1.0, priorities):
                raise BooksBroken(f"the priorities of {account} do not sum up")
        weights = sum(self.accounts[name].weight for name in self._counting)
        if abs(weights - self.active_weight) > 1e-9 * max(1.0, weights):
            raise BooksBroken(f"the weights sum up to {weights}, not to {self.active_weight}")
        for job in self.jobs:
            held = {h.key for lease in self.leases_of(job) for h in self.holdings_of(lease.id) if h.active}
            if held != {holding.key for holding in self.active_of(job)}:
                raise BooksBroken(f"what {job} holds is not what its leases say")
        for device in self._idle:
            if self.holding_of(device) is not None or self.claim_on(device) is not None:
                raise BooksBroken(f"{device} is not idle")

    def _validate_claims(self) -> None:
        claimed = [c for c in self.claims.values() if c.state == "open"]
        if len({claim.device for claim in claimed}) < len(claimed):
            raise BooksBroken("a device is claimed twice")
        for claim in claimed:
            if not self.jobs[claim.job].live:
                raise BooksBroken(f"claim {claim.key} outlived its job")


def _point(index: MutableMapping[str, str], name: str, key: str, on: bool) -> None:
    """Let `name` lead to `key` while it is live."""
    if on:
        index[name] = key
    elif index.get(name) == key:
        del index[name]


def _mark(index: MutableMapping[str, bool], name: str, on: bool) -> None:
    if on:
        index[name] = True
    else:
        index.pop(name, None)


def _member(index: MutableMapping[str, Ids], group: str, name: str, on: bool) -> None:
    """Keep `name` in its group while it is live; a group without members is absent."""
    members = index.get(group, _NONE)
    members = members | {name} if on else members - {name}
    if members:
        index[group] = members
    else:
        index.pop(group, None)


TABLES: dict[type[Record], str] = {
    Account: "accounts",
    Token: "tokens",
    Device: "devices",
    DevicePulse: "pulses",
    Node: "nodes",
    Job: "jobs",
    JobPulse: "job_pulses",
    Lease: "leases",
    LeasePulse: "lease_pulses",
    Holding: "holdings",
    Claim: "claims",
    Auction: "auctions",
    Answer: "answers",
    Audit: "audits",
    PastForecast: "forecasts",
    JobEvidence: "evidence",
    LearnedPrior: "priors",
}
"""Attribute of `Books` for each kind kept in a table."""

_INDEXES = (
    "_healthy", "_holding_of_device", "_claim_of_device", "_leases_of_job", "_holdings_of_lease",
    "_jobs_of_account", "_open_leases", "_idle", "_counting",
    "_active_of_job",
)
