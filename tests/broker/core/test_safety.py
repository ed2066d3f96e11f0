"""The safety invariants S1-S6 under random faults, against a checker that shares no code with the books.

A world of two nodes and three devices: jobs whose processes really sit on devices, crash, freeze
and leave orphans; reports that are late, doubled or lost; nodes that fall silent, restart, or
report what they saw long ago; a broker that is killed before or after a commit. The checker
reads only the committed changes and the world.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from broker.driver import Driver, EqualShares, bid
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from selfsched.protocol import (
    ControlJob,
    DeviceReport,
    EndJob,
    Instructions,
    JobReport,
    JobState,
    LeaseRef,
    NodeReport,
    Outcome,
    ProblemCode,
    ProcessOnNode,
    RegisterJob,
    ReleaseDevices,
    Resume,
)
from selfsched_broker.core import arbiter
from selfsched_broker.core.books import Holding, Lease
from selfsched_broker.core.leases import LeaseOptions, Refusal
from selfsched_broker.core.market import FairnessOptions
from selfsched_broker.core.policies.themis import Themis
from selfsched_broker.store.memory import MemoryDisk, MemoryStore

DEVICES = {"a/cpu0": "a", "a/cpu1": "a", "b/cpu0": "b"}


@dataclass
class WorldJob:
    """A job as it is, whatever the broker believes."""

    id: str
    node: str
    told: Instructions | None = None
    told_at: float = 0.0
    sequence: int = 0
    step: int = 0
    on: set[str] = field(default_factory=set)
    """Devices its processes really sit on."""
    dead: bool = False
    delayed: list[JobReport] = field(default_factory=list)


@dataclass
class Checker:
    """Intervals of grants, read from committed changes alone."""

    holder: dict[str, str] = field(default_factory=dict)
    """Live lease of each device."""
    left: dict[str, int] = field(default_factory=dict)
    """Event number at which the last use of a device ended."""
    empty_seen: dict[str, int] = field(default_factory=dict)
    """Event number of the newest accepted report that it is empty and healthy."""
    fences: dict[str, int] = field(default_factory=dict)
    clock: int = 0

    def see_report(self, states: dict[str, str]) -> None:
        self.clock += 1
        for device, state in states.items():
            if state == "empty":
                self.empty_seen[device] = self.clock
            else:
                self.empty_seen.pop(device, None)

    def see(self, changes: tuple[Any, ...]) -> list[str]:
        """Devices granted by these changes; raises on a broken promise."""
        self.clock += 1
        for lease in [change for change in changes if isinstance(change, Lease)]:
            known = self.fences.get(lease.id)
            assert known in (None, lease.fence), f"the fence of {lease.id} changed (S2)"
            if known is None:
                assert lease.fence > max(self.fences.values(), default=0), "a fence came back (S2)"
                self.fences[lease.id] = lease.fence
        holdings = [change for change in changes if isinstance(change, Holding)]
        for holding in [h for h in holdings if not h.live]:
            self.left.setdefault(holding.device, self.clock)
            if self.holder.get(holding.device) == holding.lease:
                del self.holder[holding.device]
        granted = []
        for holding in [h for h in holdings if h.live]:
            assert self.holder.get(holding.device, holding.lease) == holding.lease, "leased twice (S1)"
            if holding.device not in self.holder:
                seen = self.empty_seen.get(holding.device, -1)
                assert seen > self.left.get(holding.device, -1), "granted unproven (S4)"
                granted.append(holding.device)
            self.holder[holding.device] = holding.lease
            if holding.state == "quarantined":
                self.left.setdefault(holding.device, self.clock)
        for device in granted:
            self.left.pop(device, None)
        return granted


class World(RuleBasedStateMachine):
    """Rules are what happens; after each the books must be whole and the promises kept."""

    policy: Any = EqualShares

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.checker = Checker()
        self.jobs: dict[str, WorldJob] = {}
        self.orphans: dict[str, str] = {}
        self.hidden: set[str] = set()
        self.node_incarnation = {"a": 1, "b": 1}
        self.node_sequence = {"a": 0, "b": 0}
        self.node_messages: list[tuple[str, NodeReport]] = []
        self.watched: dict[str, tuple[str, ...]] = {}
        self.sick: set[str] = set()
        self.driver = Driver(
            policy=self.policy(),
            store=MemoryStore(self.disk),
            options=LeaseOptions(term_seconds=30.0, sick_recovery_seconds=5.0, min_auction_seconds=5.0),
            fairness=FairnessOptions(
                repay_min_seconds=5.0, repay_factor=2.0, visit_steps=2, visit_seconds=10.0
            ),
        )

    # --- driving -----------------------------------------------------------------------------

    def do(self, call: Any, *arguments: Any, **keywords: Any) -> Any:
        answer = self.driver.do(call, *arguments, **keywords)
        assert self.driver.last is not None
        granted = self.checker.see(self.driver.last.changes)
        for device in granted:
            there = [job.id for job in self.jobs.values() if device in job.on]
            assert not there, f"{device} granted while {there} sits on it"
            assert device not in self.orphans, f"{device} granted with an orphan on it"
        return answer

    def do_or_lose(self, call: Any, *arguments: Any) -> Any:
        """As `do`; None where the broker says that the lease is lost or the job has ended."""
        try:
            return self.do(call, *arguments)
        except Refusal as refusal:
            if refusal.code not in (ProblemCode.LEASE_LOST, ProblemCode.JOB_ENDED):
                raise
            return None

    def settle(self) -> None:
        for _ in range(20):
            if arbiter.next_due(self.driver.books, self.driver.ctx) > self.driver.now:
                return
            self.do(arbiter.advance)
        raise AssertionError("advance is due again and again")

    def refused(self, code: ProblemCode, call: Any, *arguments: Any) -> None:
        before = repr(self.driver.books)
        with pytest.raises(Refusal) as refusal:
            call(self.driver.books, self.driver.ctx, *arguments)
        assert refusal.value.code is code
        assert repr(self.driver.books) == before

    def pick(self, index: int) -> WorldJob:
        return list(self.jobs.values())[index % len(self.jobs)]

    def message(self, job: WorldJob, *, measured: bool = False) -> JobReport:
        leases = job.told.leases if job.told else ()
        job.sequence += 1
        job.step += bool(job.on)
        return JobReport(
            incarnation=1,
            sequence=job.sequence,
            state=JobState.RUNNING if job.on else JobState.WAITING,
            step=job.step,
            steady_steps=job.step,
            notice_seconds=5.0,
            leases=tuple(LeaseRef(lease=x.lease, fence=x.fence) for x in leases),
            bid=bid(500.0, 300.0, 250.0) if measured else None,
        )

    def send(self, job: WorldJob, message: JobReport, *, reply: bool = True) -> None:
        answer = self.do_or_lose(arbiter.report, job.id, message)
        if answer is None and reply:
            job.on.clear()
            job.told = None
        elif reply:
            self.obey(job, answer)
        self.settle()

    def obey(self, job: WorldJob, answer: Instructions) -> None:
        """Sit on what is leased and not to be left; leave at once what is leased no more."""
        job.told, job.told_at = answer, self.driver.now
        leased = {d.id for lease in answer.leases for d in lease.devices}
        leave = {d for lease in answer.leases for d in lease.leave}
        job.on = (leased - leave) | (job.on & leave)

    # --- rules -------------------------------------------------------------------------------

    @initialize()
    def nodes_report(self) -> None:
        for node in ("a", "b"):
            self.node_reports(node)
        self.register("ann", 3, False, Resume.ELASTIC, "a")

    @rule(rounds=st.sampled_from([1, 3, 10, 11]), measured=st.booleans())
    def all_goes_well(self, rounds: int, measured: bool) -> None:
        """Time passes while nodes and the living report and obey."""
        for _ in range(rounds):
            self.driver.now += 5.0
            self._deadlines_pass()
            self.settle()
            for job in [job for job in self.jobs.values() if not job.dead]:
                if self.driver.books.jobs[job.id].live:
                    self.send(job, self.message(job, measured=measured))
                    self._leave(job, everything=False)
            for node in ("a", "b"):
                self.node_reports(node)

    @precondition(lambda self: sum(not job.dead for job in self.jobs.values()) < 4)
    @rule(account=st.sampled_from(["ann", "bob"]), most=st.integers(1, 3), gang=st.booleans(),
          resume=st.sampled_from(list(Resume)), node=st.sampled_from(["a", "b"]))  # fmt: skip
    def register(self, account: str, most: int, gang: bool, resume: Resume, node: str) -> None:
        number = len(self.jobs) + 1
        message = RegisterJob(
            name="job",
            min_devices=most if gang else 1,
            max_devices=most,
            resume=resume,
            stated_seconds=100.0 if resume is Resume.NEVER else None,
            process=ProcessOnNode(node=node, pid=number, session=number, started=1),
        )
        answer = self.do(arbiter.register, account, message)
        self.jobs[answer.job] = WorldJob(id=answer.job, node=node)
        self.settle()

    @precondition(lambda self: self.jobs)
    @rule(index=st.integers(0, 9), measured=st.booleans(), reply=st.booleans())
    def report(self, index: int, measured: bool, reply: bool) -> None:
        job = self.pick(index)
        if not job.dead:
            self.send(job, self.message(job, measured=measured), reply=reply)

    @precondition(lambda self: self.jobs)
    @rule(index=st.integers(0, 9))
    def report_is_delayed(self, index: int) -> None:
        job = self.pick(index)
        if not job.dead:
            job.delayed.append(self.message(job))

    @precondition(lambda self: any(job.delayed for job in self.jobs.values()))
    @rule(index=st.integers(0, 9), again=st.booleans())
    def delayed_report_arrives(self, index: int, again: bool) -> None:
        job = next(job for job in self.jobs.values() if job.delayed)
        message = job.delayed[index % len(job.delayed)]
        if not again:
            job.delayed.remove(message)
        self.send(job, message, reply=False)

    @precondition(lambda self: any(job.told and job.told.leases for job in self.jobs.values()))
    @rule()
    def wrong_fences_are_refused(self) -> None:
        job = next(job for job in self.jobs.values() if job.told and job.told.leases)
        assert job.told is not None
        lease = job.told.leases[0]
        ref = LeaseRef(lease=lease.lease, fence=lease.fence + 1)
        device = lease.devices[0].id
        release = ReleaseDevices(fence=lease.fence + 1, devices=(device,))
        self.refused(ProblemCode.LEASE_LOST, arbiter.release, lease.lease, release)
        if self.driver.books.jobs[job.id].live and not job.dead:
            report = JobReport(incarnation=1, sequence=10**6, state=JobState.RUNNING, leases=(ref,))
            self.refused(ProblemCode.LEASE_LOST, arbiter.report, job.id, report)

    @precondition(lambda self: any(job.told for job in self.jobs.values()))
    @rule(index=st.integers(0, 9), everything=st.booleans(), twice=st.booleans())
    def release(self, index: int, everything: bool, twice: bool) -> None:
        job = self.pick(index)
        if not job.dead:
            self._leave(job, everything=everything, twice=twice)

    def _leave(self, job: WorldJob, *, everything: bool, twice: bool = False) -> None:
        for lease in job.told.leases if job.told else ():
            devices = tuple(d.id for d in lease.devices) if everything else lease.leave
            if not devices:
                continue
            job.on -= set(devices)
            for _ in range(1 + twice):
                message = ReleaseDevices(fence=lease.fence, devices=devices)
                self.do_or_lose(arbiter.release, lease.lease, message)
        self.settle()

    @precondition(lambda self: self.jobs)
    @rule(index=st.integers(0, 9), action=st.sampled_from(["pause", "resume", "resume", "give_back", "stop"]))
    def control(self, index: int, action: Any) -> None:
        try:
            self.do(arbiter.control, self.pick(index).id, ControlJob(action=action))
        except Refusal:
            return
        self.settle()

    @precondition(lambda self: self.jobs)
    @rule(index=st.integers(0, 30), outcome=st.sampled_from(list(Outcome)))
    def end(self, index: int, outcome: Outcome) -> None:
        job = self.pick(index)
        if not job.dead and index < len(self.jobs):
            job.on.clear()
            self.do(arbiter.end, job.id, EndJob(outcome=outcome))
            self.settle()

    @precondition(lambda self: self.jobs)
    @rule(index=st.integers(0, 9), orphans=st.sampled_from(["none", "seen", "hidden"]))
    def crash(self, index: int, orphans: str) -> None:
        """Hidden orphans have let go of the slot's lock: only the job's session still shows them."""
        if index >= len(self.jobs):
            return
        job = self.pick(index)
        job.dead = True
        job.delayed.clear()  # a request does not outlive its process's connection by a whole ttl
        if orphans != "none":
            self.orphans.update(dict.fromkeys(job.on, job.id))
        if orphans == "hidden":
            self.hidden |= {device for device in job.on if DEVICES[device] == job.node}
        job.on.clear()

    @precondition(lambda self: self.orphans)
    @rule()
    def orphans_go(self) -> None:
        self.orphans.clear()
        self.hidden.clear()

    def _observe(self, node: str) -> NodeReport:
        self.node_sequence[node] += 1
        taken = (set(self.orphans) - self.hidden).union(*(job.on for job in self.jobs.values()))
        mine = [device for device, home in DEVICES.items() if home == node]

        def state(device: str) -> Any:
            if device in self.sick:
                return "sick"
            return "occupied" if device in taken else "empty"

        leases = self.driver.books.leases
        gone = tuple(
            lease
            for lease in self.watched.get(node, ())
            if lease in leases and self._is_gone(leases[lease].job)
        )
        return NodeReport(
            incarnation=self.node_incarnation[node],
            sequence=self.node_sequence[node],
            devices=tuple(
                DeviceReport(id=d, index=i, model="cpu", kind="cpu", state=state(d))
                for i, d in enumerate(mine)
            ),
            ended_leases=gone,
        )

    def _is_gone(self, job_id: str) -> bool:
        job = self.jobs[job_id]
        return job.dead and job_id not in self.orphans.values()

    def _deliver(self, node: str, message: NodeReport) -> None:
        known = self.driver.books.nodes.get(node)
        news = known is None or (message.incarnation, message.sequence) > (known.incarnation, known.sequence)
        if news:
            self.checker.see_report({device.id: device.state for device in message.devices})
        answer = self.do(arbiter.node_report, node, message)
        if not news:
            assert self.driver.last is not None
            assert not self.driver.last.changes, "an old report changed something (D15)"
        self.watched[node] = answer.watched_leases
        self.settle()

    @rule(node=st.sampled_from(["a", "b"]))
    def node_reports(self, node: str) -> None:
        message = self._observe(node)
        self.node_messages.append((node, message))
        self._deliver(node, message)

    @precondition(lambda self: self.node_messages)
    @rule(index=st.integers(0, 99))
    def old_node_report_arrives(self, index: int) -> None:
        node, message = self.node_messages[index % len(self.node_messages)]
        # Before a broker's restart its number counts; after, the agent has begun a new row too.
        if message.incarnation == self.node_incarnation[node]:
            self._deliver(node, message)

    @rule(node=st.sampled_from(["a", "b"]))
    def node_restarts(self, node: str) -> None:
        self.node_incarnation[node] += 1
        self.node_sequence[node] = 0

    @rule(device=st.sampled_from(list(DEVICES)))
    def a_device_falls_sick(self, device: str) -> None:
        self.sick.add(device)

    @precondition(lambda self: self.sick)
    @rule()
    def all_are_well_again(self) -> None:
        self.sick.clear()

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0, 10.0, 20.0, 50.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.driver.now += seconds
        self._deadlines_pass()
        self.settle()

    def _deadlines_pass(self) -> None:
        """A job that has not been answered leaves by its own clock, earlier than the broker's."""
        options = self.driver.options
        for job in self.jobs.values():
            limit = options.ttl_seconds - options.client_margin_seconds
            if job.on and self.driver.now - job.told_at >= limit:
                job.on.clear()
                job.told = None

    @rule(committed=st.booleans(), away=st.sampled_from([0.0, 5.0, 100.0]))
    def broker_is_killed(self, committed: bool, away: float) -> None:
        """In the middle of `advance`, before or after its commit; then it starts again."""
        decision = arbiter.advance(self.driver.books, self.driver.ctx)
        if committed:
            assert self.driver.store is not None
            self.driver.store.commit(decision.changes)
            self.checker.see(decision.changes)
        before = self.driver.store
        driver = self.driver
        driver.store = MemoryStore(self.disk)
        driver.now += away
        driver.open()
        self._deadlines_pass()
        assert before is not driver.store
        # Nodes' rows are not durable: their agents begin anew with the broker.
        for node in self.node_incarnation:
            self.node_restarts(node)
        self.checker.empty_seen.clear()
        self.settle()

    # --- invariants --------------------------------------------------------------------------

    @invariant()
    def s7_no_more_is_leased_than_there_is(self) -> None:
        assert set(self.checker.holder) <= set(DEVICES)

    @invariant()
    def s5_what_was_answered_is_stored(self) -> None:
        again = self.disk.rows.get(Lease, {})
        assert {key: again.get(key) for key in self.driver.books.leases} == dict(self.driver.books.leases)

    @invariant()
    def nobody_shares_a_device(self) -> None:
        sitting = [device for job in self.jobs.values() for device in job.on]
        assert len(sitting) == len(set(sitting)), "two jobs sit on one device"


class WorldOfThemis(World):
    """The same world under the real policy."""

    policy = Themis


_CI = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    # No shrinking: it takes many minutes, and the steps are printed as they were.
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
TestWorld = pytest.mark.slow(World.TestCase)
TestWorld.settings = _CI
TestWorldOfThemis = pytest.mark.slow(WorldOfThemis.TestCase)
TestWorldOfThemis.settings = settings(_CI, max_examples=60)
