"""The job's side of the lease, event by event, on a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from selfsched.core import negotiation
from selfsched.core.duties import BUSY_GIVE_UP_SECONDS
from selfsched.core.negotiation_state import (
    CallFailed,
    DevicesProbed,
    DevicesReleased,
    Effect,
    Event,
    FactsLearned,
    Instructed,
    Negotiation,
    Probe,
    Register,
    Registered,
    Release,
    Report,
    SegmentEnded,
    SegmentStarted,
    Terms,
    TimePassed,
    Trouble,
)
from selfsched.core.wanted import Wanted, wanted
from selfsched.protocol import (
    BidRow,
    Instructions,
    JobReport,
    JobState,
    LeasedDevice,
    LeaseInstruction,
    Outcome,
    Placement,
    StandingBid,
)


def device(name: str) -> LeasedDevice:
    return LeasedDevice(id=name, node="n", index=0, model="cpu", kind="cpu")


def lease(*devices: str, fence: int = 1, ttl: float = 30.0, **more: object) -> LeaseInstruction:
    return LeaseInstruction(
        lease=f"lease-{fence}", fence=fence, ttl_seconds=ttl, term_seconds=300.0,
        devices=tuple(map(device, devices)), **more,
    )  # fmt: skip


def bid(*remaining: float | None) -> StandingBid:
    return StandingBid(
        rows=tuple(
            BidRow(placement=Placement(devices=n), remaining_seconds=seconds)
            for n, seconds in enumerate(remaining, start=1)
        )
    )


@dataclass
class Conversation:
    """Drives the machine and answers probes; what a shell would do, without one."""

    state: Negotiation = field(
        default_factory=lambda: negotiation.begin(Terms(incarnation=7, max_devices=2), 0.0)
    )
    now: float = 0.0
    version: int = 0
    incarnation: int = 1
    effects: list[Effect] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)

    def event(self, event: Event) -> list[Effect]:
        self.state, effects = negotiation.step(self.state, event, self.now)
        self.effects += effects
        for effect in effects:
            if isinstance(effect, Probe):
                asked = frozenset(effect.devices)
                self.event(DevicesProbed(free=asked - self.busy, busy=asked & self.busy))
        return list(effects)

    def passes(self, seconds: float) -> None:
        """Time passes in small steps, as a shell's ticks would have it."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.1)
            self.event(TimePassed())

    def registers(self, *leases: LeaseInstruction, **more: object) -> None:
        self.event(TimePassed())
        self.event(Registered("job-1", self.says(*leases, **more), self.now))

    def says(self, *leases: LeaseInstruction, **more: object) -> Instructions:
        self.version += 1
        return Instructions(
            job="job-1", incarnation=self.incarnation, version=self.version, state=JobState.RUNNING,
            leases=leases, **more,
        )  # fmt: skip

    def answers(self, *leases: LeaseInstruction, **more: object) -> None:
        """The broker answers the newest open report."""
        newest = self.state.open_reports[-1]
        self.event(Instructed(self.says(*leases, **more), newest.sequence, newest.sent_at))

    def fails(self, trouble: Trouble = "unreachable", **more: object) -> None:
        newest = self.state.open_reports[-1]
        self.event(CallFailed("report", trouble, "nobody there", sequence=newest.sequence, **more))

    def runs(self) -> None:
        """The supervisor starts what is wanted, and the segment makes steps."""
        self.event(SegmentStarted(self.wanted_ids))
        self.learns(is_stepping=True)

    def leaves(self, *left: str, never_started: bool = False) -> None:
        self.event(SegmentEnded(frozenset(left), never_started, checkpoint_step=5))

    def learns(self, **facts: object) -> None:
        self.event(FactsLearned(replace(self.state.facts, **facts)))

    @property
    def wanted(self) -> Wanted:
        return wanted(self.state, self.now)

    @property
    def wanted_ids(self) -> tuple[str, ...]:
        return tuple(device.id for device in self.wanted.devices)

    @property
    def reports(self) -> list[JobReport]:
        return [effect.report for effect in self.effects if isinstance(effect, Report)]

    @property
    def releases(self) -> list[Release]:
        return [effect for effect in self.effects if isinstance(effect, Release)]


@pytest.fixture
def talk() -> Conversation:
    return Conversation()


def running_on(talk: Conversation, *devices: str) -> Conversation:
    talk.registers(lease(*devices))
    talk.runs()
    talk.passes(0.5)
    talk.answers(lease(*devices))
    talk.passes(0.3)
    return talk


# --- register, wait, start -----------------------------------------------------------------


def test_a_job_registers_then_reports_and_waits_with_the_brokers_reason(talk: Conversation) -> None:
    assert talk.event(TimePassed()) == [Register(1)]
    assert talk.event(TimePassed()) == []  # one call at a time
    talk.event(Registered("job-1", talk.says(reasons=("two jobs are before you",)), 0.0))
    (report,) = talk.reports
    assert (report.sequence, report.state, report.seen) == (1, JobState.WAITING, 1)
    assert report.wait_seconds == 10.0
    assert report.bid is not None
    assert [row.remaining_seconds for row in report.bid.rows] == [None, None]
    assert talk.wanted == Wanted(reason="two jobs are before you")


def test_a_granted_device_is_wanted_once_it_was_found_free(talk: Conversation) -> None:
    talk.busy = {"a"}
    talk.registers(lease("a"))
    talk.passes(0.5)
    assert talk.wanted_ids == ()
    assert talk.wanted.reason == "waiting until the last process on a is gone"
    talk.busy = set()
    talk.passes(0.5)
    assert talk.wanted_ids == ("a",)


def test_a_registration_that_gets_no_answer_is_tried_again_with_the_same_key(talk: Conversation) -> None:
    talk.event(TimePassed())
    for _ in range(4):
        talk.event(CallFailed("register", "unreachable", "nobody there"))
        assert talk.event(TimePassed()) == []  # not in the same moment
        talk.passes(16.0)
    assert talk.effects == [Register(1)] * 5
    assert talk.wanted.reason == "nobody there; waiting for it"


def test_waits_between_tries_grow_and_stay_bounded(talk: Conversation) -> None:
    tried_at = []
    for _ in range(12):
        while not talk.state.is_registering:
            talk.passes(0.1)
        tried_at.append(talk.now)
        talk.event(CallFailed("register", "unreachable", "nobody there"))
        if not talk.state.is_registering:
            talk.passes(0.1)
    gaps = [b - a for a, b in pairwise(tried_at)]
    assert gaps[0] < 1.0
    assert max(gaps[-3:]) > 5.0
    assert max(gaps) <= 15.5


def test_a_job_that_can_never_run_ends_with_the_brokers_words(talk: Conversation) -> None:
    talk.event(TimePassed())
    talk.event(CallFailed("register", "refused", "4 devices wanted, there are 2"))
    ending = talk.wanted.ending
    assert ending is not None
    assert (ending.reason, ending.outcome) == ("4 devices wanted, there are 2", Outcome.FAILED)


# --- the deadline ----------------------------------------------------------------------------


def test_the_deadline_counts_from_before_the_report_was_sent_less_a_margin(talk: Conversation) -> None:
    talk.registers()
    sent_at = talk.now
    talk.passes(3.0)
    talk.answers(lease("a"))
    assert talk.wanted.lease_ends_at == sent_at + 30.0 - 5.0


def test_a_short_ttl_keeps_a_margin_of_a_quarter(talk: Conversation) -> None:
    talk.registers(lease("a", ttl=4.0))
    assert talk.wanted.lease_ends_at == 3.0


def test_each_answer_moves_the_deadline_and_none_moves_it_back(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.passes(9.0)
    older, talk.version = talk.state.open_reports[-1], talk.version
    first = talk.wanted.lease_ends_at
    talk.answers(lease("a"))
    talk.passes(9.0)
    talk.answers(lease("a"))
    assert talk.wanted.lease_ends_at > first
    later = talk.wanted.lease_ends_at
    stale = Instructions(
        job="job-1", incarnation=1, version=talk.version - 1, state=JobState.RUNNING, leases=(lease("b"),)
    )
    talk.event(Instructed(stale, older.sequence, older.sent_at))
    assert (talk.wanted_ids, talk.wanted.lease_ends_at) == (("a",), later)


def test_a_process_that_was_stopped_beyond_its_ttl_wakes_with_nothing_to_run_on(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.now += 100.0  # no event in between: every thread was stopped
    assert talk.wanted_ids == ()
    assert talk.wanted.leave_by < talk.now
    assert talk.wanted.lease_ends_at < talk.now


def test_an_answer_that_lay_in_the_socket_meanwhile_does_not_revive_the_lease(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.now += 100.0
    talk.answers(lease("a"))  # to the report sent before the stop
    assert talk.wanted_ids == ()


def test_a_broker_that_is_away_for_less_than_the_ttl_stops_nothing(talk: Conversation) -> None:
    running_on(talk, "a", "b")
    talk.passes(6.0)
    for _ in range(6):
        talk.fails()
        assert talk.wanted_ids == ("a", "b")
        talk.passes(2.1)
    talk.answers(lease("a", "b"))
    talk.passes(1.0)
    assert talk.wanted_ids == ("a", "b")
    assert not talk.releases


def test_a_broker_that_stays_away_makes_the_job_leave_in_time_to_save(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.learns(notice_seconds=4.0)
    talk.passes(0.5)
    talk.answers(lease("a"))
    deadline = talk.wanted.lease_ends_at
    while talk.now < deadline - 4.5:
        if talk.state.open_reports:
            talk.fails()
        talk.passes(0.1)
    assert talk.wanted_ids == ("a",)
    assert talk.wanted.reason == "nobody there; the training goes on while its lease lasts"
    talk.passes(1.0)
    assert talk.wanted_ids == ()
    assert talk.wanted.leave_by == deadline
    talk.leaves("a")
    assert talk.wanted.reason.startswith("nobody there; its lease has run out")
    assert not talk.releases  # it may stand: the broker will say


def test_a_job_that_left_by_its_deadline_goes_on_when_the_broker_says_its_lease_stands(
    talk: Conversation,
) -> None:
    running_on(talk, "a")
    for _ in range(600):
        talk.passes(0.1)
        if talk.state.open_reports:
            talk.fails()
        if talk.state.running and not talk.wanted_ids:
            talk.leaves("a")
    assert not talk.state.running
    while not talk.state.open_reports:
        talk.passes(0.1)
    talk.answers(lease("a"))
    talk.passes(0.5)
    assert talk.wanted_ids == ("a",)


def test_a_short_rest_of_a_ttl_means_nothing_while_the_broker_answers(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.learns(notice_seconds=60.0)
    talk.passes(0.5)
    talk.answers(lease("a"))
    talk.passes(6.0)
    assert talk.wanted_ids == ("a",)


def test_an_answer_that_never_comes_counts_as_a_failure(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.passes(0.5)
    before = len(talk.reports)
    waited = talk.reports[-1].wait_seconds
    talk.passes(waited + 8.0)
    assert talk.state.contact.failures == 1
    assert len(talk.reports) == before + 1
    assert talk.reports[-1].bid is not None  # what was told may not have arrived


def test_reports_leave_time_for_two_more_before_the_deadline(talk: Conversation) -> None:
    running_on(talk, "a")
    for _ in range(20):
        talk.passes(talk.reports[-1].wait_seconds + 0.3)
        talk.answers(lease("a"))
        rest = talk.wanted.lease_ends_at - talk.now
        assert rest >= 2 * talk.reports[-1].wait_seconds


# --- shrink, grow, loss ------------------------------------------------------------------------


def test_a_shrink_keeps_the_rest_and_releases_only_what_was_left(talk: Conversation) -> None:
    running_on(talk, "a", "b")
    talk.passes(0.5)
    talk.answers(lease("a", "b", leave=("b",), within_seconds=20.0))
    assert talk.wanted_ids == ("a",)
    assert talk.wanted.leave_by == talk.now + 20.0
    talk.passes(0.5)
    assert talk.reports[-1].state is JobState.YIELDING
    assert not talk.releases
    talk.leaves("b")
    (release,) = talk.releases
    assert (release.lease, release.message.fence, release.message.devices) == ("lease-1", 1, ("b",))
    assert release.message.checkpoint_step == 5
    assert talk.wanted_ids == ("a",)
    talk.runs()
    talk.event(DevicesReleased(release.key))
    talk.answers(lease("a"))
    talk.passes(1.0)
    assert len(talk.releases) == 1


def test_an_order_to_leave_keeps_its_instant_over_repeated_answers(talk: Conversation) -> None:
    running_on(talk, "a", "b")
    talk.passes(0.5)
    talk.answers(lease("a", "b", leave=("b",), within_seconds=10.0))
    by = talk.wanted.leave_by
    talk.passes(2.0)
    talk.answers(lease("a", "b", leave=("b",), within_seconds=9.5))
    assert talk.wanted.leave_by == by


def test_a_grow_waits_until_the_further_device_is_free(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.busy = {"b"}
    talk.passes(0.5)
    talk.answers(lease("a"), lease("b", fence=2))
    talk.passes(10.0)
    assert talk.wanted_ids == ("a",)
    talk.busy = set()
    talk.passes(3.0)
    talk.answers(lease("a"), lease("b", fence=2))
    assert set(talk.wanted_ids) == {"a", "b"}
    assert talk.wanted.leave_by == float("inf") or talk.wanted.leave_by > talk.now + 10
    talk.leaves()
    assert not talk.releases
    talk.runs()
    talk.passes(0.5)
    assert talk.reports[-1].devices_in_use == talk.state.running == ("a", "b")


def test_a_granted_device_that_stays_locked_goes_back(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.busy = {"b"}
    talk.passes(0.5)
    talk.answers(lease("a"), lease("b", fence=2))
    for _ in range(int(BUSY_GIVE_UP_SECONDS) + 2):
        talk.passes(1.0)
        talk.answers(lease("a"), lease("b", fence=2))
    (release,) = talk.releases
    assert release.message.devices == ("b",)
    assert "another process holds its lock" in release.message.reason
    assert talk.wanted_ids == ("a",)


def test_a_lease_that_is_not_listed_any_more_is_left_at_once(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.learns(notice_seconds=3.0)
    talk.passes(0.5)
    talk.answers()
    assert talk.wanted_ids == ()
    assert talk.wanted.leave_by == talk.now + 3.0
    assert talk.wanted.lease_ends_at == talk.now + 3.0
    talk.leaves("a")
    assert not talk.releases


def test_a_lost_lease_makes_the_job_state_itself_anew_and_obey_the_answer(talk: Conversation) -> None:
    running_on(talk, "a", "b")
    talk.passes(0.5)
    talk.fails("lease_lost")
    talk.passes(0.5)
    anew = talk.reports[-1]
    assert (anew.leases, anew.wait_seconds) == ((), 0.0)
    assert anew.bid is not None
    talk.answers(lease("b", fence=2))
    assert talk.wanted_ids == ("b",)
    talk.leaves("a")
    talk.runs()
    talk.passes(0.5)
    assert [reference.fence for reference in talk.reports[-1].leases] == [2]


def test_a_broker_that_calls_every_lease_lost_is_no_tight_loop(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.passes(0.5)
    before = len(talk.reports)
    for _ in range(50):
        talk.passes(0.1)
        if talk.state.open_reports:
            talk.fails("lease_lost")
    assert len(talk.reports) - before < 12


def test_a_device_that_somebody_took_before_the_start_is_noticed_and_goes_back(talk: Conversation) -> None:
    talk.registers(lease("a"))
    assert talk.wanted_ids == ("a",)
    talk.busy = {"a"}  # the supervisor tries, in vain
    talk.passes(3.0)
    assert talk.wanted_ids == ()
    assert "until the last process on a is gone" in talk.wanted.reason
    for _ in range(40):
        talk.passes(1.0)
        if talk.state.open_reports:
            talk.answers(lease("a"))
    assert [release.message.devices for release in talk.releases] == [("a",)]


def test_a_failed_start_pauses_before_the_next(talk: Conversation) -> None:
    talk.registers(lease("a"))
    talk.runs()
    talk.leaves("a", never_started=True)
    assert talk.wanted_ids == ()
    talk.passes(1.0)
    assert talk.wanted_ids == ("a",)


def test_counts_that_break_the_global_batch_are_not_run_on_and_go_back(talk: Conversation) -> None:
    talk.state = negotiation.begin(Terms(incarnation=7, max_devices=4), 0.0)
    talk.registers(lease("a", "b", "c"))
    assert len(talk.wanted_ids) == 3
    talk.learns(allowed_devices=(1, 2, 4))
    assert talk.wanted_ids == ("a", "b")
    (release,) = talk.releases
    assert release.message.devices == ("c",)
    assert "only 1, 2, 4 devices" in release.message.reason
    talk.passes(0.5)
    assert talk.reports[-1].allowed_devices == (1, 2, 4)


def test_a_device_kept_over_a_grow_but_then_ordered_away_is_released(talk: Conversation) -> None:
    running_on(talk, "a", "b")
    talk.answers(lease("a", "b"), lease("c", fence=2))
    talk.state = replace(talk.state, terms=replace(talk.state.terms, max_devices=3))
    talk.passes(0.5)
    assert set(talk.wanted_ids) == {"a", "b", "c"}
    talk.leaves()  # the segment is over, all locks are kept
    talk.answers(lease("a", "b", leave=("b",), within_seconds=20.0), lease("c", fence=2))
    assert talk.wanted_ids == ("a", "c")
    assert [release.message.devices for release in talk.releases] == [("b",)]


# --- orders -------------------------------------------------------------------------------------


def test_a_pause_leaves_everything_and_a_resume_goes_on(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.passes(0.5)
    talk.answers(lease("a"), order="pause")
    assert talk.wanted_ids == ()
    assert talk.wanted.reason == "paused by its owner"
    talk.leaves("a")
    (release,) = talk.releases
    assert "pause" in release.message.reason
    talk.passes(0.5)
    assert talk.reports[-1].state is JobState.PAUSED
    talk.answers()
    talk.passes(0.5)
    talk.answers(lease("b", fence=2))
    assert talk.wanted_ids == ("b",)


def test_a_stop_ends_the_run_with_its_reason(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.passes(0.5)
    talk.answers(lease("a"), order="stop", reasons=("stopped by ada",))
    wanted = talk.wanted
    assert wanted.devices == ()
    assert wanted.ending is not None
    assert (wanted.ending.reason, wanted.ending.outcome) == ("stopped by ada", Outcome.CANCELLED)


# --- the broker forgets or ends the job -----------------------------------------------------------


def test_a_broker_that_lost_its_books_gets_the_job_anew_under_a_new_key(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.passes(0.5)
    talk.fails("not_found")
    assert talk.wanted_ids == ()
    assert talk.effects[-1] == Register(2)
    talk.leaves("a")
    anew = talk.says(lease("a", fence=5)).model_copy(update={"job": "job-9"})
    talk.event(Registered("job-9", anew, talk.now))
    assert talk.wanted_ids == ("a",)
    assert not talk.releases


def test_a_broker_that_counts_its_starts_anew_has_lost_its_books(talk: Conversation) -> None:
    talk.incarnation = 5
    running_on(talk, "a")
    older = talk.state.open_reports[-1]
    talk.passes(0.5)
    talk.answers(lease("a"))
    talk.passes(0.5)
    talk.incarnation = 4
    late = Instructed(talk.says(lease("z")), older.sequence, older.sent_at)
    talk.event(late)  # of a broker that has been replaced: says nothing
    assert talk.wanted_ids == ("a",)
    talk.incarnation = 1
    talk.answers(lease("z"))
    assert talk.wanted_ids == ()
    assert talk.effects[-1] == Register(2)


def test_an_answer_to_the_forgotten_job_is_ignored(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.passes(0.5)
    old = talk.state.open_reports[-1]
    talk.fails("not_found")
    talk.event(Registered("job-9", talk.says().model_copy(update={"job": "job-9"}), talk.now))
    talk.event(Instructed(talk.says(lease("a")), old.sequence, old.sent_at))
    assert talk.wanted_ids == ()


def test_a_job_lost_by_silence_comes_back_and_one_lost_by_idleness_does_not(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.passes(0.5)
    talk.fails("job_ended", outcome=Outcome.LOST)
    assert talk.effects[-1] == Register(2)
    talk.event(Registered("job-1", talk.says(), talk.now))
    talk.learns(idle_seconds=1000.0)
    talk.fails("job_ended", outcome=Outcome.LOST)
    assert talk.wanted.ending is not None
    assert talk.wanted.ending.outcome is Outcome.LOST


def test_a_job_cancelled_elsewhere_ends(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.passes(0.5)
    talk.fails("job_ended", outcome=Outcome.CANCELLED)
    assert talk.wanted.ending is not None
    assert talk.wanted.ending.outcome is Outcome.CANCELLED


def test_a_job_that_the_broker_says_has_ended_ends(talk: Conversation) -> None:
    running_on(talk, "a")
    newest = talk.state.open_reports[-1]
    ended = talk.says().model_copy(update={"state": JobState.ENDED})
    talk.event(Instructed(ended, newest.sequence, newest.sent_at))
    assert talk.wanted.ending is not None
    assert talk.wanted.ending.reason == "ended by the broker"


def test_the_failure_of_an_overtaken_report_is_no_absence_but_its_news_are_told_again(
    talk: Conversation,
) -> None:
    running_on(talk, "a")
    talk.passes(1.0)
    older = talk.state.open_reports[-1].sequence
    talk.learns(bid=bid(100.0, 60.0))
    newest = talk.state.open_reports[-1]
    assert newest.sequence == older + 1
    talk.state = replace(talk.state, answered_sequence=newest.sequence)  # its answer came meanwhile
    talk.event(CallFailed("report", "unreachable", "reset", sequence=older))
    assert not talk.state.contact.is_away
    talk.passes(0.5)
    assert talk.reports[-1].bid == bid(100.0, 60.0)


def test_a_new_incarnation_is_told_everything_again(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.learns(bid=bid(100.0, 60.0), allowed_devices=(1, 2))
    talk.passes(0.5)
    assert talk.reports[-1].bid == bid(100.0, 60.0)
    talk.answers(lease("a"))
    talk.learns(bid=bid(92.0, 52.0))
    talk.passes(8.0)
    assert talk.reports[-1].bid is None
    talk.incarnation = 2
    talk.version = 0
    talk.answers(lease("a"))
    talk.passes(0.5)
    assert talk.reports[-1].bid == bid(92.0, 52.0)
    assert talk.reports[-1].allowed_devices == (1, 2)
    assert talk.wanted_ids == ("a",)


# --- what is told, and when -----------------------------------------------------------------------


def test_the_first_bid_goes_out_at_once_though_a_report_is_open(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.passes(1.0)
    before = len(talk.reports)
    assert talk.state.open_reports
    talk.learns(bid=bid(100.0, 60.0))
    assert len(talk.reports) == before + 1
    assert talk.reports[-1].bid == bid(100.0, 60.0)


def test_a_drifting_bid_is_told_at_most_every_few_seconds(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.passes(1.0)
    before = len(talk.reports)
    remaining = 1000.0
    for _ in range(60):
        remaining *= 1.05
        talk.learns(bid=bid(remaining, remaining / 2))
        talk.passes(0.1)
    assert 2 <= len(talk.reports) - before <= 4


def test_a_bid_that_only_ages_is_not_sent_again(talk: Conversation) -> None:
    running_on(talk, "a")
    talk.learns(bid=bid(1000.0, 600.0))
    talk.passes(1.0)
    count = sum(report.bid is not None for report in talk.reports)
    start = talk.now
    for _ in range(10):
        talk.passes(3.0)
        elapsed = talk.now - start
        talk.learns(bid=bid(1000.0 - elapsed, 600.0 - elapsed))
        talk.answers(lease("a"))
    assert sum(report.bid is not None for report in talk.reports) == count


def test_a_broker_that_does_not_hold_answers_back_is_not_asked_in_a_tight_loop(talk: Conversation) -> None:
    running_on(talk, "a")
    before = len(talk.reports)
    instructions = talk.state.instructions
    assert instructions is not None
    for _ in range(300):
        talk.passes(0.1)
        if talk.state.open_reports:
            newest = talk.state.open_reports[-1]
            same = instructions.model_copy(update={"leases": (lease("a"),)})
            talk.event(Instructed(same, newest.sequence, newest.sent_at))
    assert len(talk.reports) - before <= 6


def test_sequences_rise_and_carry_the_supervisors_incarnation(talk: Conversation) -> None:
    running_on(talk, "a")
    for _ in range(5):
        talk.passes(4.0)
        talk.answers(lease("a"))
    sequences = [report.sequence for report in talk.reports]
    assert sequences == list(range(1, len(sequences) + 1))
    assert {report.incarnation for report in talk.reports} == {7}


# --- releases -------------------------------------------------------------------------------------


def test_a_release_without_an_answer_is_tried_again_with_the_same_key(talk: Conversation) -> None:
    running_on(talk, "a", "b")
    talk.passes(0.5)
    talk.answers(lease("a", "b", leave=("b",), within_seconds=20.0))
    talk.leaves("b")
    for _ in range(3):
        talk.event(CallFailed("release", "unreachable", "nobody there", key=talk.releases[-1].key))
        talk.passes(2.1)
    assert len({release.key for release in talk.releases}) == 1
    assert len(talk.releases) == 4
    talk.event(DevicesReleased(talk.releases[-1].key))
    talk.passes(5.0)
    assert len(talk.releases) == 4


def test_a_release_of_a_lease_that_is_gone_is_not_repeated(talk: Conversation) -> None:
    running_on(talk, "a", "b")
    talk.passes(0.5)
    talk.answers(lease("a", "b", leave=("b",), within_seconds=20.0))
    talk.leaves("b")
    talk.event(CallFailed("release", "lease_lost", "gone", key=talk.releases[-1].key))
    talk.passes(5.0)
    assert len(talk.releases) == 1


def test_two_releases_never_share_a_key(talk: Conversation) -> None:
    running_on(talk, "a", "b")
    talk.passes(0.5)
    talk.answers(lease("a", "b", leave=("b",), within_seconds=20.0))
    talk.leaves("b")
    talk.runs()
    talk.event(DevicesReleased(talk.releases[-1].key))
    talk.answers(lease("a"))
    talk.passes(0.5)
    talk.answers(lease("a", leave=("a",), within_seconds=20.0))
    assert len({release.key for release in talk.releases}) == 1
    talk.leaves("a")
    talk.passes(0.1)
    assert len({release.key for release in talk.releases}) == 2
