"""Drives the pure arbiter as the service would: decide, commit, apply, advance. Virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from selfsched.protocol import (
    BidRow,
    ControlJob,
    DeviceReport,
    EndJob,
    Instructions,
    JobReport,
    JobState,
    LeaseRef,
    NodeReport,
    Outcome,
    Placement,
    RegisterJob,
    ReleaseDevices,
    StandingBid,
)
from selfsched_broker.core import arbiter
from selfsched_broker.core.books import Books, Broker
from selfsched_broker.core.draft import Context, Decision
from selfsched_broker.core.fairness import is_measured
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.core.market import Award, Contender, FairnessOptions, Market, Ruling


class EqualShares:
    """A policy for tests: everybody gets one more in turn, those with fewest first."""

    name = "equal-shares"

    def rule(self, market: Market, rng: np.random.Generator) -> Ruling:
        pool = {seat.device: seat for seat in market.seats}
        given = {c.job: list(c.kept) for c in market.contenders}
        for c in market.contenders:
            if not c.may_move:
                given[c.job] += [pool.pop(d).device for d in c.at_stake]
        left = {c.account: c.quota_left for c in market.contenders}
        for c in market.contenders:
            if left[c.account] is not None and c.may_move:
                left[c.account] += len(c.at_stake)
        growing = True
        while growing:
            growing = any(
                self._grow(c, given, pool, left)
                for c in sorted(market.contenders, key=lambda c: (len(given[c.job]), c.number))
            )
        return Ruling(awards={c.job: self._award(c, given[c.job]) for c in market.contenders})

    def _grow(
        self, c: Contender, given: dict[str, list[str]], pool: dict[str, Any], left: dict[str, int | None]
    ) -> bool:
        counts = c.allowed_devices[:1] if not is_measured(c.bid) else c.allowed_devices
        have = len(given[c.job])
        need = next((n - have for n in counts if n > have), 0)
        usable = sorted(
            (d for d in pool if not c.wanted_devices or d in c.wanted_devices),
            key=lambda d: (d not in c.at_stake, pool[d].holder is not None, d),
        )
        limit = left[c.account]
        if not need or len(usable) < need or (limit is not None and need > limit):
            return False
        given[c.job] += [pool.pop(d).device for d in usable[:need]]
        if limit is not None:
            left[c.account] = limit - need
        return True

    def _award(self, c: Contender, devices: list[str]) -> Award:
        visit = not is_measured(c.bid) and bool(devices)
        reason = f"its turn: {len(devices)} devices" if devices else "nothing is left for it"
        return Award(job=c.job, devices=tuple(devices), visit=visit, reason=reason)


def bid(*remaining: float, restart: float = 1.0, current: int | None = None) -> StandingBid:
    """Remaining seconds on 1, 2, ... devices."""
    return StandingBid(
        rows=tuple(
            BidRow(
                placement=Placement(devices=n),
                remaining_seconds=seconds,
                restart_seconds=0.0 if n == current else restart,
            )
            for n, seconds in enumerate(remaining, start=1)
        )
    )


@dataclass
class Driver:
    """A broker, its cluster and its jobs, with every message sent by hand."""

    policy: Any = None
    options: LeaseOptions = field(default_factory=LeaseOptions)
    fairness: FairnessOptions = field(
        default_factory=lambda: FairnessOptions(repay_min_seconds=20.0, visit_steps=3, visit_seconds=20.0)
    )
    store: Any = None
    survives_policies: bool = False
    now: float = 0.0
    books: Books = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.policy = self.policy or EqualShares()
        self.rng = np.random.default_rng(0)
        self.node_sequence: dict[str, int] = {}
        self.sequence: dict[str, int] = {}
        self.last: Decision[Any] | None = None
        if self.books is None:
            self.open()

    def open(self) -> None:
        """Start the broker on its store."""
        self.books = self.store.open() if self.store else Books(broker=Broker(incarnation=1))
        self.now = max(self.now, self.books.broker.clock)
        self.do(arbiter.restart)

    @property
    def ctx(self) -> Context:
        return Context(
            now=self.now,
            options=self.options,
            policy=self.policy,
            fairness=replace(self.fairness, term_seconds=self.options.term_seconds),
            rng=self.rng,
            survives_policies=self.survives_policies,
        )

    def do(self, call: Callable[..., Decision[Any]], *arguments: Any, **keywords: Any) -> Any:
        """Decide, commit, apply, check; returns the answer."""
        decision = call(self.books, self.ctx, *arguments, **keywords)
        if self.store:
            self.store.commit(decision.changes)
        self.books.apply(decision.changes)
        self.books.validate()
        self.last = decision
        return decision.answer

    def settle(self) -> None:
        """Do what is due now; it must come to an end."""
        for _ in range(20):
            if arbiter.next_due(self.books, self.ctx) > self.now:
                return
            self.do(arbiter.advance)
        raise AssertionError("advance is due again and again without time passing")

    def node(
        self, name: str = "n", devices: int | Iterable[str] = 2, *, incarnation: int = 1, **states: str
    ) -> Any:
        """A node's report: `cpu0` ... all empty unless said otherwise (held ones: occupied)."""
        ids = [f"{name}/cpu{i}" for i in range(devices)] if isinstance(devices, int) else list(devices)
        self.node_sequence[name] = self.node_sequence.get(name, 0) + 1
        reports = tuple(
            DeviceReport(id=d, index=i, model="cpu", kind="cpu", cores=(i,), state=self._state(d, states))  # type: ignore[arg-type]
            for i, d in enumerate(ids)
        )
        message = NodeReport(incarnation=incarnation, sequence=self.node_sequence[name], devices=reports)
        answer = self.do(arbiter.node_report, name, message)
        self.settle()
        return answer

    def _state(self, device: str, states: dict[str, str]) -> str:
        short = device.rpartition("/")[2]
        if short in states:
            return states[short]
        holding = self.books.holding_of(device)
        return "occupied" if holding is not None and holding.active else "empty"

    def register(self, account: str = "ann", fewest: int = 1, most: int = 2, **fields: Any) -> str:
        """Register a job; returns its id."""
        message = RegisterJob(name="job", min_devices=fewest, max_devices=most, **fields)
        job: str = self.do(arbiter.register, account, message).job
        self.settle()
        return job

    def report(self, job: str, *, state: JobState | None = None, **fields: Any) -> Instructions:
        """A job's report, naming the leases it has been told of; running where it has devices."""
        told = arbiter.instructions(self.books, self.ctx, job)
        refs = fields.pop("leases", tuple(LeaseRef(lease=x.lease, fence=x.fence) for x in told.leases))
        if "sequence" not in fields:
            self.sequence[job] = fields["sequence"] = self.sequence.get(job, 0) + 1
        state = state or (JobState.RUNNING if refs else JobState.WAITING)
        fields.setdefault("incarnation", 1)
        answer: Instructions = self.do(arbiter.report, job, JobReport(state=state, leases=refs, **fields))
        self.settle()
        return answer

    def release(self, job: str) -> None:
        """The job leaves everything it was told to leave."""
        for lease in arbiter.instructions(self.books, self.ctx, job).leases:
            if lease.leave:
                message = ReleaseDevices(fence=lease.fence, devices=lease.leave)
                self.do(arbiter.release, lease.lease, message)
        self.settle()

    def end(self, job: str, outcome: Outcome = Outcome.FINISHED) -> None:
        self.do(arbiter.end, job, EndJob(outcome=outcome))
        self.settle()

    def control(self, job: str, action: str, **fields: Any) -> None:
        self.do(arbiter.control, job, ControlJob(action=action, **fields))  # type: ignore[arg-type]
        self.settle()

    def live(self, seconds: float, *, step: float = 5.0, jobs: bool = True, nodes: bool = True) -> None:
        """Let time pass while nodes and jobs report, obey and make steps."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + step)
            self.settle()
            if jobs:
                for job in list(self.books.live_jobs()):
                    self.obey(job.id)
            if nodes:
                for name in sorted({device.node for device in self.books.devices.values()}):
                    self.node(name, sorted(d.id for d in self.books.devices.values() if d.node == name))

    def obey(self, job_id: str) -> None:
        """Report as a job that trains, and leave what it is told to leave."""
        pulse = self.books.job_pulses[job_id]
        holds = bool(self.books.devices_of(job_id))
        self.report(job_id, step=pulse.step + holds, steady_steps=pulse.steady_steps + holds)
        if self.books.jobs[job_id].order == "stop":
            self.end(job_id, Outcome.CANCELLED)
        else:
            self.release(job_id)

    def held(self, job: str) -> list[str]:
        """Devices of a job without their node's name."""
        return [device.rpartition("/")[2] for device in self.books.devices_of(job)]
