"""Virtual time: simulated jobs and a node on one side, the broker's own arbiter on the other.

Nothing of the broker is copied or bent: the same pure functions decide, over books in memory,
with the time of the simulation as the broker's clock. What a network and processes do in
reality happens at once: instructions reach a job at the instant they change, a left device is
proven empty by the next node report at the same instant. Jobs report whenever the broker is
about to decide and the last report is older than `report_seconds`, as they would all along.

With rounds (`round_seconds`) the term is the round and the arbiter holds auctions at ticks
only: what becomes free inside a round stays idle. Without, the broker's own clock rules.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from selfsched.errors import SelfschedError
from selfsched.protocol import DeviceReport, EndJob, NodeReport, Outcome
from selfsched_broker.core import arbiter
from selfsched_broker.core.arbiter import Context, Decision, LeaseOptions
from selfsched_broker.core.books import Books, Broker
from selfsched_broker.core.market import FairnessOptions, Policy
from selfsched_simulator.job import SimulatedJob
from selfsched_simulator.trace import TraceJob
from selfsched_simulator.truth import claim_factor

_NODE = "node"
# Deciding so often at one instant means that broker and jobs answer each other for ever.
_MOST_DECISIONS_AT_ONCE = 10_000
_YEAR_SECONDS = 3.15e7


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationOptions:
    """What is simulated, besides the trace and the policy."""

    gpus: int
    round_seconds: float | None = None
    """Term, and the only moments of decision; None: the broker's own clock."""
    term_seconds: float = LeaseOptions().term_seconds
    """Term without rounds."""
    restart_seconds: float = 20.0
    noise: float = 0.0
    seed: int = 1


class SimulationStuck(SelfschedError):
    """Nothing is left to happen and jobs have not ended: the policy starves them."""


@dataclass(slots=True)
class Simulation:
    """One trace under one policy."""

    trace: Sequence[TraceJob]
    policy: Policy
    options: SimulationOptions
    books: Books = field(default_factory=lambda: Books(broker=Broker(incarnation=1)))
    jobs: dict[str, SimulatedJob] = field(default_factory=dict)
    """Those that have arrived, by the broker's id."""
    now: float = 0.0
    decisions: int = 0
    _ctx: Context = field(init=False)
    _latest_at: float = field(init=False)
    """Whatever is fair ends before."""
    _live: dict[str, SimulatedJob] = field(default_factory=dict)
    _events: list[tuple[float, int, str]] = field(default_factory=list)
    _expected: dict[str, int] = field(default_factory=dict)
    _counter: itertools.count[int] = field(default_factory=itertools.count)
    _node_sequence: int = 0

    def __post_init__(self) -> None:
        lease_options = _lease_options(self.options)
        fairness = FairnessOptions(term_seconds=lease_options.term_seconds)
        # One job after the other, ten times as slow and a thousand terms late.
        work = sum(max(job.run_seconds.values()) + self.options.restart_seconds for job in self.trace)
        arrived = max((job.arrival_seconds for job in self.trace), default=0.0)
        self._latest_at = arrived + 10 * work + 1000 * lease_options.term_seconds
        self._ctx = Context(
            now=0.0,
            options=lease_options,
            policy=self.policy,
            fairness=fairness,
            rng=np.random.default_rng(self.options.seed),
        )

    def run(self, progress: Callable[[int], None] = lambda ended: None) -> list[SimulatedJob]:
        """Simulate until every job has ended.

        Args:
            progress: called with the number of ended jobs whenever it has grown.

        Raises:
            SimulationStuck: jobs remain that nothing would ever start.
        """
        self._report_node()
        arrivals = list(self.trace)[::-1]
        while arrivals or self._live:
            due = arbiter.next_due(self.books, self._ctx)
            arrival = arrivals[-1].arrival_seconds if arrivals else math.inf
            event = self._events[0][0] if self._events else math.inf
            self._move_to(min(due, arrival, event))
            while arrivals and arrivals[-1].arrival_seconds <= self.now:
                self._arrive(arrivals.pop())
            before = len(self._live)
            self._happen()
            self._decide()
            if len(self._live) < before:
                progress(len(self.jobs) - len(self._live))
        return list(self.jobs.values())

    # --- time ----------------------------------------------------------------------------

    def _move_to(self, instant: float) -> None:
        if not math.isfinite(instant) or instant > self._latest_at:
            waiting = ", ".join(job.row.name for job in itertools.islice(self._live.values(), 5))
            raise SimulationStuck(f"at {self.now:.0f} s nothing starts the jobs {waiting} any more")
        self.now = max(self.now, instant)
        self._ctx = _at(self._ctx, self.now)

    def _happen(self) -> None:
        """First and last steps that fall on this instant."""
        while self._events and self._events[0][0] <= self.now:
            _, token, job_id = heapq.heappop(self._events)
            job = self._live.get(job_id)
            if job is None or self._expected.get(job_id) != token:
                continue
            job.advance(self.now)
            if job.is_done or job.next_event_at() <= self.now:
                self._end(job)
            else:
                self._report(job)
                self._expect(job)

    def _decide(self) -> None:
        """Let the broker decide until nothing is due at this instant."""
        for _ in range(_MOST_DECISIONS_AT_ONCE):
            if arbiter.next_due(self.books, self._ctx) > self.now:
                return
            self._report_all()
            self._take(arbiter.advance(self.books, self._ctx))
            self._report_node_if_left()
        raise SimulationStuck(f"at {self.now:.0f} s the broker decides for ever")

    # --- jobs ----------------------------------------------------------------------------

    def _arrive(self, row: TraceJob) -> None:
        factor = claim_factor(row.name, noise=self.options.noise, seed=self.options.seed)
        job = SimulatedJob(row, factor, self.options.restart_seconds, counted_at=self.now)
        decision = arbiter.register(self.books, self._ctx, row.account or row.name, job.registration())
        self._apply(decision)
        job.id = decision.answer.job
        self.jobs[job.id] = self._live[job.id] = job
        self._report(job)

    def _end(self, job: SimulatedJob) -> None:
        job.finished_at = self.now
        del self._live[job.id]
        self._take(arbiter.end(self.books, self._ctx, job.id, EndJob(outcome=Outcome.FINISHED)))
        self._report_node_if_left()

    def _report_all(self) -> None:
        for job in list(self._live.values()):
            pulse = self.books.job_pulses[job.id]
            if self.now - pulse.reported_at >= self._ctx.options.report_seconds:
                job.advance(self.now)
                self._report(job)

    def _report(self, job: SimulatedJob) -> None:
        self._apply(arbiter.report(self.books, self._ctx, job.id, job.report()))

    def _expect(self, job: SimulatedJob) -> None:
        """Its next step of interest; what was expected of it before is void."""
        self._expected[job.id] = token = next(self._counter)
        at = job.next_event_at()
        if math.isfinite(at):
            heapq.heappush(self._events, (at, token, job.id))

    def _follow(self, touched: Iterable[str]) -> None:
        for job_id in sorted(touched & self._live.keys()):
            job = self._live[job_id]
            word = arbiter.instructions(self.books, self._ctx, job_id)
            before = job.devices
            releases = job.follow(word, self.now)
            for lease, release in releases:
                self._apply(arbiter.release(self.books, self._ctx, lease, release))
            if job.devices != before:
                self._report(job)
                self._expect(job)

    # --- broker --------------------------------------------------------------------------

    def _take(self, decision: Decision[Any]) -> None:
        """Commit a decision and let the jobs it touched hear of it."""
        self._apply(decision)
        self._follow(decision.touched)

    def _apply(self, decision: Decision[Any]) -> None:
        self.decisions += 1
        self.books.apply(decision.changes)

    def _report_node_if_left(self) -> None:
        leases = self.books.open_leases()
        if any(h.state == "quarantined" for lease in leases for h in self.books.holdings_of(lease.id)):
            self._report_node()

    def _report_node(self) -> None:
        self._node_sequence += 1
        used = {device for job in self._live.values() for device in job.devices}
        devices = tuple(
            DeviceReport(
                id=f"gpu-{index:05}",
                index=index,
                model="gpu",
                kind="gpu",
                state="occupied" if f"gpu-{index:05}" in used else "empty",
            )
            for index in range(self.options.gpus)
        )
        message = NodeReport(incarnation=1, sequence=self._node_sequence, devices=devices)
        self._apply(arbiter.node_report(self.books, self._ctx, _NODE, message))


def _lease_options(options: SimulationOptions) -> LeaseOptions:
    """The broker's times. Nobody falls silent here, so liveness is given all the time there is."""
    term = options.round_seconds or options.term_seconds
    return LeaseOptions(
        term_seconds=term,
        ttl_seconds=_YEAR_SECONDS,
        node_silent_seconds=1e9,
        silent_job_seconds=1e9,
        idle_warned_seconds=1e9,
        idle_lost_seconds=1e9,
        rounds_only=options.round_seconds is not None,
    )


def _at(ctx: Context, now: float) -> Context:
    return Context(now=now, options=ctx.options, policy=ctx.policy, fairness=ctx.fairness, rng=ctx.rng)
