"""The pipeline: one decision at a time, committed before it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from broker.live_broker import StandInAgent, refs

from selfsched.protocol import (
    BidRow,
    Instructions,
    JobRegistered,
    JobReport,
    JobState,
    Placement,
    ProblemCode,
    RegisterJob,
    StandingBid,
)
from selfsched_broker.core import arbiter
from selfsched_broker.core.books import Books, Change
from selfsched_broker.core.leases import LeaseOptions, Refusal
from selfsched_broker.core.policies import policy_named
from selfsched_broker.identity import Caller
from selfsched_broker.management import Management
from selfsched_broker.service import Known, Question, Rules, Service, instructions_topic
from selfsched_broker.store.contract import StoreUnavailable
from selfsched_broker.store.memory import MemoryDisk, MemoryStore
from selfsched_broker.store.opening import store_at

OPTIONS = LeaseOptions(ttl_seconds=30, grace_seconds=15)


@dataclass
class FragileStore:
    """A memory store whose disk is full, or that was taken over, when a test says so."""

    disk: MemoryDisk = field(default_factory=MemoryDisk)
    full: bool = False
    commits: int = 0

    def __post_init__(self) -> None:
        self.inner = MemoryStore(self.disk)

    def open(self) -> Books:
        return self.inner.open()

    def commit(self, changes: Sequence[Change]) -> None:
        if self.full:
            raise StoreUnavailable("disk full")
        self.commits += 1
        self.inner.commit(changes)

    def close(self) -> None:
        self.inner.close()


class Bench:
    """A service, its clock in a test's hand."""

    def __init__(self, store: Any = None, devices: int = 2) -> None:
        self.now = 0.0
        self.store = store or FragileStore()
        rules = Rules(policy=policy_named("themis"), lease=OPTIONS)
        self.service = Service(self.store, rules, monotonic=lambda: self.now)
        self.agent = StandInAgent(devices=devices)
        self.look_at_node()

    def look_at_node(self) -> None:
        self.service.perform(arbiter.node_report, self.agent.name, self.agent.report())

    def register(self, key: str = "k", name: str = "train", account: str = "ada") -> JobRegistered | Known:
        message = RegisterJob(name=name)
        asked = Question(account=account, key=key, action="POST /v1/jobs", message=message)
        return self.service.perform(arbiter.register, account, message, question=asked, status=201)

    def new_job(self, key: str = "k") -> str:
        answer = self.register(key)
        assert isinstance(answer, JobRegistered)
        return answer.job

    def report(self, job: str, sequence: int, **said: Any) -> Instructions:
        message = JobReport(incarnation=1, sequence=sequence, **{"state": JobState.WAITING, **said})
        return self.service.report(job, message)

    def leased(self) -> tuple[str, Instructions]:
        job = self.new_job()
        self.report(job, 1)
        self.settle()
        told = self.report(job, 2)
        assert told.leases
        return job, told

    def settle(self) -> None:
        for _ in range(20):
            if self.service.advance() > 0.02:
                return
        raise AssertionError("something is due for ever")


def code_of(call: Callable[[], object]) -> ProblemCode:
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value.code


def test_the_same_question_is_answered_once_and_the_same_way() -> None:
    bench = Bench()
    first = bench.register("k")
    again = bench.register("k")
    assert isinstance(first, JobRegistered)
    assert again == Known(status=201, body=first.to_json())
    assert len(bench.service.books.jobs) == 1


def test_a_key_used_for_another_question_is_refused_and_changes_nothing() -> None:
    bench = Bench()
    bench.register("k", name="one")
    assert code_of(lambda: bench.register("k", name="two")) is ProblemCode.IDEMPOTENCY_MISMATCH
    assert [job.name for job in bench.service.books.jobs.values()] == ["one"]


def test_keys_of_two_accounts_are_different_keys() -> None:
    bench = Bench()
    bench.register("k", account="ada")
    assert isinstance(bench.register("k", account="bob"), JobRegistered)


def test_twenty_duplicates_at_once_make_one_job(tmp_path: Path) -> None:
    bench = Bench(store_at(f"sqlite:///{tmp_path}/state/books.sqlite"))
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: bench.register("k"), range(20)))
    bodies = {answer.body if isinstance(answer, Known) else answer.to_json() for answer in answers}
    assert len(bodies) == 1
    assert len(bench.service.books.jobs) == 1
    bench.service.close()


def test_fifty_jobs_at_once_never_share_a_device(tmp_path: Path) -> None:
    bench = Bench(store_at(f"sqlite:///{tmp_path}/state/books.sqlite"))

    def come_and_ask(number: int) -> None:
        job = bench.new_job(f"k{number}")
        bench.report(job, 1)
        bench.service.advance()

    with ThreadPoolExecutor(25) as pool:
        list(pool.map(come_and_ask, range(50)))
    bench.settle()
    bench.service.books.validate()
    holders = [bench.service.books.devices_of(job) for job in bench.service.books.jobs]
    assert sorted(device for held in holders for device in held) == ["here/cpu0", "here/cpu1"]
    bench.service.close()


def test_an_answer_is_known_after_a_restart() -> None:
    bench = Bench()
    first = bench.register("k")
    assert isinstance(first, JobRegistered)
    after = Bench(FragileStore(bench.store.disk))
    assert after.register("k") == Known(status=201, body=first.to_json())


def test_heartbeats_do_not_touch_the_disk() -> None:
    bench = Bench()
    job, told = bench.leased()
    before = bench.store.commits
    for sequence in range(3, 8):
        bench.now += 1
        bench.report(job, sequence, leases=refs(told))
    assert bench.store.commits == before


def test_a_lease_is_shown_idle_for_as_long_as_its_job_idles_by_now() -> None:
    bench = Bench()
    job, told = bench.leased()
    bench.now += 1
    bench.report(job, 3, state=JobState.RUNNING, step=1, leases=refs(told))
    bench.now += 10
    bench.report(job, 4, state=JobState.RUNNING, step=1, leases=refs(told), idle_seconds=10.0)
    bench.now += 5
    [lease] = Management(bench.service).leases(Caller(account="root", admin=True))
    assert (lease.silent_seconds, lease.idle_seconds) == (5.0, 15.0)


def test_a_full_disk_expires_no_lease_and_heals_by_itself() -> None:
    bench = Bench()
    job, told = bench.leased()
    bench.store.full = True
    for sequence in range(3, 20):
        bench.now += 10
        bench.report(job, sequence, leases=refs(told))
        bench.service.advance()
    assert bench.service.trouble
    assert code_of(lambda: bench.register("other")) is ProblemCode.UNAVAILABLE
    bench.store.full = False
    assert bench.service.probe() == ""
    bench.settle()
    assert bench.service.books.devices_of(job) == ["here/cpu0"]
    assert isinstance(bench.register("other"), JobRegistered)


def test_a_bid_that_cannot_be_stored_is_refused_while_its_lease_is_renewed() -> None:
    bench = Bench()
    job, told = bench.leased()
    row = BidRow(placement=Placement(devices=1), remaining_seconds=10.0)
    bench.store.full = True
    bench.now += 29
    refused = code_of(lambda: bench.report(job, 3, leases=refs(told), bid=StandingBid(rows=(row,))))
    assert refused is ProblemCode.UNAVAILABLE
    bench.store.full = False
    bench.now += 29
    bench.settle()
    again = bench.report(job, 3, leases=refs(told), bid=StandingBid(rows=(row,)))
    assert [lease.lease for lease in again.leases] == [lease.lease for lease in told.leases]
    assert bench.service.books.jobs[job].bid is not None


def test_who_was_silent_too_long_has_lost_its_lease_and_does_not_get_it_back() -> None:
    bench = Bench()
    job, told = bench.leased()
    bench.now += OPTIONS.ttl_seconds + OPTIONS.grace_seconds + 1
    bench.settle()
    assert code_of(lambda: bench.report(job, 3, leases=refs(told))) is ProblemCode.LEASE_LOST
    assert bench.service.books.devices_of(job) == []


def test_a_gap_shorter_than_the_ttl_costs_nothing() -> None:
    bench = Bench()
    job, told = bench.leased()
    bench.now += OPTIONS.ttl_seconds - 1
    bench.settle()
    assert bench.report(job, 3, leases=refs(told)).leases[0].fence == told.leases[0].fence


def test_a_broker_whose_store_was_taken_over_stops_deciding() -> None:
    bench = Bench()
    MemoryStore(bench.store.disk).open()
    assert code_of(bench.register) is ProblemCode.UNAVAILABLE
    assert "taken over" in bench.service.fenced
    assert code_of(bench.look_at_node) is ProblemCode.UNAVAILABLE
    assert not bench.service.books.jobs


def test_listeners_hear_of_a_job_whose_instructions_changed() -> None:
    bench = Bench()
    heard: list[frozenset[str]] = []
    bench.service.listen(heard.append)
    job = bench.new_job()
    bench.report(job, 1)
    heard.clear()
    bench.settle()
    assert any(instructions_topic(job) in topics for topics in heard)


def test_time_is_driven_without_being_asked() -> None:
    bench = Bench()
    leased = threading.Event()
    bench.service.listen(lambda topics: leased.set() if bench.service.books.leases else None)
    bench.service.start()
    bench.report(bench.new_job(), 1)
    assert leased.wait(10)
    bench.service.close()


def test_a_mistake_in_what_is_due_does_not_stop_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    real, failures = arbiter.advance, iter([True])

    def fails_once(*arguments: Any) -> Any:
        if next(failures, False):
            raise ZeroDivisionError
        return real(*arguments)

    monkeypatch.setattr(arbiter, "advance", fails_once)
    leased = threading.Event()
    bench.service.listen(lambda topics: leased.set() if bench.service.books.leases else None)
    bench.report(bench.new_job(), 1)
    bench.service.start()
    assert leased.wait(10)
    bench.service.close()


def test_a_policy_that_fails_is_in_the_log_once_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()

    def fails(*_: object) -> Any:
        raise ZeroDivisionError("of a policy")

    monkeypatch.setattr(type(policy_named("themis")), "rule", fails)
    job = bench.new_job()
    bench.report(job, 1)
    bench.settle()
    bench.now += OPTIONS.term_seconds
    bench.look_at_node()
    bench.report(job, 2)
    bench.settle()
    assert bench.service.books.agenda.failed_auctions == 2
    [record] = [record for record in caplog.records if "the policy failed" in record.message]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)
    assert record.exc_info[2] is not None
