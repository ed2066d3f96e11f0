"""A device is never used past its lease, whatever the network, the broker and the clock do.

A model broker with its own clock speaks with the machine over a network that delays, loses
and reorders both ways. The broker's rules are the simplest that could be called right: a
report that arrives renews what it names, a lease that nobody renewed for a ttl is over. At
every moment what the job wants to run on must be live on the broker's side.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from selfsched.core import negotiation
from selfsched.core.negotiation_state import (
    CallFailed,
    DevicesProbed,
    DevicesReleased,
    Effect,
    Event,
    FactsLearned,
    Instructed,
    Probe,
    Register,
    Registered,
    Release,
    Report,
    SegmentEnded,
    SegmentStarted,
    Terms,
    TimePassed,
)
from selfsched.core.reporting import JobFacts
from selfsched.core.wanted import wanted
from selfsched.protocol import Instructions, JobReport, JobState, LeasedDevice, LeaseInstruction

TTL = 30.0
DEVICES = ("a", "b", "c")


@dataclass
class ModelLease:
    fence: int
    devices: set[str]
    expires_at: float
    leave: set[str] = field(default_factory=set)


@dataclass
class ModelBroker:
    """Holds leases on the true time; its replies are correct when they are made."""

    offset: float
    """Of its clock: must have no effect, and is in no message."""
    incarnation: int = 1
    version: int = 0
    fences: int = 0
    leases: dict[int, ModelLease] = field(default_factory=dict)

    def live(self, now: float) -> dict[int, ModelLease]:
        return {f: lease for f, lease in self.leases.items() if now < lease.expires_at and lease.devices}

    def grant(self, device: str, now: float) -> None:
        self.fences += 1
        self.version += 1
        self.leases[self.fences] = ModelLease(self.fences, {device}, now + TTL)

    def restart(self, now: float) -> None:
        self.incarnation += 1
        for lease in self.live(now).values():
            lease.expires_at = now + TTL

    def hear(self, report: JobReport, now: float) -> Instructions | None:
        named = [reference.fence for reference in report.leases]
        live = self.live(now)
        if named and not any(fence in live for fence in named):
            return None
        for fence in named:
            if fence in live:
                live[fence].expires_at = now + TTL
        return self.instructions(now)

    def instructions(self, now: float) -> Instructions:
        return Instructions(
            job="job-1", incarnation=self.incarnation, version=self.version, state=JobState.RUNNING,
            leases=tuple(
                LeaseInstruction(
                    lease=f"lease-{fence}", fence=fence, ttl_seconds=lease.expires_at - now,
                    term_seconds=100.0, leave=tuple(sorted(lease.leave)),
                    within_seconds=20.0 if lease.leave else None,
                    devices=tuple(
                        LeasedDevice(id=d, node="n", index=0, model="cpu", kind="cpu")
                        for d in sorted(lease.devices)
                    ),
                )
                for fence, lease in sorted(self.live(now).items())
            ),
        )  # fmt: skip


class LeaseSafety(RuleBasedStateMachine):
    """The machine against the model broker."""

    @initialize(offset=st.floats(-1e6, 1e6))
    def start(self, offset: float) -> None:
        self.now = 100.0
        self.broker = ModelBroker(offset)
        self.state = negotiation.begin(Terms(incarnation=1, max_devices=3), self.now)
        self.questions: list[tuple[float, Effect]] = []
        self.answers: list[Event] = []
        self.event(TimePassed())
        ((sent_at, question),) = self.questions
        self.questions.clear()
        self.broker.grant("a", self.now)
        self.event(self._heard(sent_at, question))

    def event(self, event: Event) -> None:
        self.state, effects = negotiation.step(self.state, event, self.now)
        for effect in effects:
            if isinstance(effect, Probe):
                self.event(DevicesProbed(frozenset(effect.devices), frozenset()))
            else:
                self.questions.append((self.now, effect))

    @rule(seconds=st.sampled_from([0.3, 2.0, 6.0, 9.0, 40.0]), awake=st.booleans())
    def time_passes(self, seconds: float, awake: bool) -> None:
        self.now += seconds
        if awake:
            self.event(TimePassed())
            self._follow()

    @rule(notice=st.floats(0, 100))
    def facts_are_learned(self, notice: float) -> None:
        self.event(FactsLearned(JobFacts(notice_seconds=notice)))

    @precondition(lambda self: self.questions)
    @rule(data=st.data(), fate=st.sampled_from(["answered", "lost", "reply lost", "refused"]))
    def a_question_arrives(self, data: st.DataObject, fate: str) -> None:
        sent_at, effect = self.questions.pop(data.draw(st.integers(0, len(self.questions) - 1)))
        if fate == "refused":
            self.answers.append(self._failure(effect, "unreachable"))
        elif fate != "lost":
            answer = self._heard(sent_at, effect)
            if fate == "answered":
                self.answers.append(answer)

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def an_answer_arrives(self, data: st.DataObject) -> None:
        self.event(self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1))))

    def _heard(self, sent_at: float, effect: Effect) -> Event:
        if isinstance(effect, Register):
            return Registered("job-1", self.broker.instructions(self.now), sent_at)
        if isinstance(effect, Report):
            told = self.broker.hear(effect.report, self.now)
            if told is None:
                return self._failure(effect, "lease_lost")
            return Instructed(told, effect.report.sequence, sent_at)
        assert isinstance(effect, Release)
        lease = self.broker.live(self.now).get(effect.message.fence)
        if lease is not None:
            lease.devices -= set(effect.message.devices)
            self.broker.version += 1
        return DevicesReleased(effect.key)

    def _failure(self, effect: Effect, trouble: str) -> CallFailed:
        if isinstance(effect, Register):
            return CallFailed("register", "unreachable", "away")
        if isinstance(effect, Release):
            return CallFailed("release", "unreachable", "away", key=effect.key)
        assert isinstance(effect, Report)
        return CallFailed("report", trouble, "away", sequence=effect.report.sequence)  # type: ignore[arg-type]

    @rule(device=st.sampled_from(DEVICES))
    def the_broker_grants(self, device: str) -> None:
        held = {d for lease in self.broker.live(self.now).values() for d in lease.devices}
        if device not in held:
            self.broker.grant(device, self.now)

    @rule(device=st.sampled_from(DEVICES))
    def the_broker_wants_a_device_back(self, device: str) -> None:
        for lease in self.broker.live(self.now).values():
            if device in lease.devices and device not in lease.leave:
                lease.leave.add(device)
                self.broker.version += 1

    @rule()
    def the_broker_restarts(self) -> None:
        self.broker.restart(self.now)

    def _follow(self) -> None:
        """As the supervisor does: leave what is not wanted, start what is."""
        ids = tuple(device.id for device in wanted(self.state, self.now).devices)
        if self.state.running and set(ids) != set(self.state.running):
            left = frozenset(self.state.running) - frozenset(ids)
            self.event(SegmentEnded(left, False, None))
        elif ids and not self.state.running:
            self.event(SegmentStarted(ids))

    @invariant()
    def nothing_is_wanted_that_the_broker_may_have_given_away(self) -> None:
        live = {d for lease in self.broker.live(self.now).values() for d in lease.devices}
        chosen = wanted(self.state, self.now)
        assert {device.id for device in chosen.devices} <= live
        if chosen.devices:
            first = min(
                lease.expires_at
                for lease in self.broker.live(self.now).values()
                if lease.devices & {device.id for device in chosen.devices}
            )
            if not self.state.running or {d.id for d in chosen.devices} == set(self.state.running):
                assert chosen.lease_ends_at < first

    @invariant()
    def what_is_released_is_not_run_on(self) -> None:
        for release in self.state.releases:
            for lease in self.state.leases:
                if lease.lease == release.effect.lease and not release.is_done:
                    assert not set(release.effect.message.devices) & set(self.state.running)


TestLeaseSafety = LeaseSafety.TestCase
TestLeaseSafety.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, derandomize=True,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
