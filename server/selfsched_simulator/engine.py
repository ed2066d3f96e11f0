"""Virtual time: simulated jobs and nodes on one side, the broker's own service on the other.

Nothing of the broker is copied or bent: the same `Service` decides, over the same books in a
memory store, with the time of the simulation as its monotonic clock. What a network and processes do
in reality happens at once: instructions reach a job at the instant they change, a left device is
proven empty by the next node report at the same instant.

What says nothing new is not said, so that a simulation costs what changes. Without faults nobody
can fall silent, so liveness is given all the time there is, jobs that hold nothing are quiet (their
bid is the same), and those that run report just before the broker decides, when their last report
is older than `report_seconds`. With faults (`faults`) the broker's own times rule, and everybody
reports as often as in reality, by a post that may be late or lose something.

With rounds (`round_seconds`) the term is the round, the first is at 0, and the arbiter holds auctions at
ticks only: what becomes free inside a round stays idle. Without, the broker's own clock rules.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from selfsched.errors import SelfschedError
from selfsched.protocol import EndJob, JobReport, Outcome, ProblemCode, ReleaseDevices
from selfsched_broker.core.arbiter import Refusal
from selfsched_broker.core.books import Books
from selfsched_broker.core.market import Policy
from selfsched_broker.service import LEFT, Rules, Service, instructions_topic
from selfsched_broker.store.memory import MemoryStore
from selfsched_simulator.faults import Outage, Post, outages_of, posts
from selfsched_simulator.job import SimulatedJob
from selfsched_simulator.machines import Machines
from selfsched_simulator.options import SimulationOptions, rules_of
from selfsched_simulator.trace import TraceJob, count_names
from selfsched_simulator.wire import Said, Wire

# Deciding so often at one instant means that broker and jobs answer each other for ever.
_MOST_DECISIONS_AT_ONCE = 10_000
# Nobody has had a device for so many terms, and nothing else is to come.
_MOST_IDLE_TERMS = 200
_NODE_REPORT_SECONDS = 20.0

What = Literal["step", "report", "arrives", "deadline", "node", "outage", "repair"]


class SimulationStuck(SelfschedError):
    """Nothing is left to happen and jobs have not ended: the policy starves them."""


@dataclass(slots=True)
class Simulation:
    """One trace under one policy."""

    trace: Sequence[TraceJob]
    policy: Policy
    options: SimulationOptions
    listener: Callable[[Said], None] | None = None
    """Told of every message to the broker, in order."""
    jobs: dict[str, SimulatedJob] = field(default_factory=dict)
    """Those that have arrived, by the broker's id."""
    now: float = 0.0
    partial: str = ""
    """Why it ended before its jobs; empty: it did not."""
    rules: Rules = field(init=False)
    """By what the broker decides."""
    posts: dict[str, Post] = field(default_factory=dict)
    """The way of each job's reports, where messages can be late or lost."""
    _wire: Wire = field(init=False)
    _machines: Machines = field(init=False)
    _latest_at: float = field(init=False)
    """Whatever is fair ends before."""
    _live: dict[str, SimulatedJob] = field(default_factory=dict)
    _seated: dict[str, SimulatedJob] = field(default_factory=dict)
    """Live jobs with devices."""
    _topics: dict[str, str] = field(default_factory=dict)
    """Live jobs by the topic of their instructions."""
    _touched: set[str] = field(default_factory=set)
    _known: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """What each job was last told of its devices."""
    _events: list[tuple[float, int, What, str, Any]] = field(default_factory=list)
    _expected: dict[str, int] = field(default_factory=dict)
    _counter: itertools.count[int] = field(default_factory=itertools.count)
    _devices_left: bool = False
    """The broker says that some were, perhaps without their job's word."""
    _served_at: float = 0.0
    """When a job was last seen with devices."""

    def __post_init__(self) -> None:
        options = self.options
        # One job after the other, ten times as slow and a thousand terms late.
        starts = options.habits.restart_seconds * len(self.trace)
        work = sum(max(job.speed.placements.values()) for job in self.trace) + starts
        arrived = max((job.arrival_seconds for job in self.trace), default=0.0)
        self._latest_at = arrived + 10 * work + 1000 * options.tick_seconds
        self.rules = rules_of(options, self.policy)
        service = Service(MemoryStore(keeps_history=False), self.rules, monotonic=lambda: self.now)
        if options.round_seconds is not None:
            # As if it had been started one round earlier: the first round begins at 0.
            service.books.apply((replace(service.books.agenda, next_tick_at=0.0),))
        service.listen(self._hear)
        self._wire = Wire(service, self.policy.name, lambda: self.now, self.listener)
        self._machines = Machines(options.cluster)
        if options.faults.any:
            self.posts = posts([job.name for job in self.trace], options.faults, options.seed)

    @property
    def books(self) -> Books:
        """The broker's books."""
        return self._wire.books

    @property
    def _is_faulty(self) -> bool:
        return self.options.faults.any

    def run(self, progress: Callable[[int], None] = lambda ended: None) -> list[SimulatedJob]:
        """Simulate until every job has ended, or the limit of real time has passed.

        Args:
            progress: called with the number of ended jobs whenever it has grown.

        Returns:
            All jobs that have arrived; those without `finished_at` have not ended (see `partial`).

        Raises:
            SimulationStuck: jobs remain that nothing would ever start.
            PolicyFailed: the policy raised or broke its contract.
        """
        began = time.monotonic()
        self._open()
        arrivals = list(self.trace)[::-1]
        while arrivals or self._live:
            if time.monotonic() - began > self.options.limit_seconds:
                self.partial = f"stopped after {self.options.limit_seconds:g} s of real time"
                break
            arrival = arrivals[-1].arrival_seconds if arrivals else math.inf
            event = self._events[0][0] if self._events else math.inf
            self._move_to(min(self._next_decision(min(arrival, event)), arrival, event), waits=not arrivals)
            while arrivals and arrivals[-1].arrival_seconds <= self.now:
                self._arrive(arrivals.pop())
            before = len(self._live)
            self._happen()
            self._decide()
            if len(self._live) < before:
                progress(len(self.jobs) - len(self._live))
        return list(self.jobs.values())

    def _open(self) -> None:
        for node in self.options.cluster.nodes:
            self._report_node(node.name)
            if self._is_faulty:
                self._plan(_NODE_REPORT_SECONDS, "node", node.name)
        for stream in outages_of(self.options.cluster, self.options.faults, self.options.seed):
            self._plan_outage(stream)

    # --- time ----------------------------------------------------------------------------

    def _move_to(self, instant: float, *, waits: bool) -> None:
        served = bool(self._seated) or not waits or self._machines.any_comes_back
        starved = not served and instant - self._served_at > _MOST_IDLE_TERMS * self.options.tick_seconds
        if served:
            self._served_at = instant
        if not math.isfinite(instant) or instant > self._latest_at or starved:
            waiting = count_names(job.row.name for job in self._live.values())
            raise SimulationStuck(f"at {self.now:.0f} s nothing starts the jobs {waiting} any more")
        self.now = max(self.now, instant)

    def _next_decision(self, event: float) -> float:
        """When the broker is to decide, given when something happens of itself."""
        due, tick = self._wire.next_due(), self.options.tick_seconds
        if not self.options.skips_calm_ticks or not due < event < math.inf:
            return due
        calm = all(job.has_all for job in self._live.values())
        return max(due, math.floor(event / tick) * tick) if calm else due

    def _plan(self, at: float, what: What, who: str, payload: Any = None) -> int:
        token = next(self._counter)
        if math.isfinite(at):
            heapq.heappush(self._events, (at, token, what, who, payload))
        return token

    def _happen(self) -> None:
        """Everything of the jobs' and nodes' own that falls on this instant."""
        while self._events and self._events[0][0] <= self.now:
            _, token, what, who, payload = heapq.heappop(self._events)
            if what in ("node", "outage", "repair"):
                self._happen_to_node(what, who, payload)
                continue
            job = self._live.get(who)
            if job is None:
                continue
            if what == "step":
                self._step(job, token)
            elif what == "report":
                self._report(job)
                self._plan(self.now + self.options.report_seconds, "report", job.id)
            elif what == "arrives":
                self._deliver(job, *payload)
            else:
                self._look_at_deadline(job, payload)
            self._follow()

    def _step(self, job: SimulatedJob, token: int) -> None:
        if self._expected.get(job.id) != token:
            return
        job.advance(self.now)
        if job.is_done or job.next_event_at() <= self.now:
            self._end(job)
        else:
            self._report(job)
            self._expect(job)

    def _decide(self) -> None:
        """Let the broker decide until nothing is due at this instant."""
        for _ in range(_MOST_DECISIONS_AT_ONCE):
            if self._wire.next_due() > self.now:
                return
            if not self._is_faulty:
                self._report_seated()
            self._wire.say("advance")
            self._follow()
            self._prove_empty()
        raise SimulationStuck(f"at {self.now:.0f} s the broker decides for ever")

    # --- jobs ----------------------------------------------------------------------------

    def _arrive(self, row: TraceJob) -> None:
        job = SimulatedJob(row, self.options.habits, self.options.cluster, counted_at=self.now)
        answer = self._wire.say("register", row.account or row.name, job.registration())
        job.id = answer.job
        self.jobs[job.id] = self._live[job.id] = job
        self._topics[instructions_topic(job.id)] = job.id
        if self._is_faulty:
            self.posts[job.id] = self.posts.pop(row.name)
            self.posts[job.id].answered_at = self.now
            self._plan(self.now + self.options.report_seconds, "report", job.id)
        self._report(job)
        self._follow()

    def _end(self, job: SimulatedJob) -> None:
        job.finished_at = self.now
        self._leave(job)
        self._wire.say("end", job.id, EndJob(outcome=Outcome.FINISHED))
        self._follow()
        self._prove_empty()

    def _leave(self, job: SimulatedJob) -> None:
        self._machines.note_left(job.devices)
        for table in (self._live, self._seated, self._known, self._expected):
            table.pop(job.id, None)
        self._topics.pop(instructions_topic(job.id))

    def _report_seated(self) -> None:
        patience, change = self.options.report_seconds, self.options.report_change
        for job in list(self._seated.values()):
            age = self.now - self.books.job_pulses[job.id].reported_at
            if age >= patience and (not change or age >= change * job.remaining_seconds):
                self._report(job)

    def _report(self, job: SimulatedJob) -> None:
        job.advance(self.now)
        message = job.report()
        post = self.posts.get(job.id)
        if post is None:
            self._wire.say("report", job.id, message)
            return
        delay = post.delay_seconds()
        post.hears = delay == 0.0
        if delay == 0.0:
            self._deliver(job, message, self.now)
        elif delay is not None:
            self._plan(self.now + delay, "arrives", job.id, (message, self.now))

    def _deliver(self, job: SimulatedJob, message: JobReport, sent_at: float) -> None:
        """A report reaches the broker, and its answer the job."""
        try:
            self._wire.say("report", job.id, message)
        except Refusal as refusal:
            self._take_refusal(job, refusal)
            return
        post = self.posts[job.id]
        post.hears, post.answered_at = True, max(post.answered_at, sent_at)
        self._touched.add(job.id)
        options = self.rules.lease
        deadline = post.answered_at + options.ttl_seconds - options.client_margin_seconds
        self._plan(deadline, "deadline", job.id, post.answered_at)

    def _take_refusal(self, job: SimulatedJob, refusal: Refusal) -> None:
        if refusal.code is ProblemCode.LEASE_LOST:
            job.forget_leases()
            self._stop(job)
        elif refusal.code is ProblemCode.JOB_ENDED:
            self._leave(job)
        else:
            raise refusal

    def _look_at_deadline(self, job: SimulatedJob, answered_at: float) -> None:
        """Without an answer since, a job stops while its lease still lives."""
        if self.posts[job.id].answered_at == answered_at and job.devices:
            self._stop(job)

    def _stop(self, job: SimulatedJob) -> None:
        """It leaves its devices of its own accord; what it is told next it hears anew."""
        job.stop(self.now)
        self._known.pop(job.id, None)
        self._seat(job)

    def _expect(self, job: SimulatedJob) -> None:
        """Its next step of interest; what was expected of it before is void."""
        self._expected[job.id] = self._plan(job.next_event_at(), "step", job.id)

    def _hear(self, topics: frozenset[str]) -> None:
        self._touched.update(self._topics[topic] for topic in topics & self._topics.keys())
        self._devices_left = self._devices_left or LEFT in topics

    def _follow(self) -> None:
        """Let jobs hear what has changed for them, until nothing has."""
        while heard := sorted(job for job in self._touched if self._hears(job)):
            self._touched.difference_update(heard)
            for job_id in heard:
                if job_id in self._live:
                    self._obey(self._live[job_id])
        self._touched.intersection_update(self._live)

    def _hears(self, job_id: str) -> bool:
        post = self.posts.get(job_id)
        return post is None or post.hears or job_id not in self._live

    def _obey(self, job: SimulatedJob) -> None:
        rights = tuple((h.lease, h.device, h.state) for h in self.books.active_of(job.id))
        if rights == self._known.get(job.id, ()):
            return  # only the words have changed
        self._known[job.id] = rights
        before = job.devices
        self._release(job.follow(self._wire.instructions(job.id), self.now))
        self._leave_dead(job)
        if job.devices != before:
            self._seat(job)

    def _release(self, releases: Iterable[tuple[str, ReleaseDevices]]) -> None:
        for lease, release in releases:
            self._machines.note_left(release.devices)
            self._wire.say("release", lease, release)

    def _seat(self, job: SimulatedJob) -> None:
        """Its devices have changed."""
        if job.devices:
            self._seated[job.id] = job
        else:
            self._seated.pop(job.id, None)
        self._report(job)
        self._expect(job)

    # --- nodes ---------------------------------------------------------------------------

    def _prove_empty(self) -> None:
        """Nodes with devices that were left say that these are empty."""
        if self._is_faulty and self._devices_left:
            leases = self.books.open_leases()
            quarantined = (
                h for e in leases for h in self.books.holdings_of(e.id) if h.state == "quarantined"
            )
            self._machines.note_left(holding.device for holding in quarantined)
        self._devices_left = False
        for node in self._machines.take_left():
            self._report_node(node)

    def _report_node(self, name: str) -> None:
        used = {device for job in self._seated.values() for device in job.devices}
        message = self._machines.report(name, used)
        if message is not None:
            self._wire.say("node_report", name, message)

    def _happen_to_node(self, what: What, name: str, payload: Any) -> None:
        if what == "node":
            self._report_node(name)
            self._plan(self.now + _NODE_REPORT_SECONDS, "node", name)
        elif what == "outage":
            outage, stream = payload
            self._fall(outage)
            self._plan_outage(stream)
        elif self._machines.rise(name, self.now):
            self._report_node(name)

    def _plan_outage(self, stream: Iterator[Outage]) -> None:
        outage = next(stream, None)
        if outage is not None:
            self._plan(max(self.now, outage.at_seconds), "outage", outage.node, (outage, stream))

    def _fall(self, outage: Outage) -> None:
        self._machines.fall(outage)
        self._plan(outage.until_seconds, "repair", outage.node)
        for job in list(self._seated.values()):
            self._leave_dead(job)
        self._follow()

    def _leave_dead(self, job: SimulatedJob) -> None:
        """A job leaves devices whose node is gone, as it notices at once."""
        dead = self._machines.dead_among(job.devices)
        if not dead:
            return
        self._release(job.crash(dead, self.now))
        self._seat(job)
