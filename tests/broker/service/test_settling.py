"""Exact payments come after the awards, beside the broker's work."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from broker.live_broker import StandInAgent

from selfsched.protocol import JobReport, JobState, ProblemCode, RegisterJob
from selfsched_broker.core import arbiter
from selfsched_broker.core.draft import Settlement
from selfsched_broker.core.leases import Refusal
from selfsched_broker.core.market import Market, Ruling
from selfsched_broker.core.policies.themis import Themis
from selfsched_broker.service import Rules, Service
from selfsched_broker.settling import Settler
from selfsched_broker.store.memory import MemoryDisk, MemoryStore

WAIT_SECONDS = 20.0


class LateThemis(Themis):
    """Tells payments late, as for some dozen devices."""

    def rule(self, market: Market, rng: np.random.Generator) -> Ruling:
        ruling = super().rule(market, rng)
        jobs = [award.job for award in ruling.awards.values() if award.devices]
        return replace(ruling, settle=lambda: iter([(job, 0.25) for job in jobs]))


def test_a_service_records_payments_when_they_are_there() -> None:
    disk = MemoryDisk()
    service = Service(MemoryStore(disk), Rules(policy=LateThemis()), monotonic=lambda: 0.0)
    agent = StandInAgent(devices=1)
    service.perform(arbiter.node_report, agent.name, agent.report())
    known = threading.Event()
    service.listen(lambda _: known.set() if paid(service) == [0.25] else None)
    job = service.perform(arbiter.register, "ada", RegisterJob(name="train")).job
    service.report(job, JobReport(incarnation=1, sequence=1, state=JobState.WAITING))
    service.advance()
    assert known.wait(WAIT_SECONDS)
    service.close()
    again = Service(MemoryStore(disk), Rules(policy=LateThemis()), monotonic=lambda: 0.0)
    assert paid(again) == [0.25], "it is kept"
    again.close()


def paid(service: Service) -> list[float | None]:
    return [award.payment for auction in service.books.auctions.values() for award in auction.view.awards]


class Ledger:
    """Keeps what is recorded; refuses when told to."""

    def __init__(self) -> None:
        self.recorded: dict[int, Mapping[str, float]] = {}
        self.changed = threading.Semaphore(0)
        self.refuses = False

    def __call__(self, auction: int, payments: Mapping[str, float]) -> None:
        self.recorded[auction] = payments
        self.changed.release()
        if self.refuses:
            raise Refusal(ProblemCode.UNAVAILABLE, "the broker cannot write its store")

    def wait(self) -> None:
        assert self.changed.acquire(timeout=WAIT_SECONDS)


def test_a_failure_or_a_refusal_costs_one_auction_its_exact_payments_and_no_more() -> None:
    ledger = Ledger()
    settler = Settler(ledger)

    def broken() -> Iterator[tuple[str, float]]:
        raise ZeroDivisionError

    settler.take(Settlement(1, broken))
    ledger.refuses = True
    settler.take(Settlement(2, lambda: iter([("a", 0.5)])))
    ledger.wait()
    ledger.refuses = False
    settler.take(Settlement(3, lambda: iter([("a", 0.75)])))
    ledger.wait()
    settler.close()
    assert ledger.recorded == {2: {"a": 0.5}, 3: {"a": 0.75}}


def test_closing_waits_for_one_winner_at_most_and_takes_nothing_more() -> None:
    ledger = Ledger()
    settler = Settler(ledger)
    begun, may_go_on = threading.Event(), threading.Event()

    def endless() -> Iterator[tuple[str, float]]:
        begun.set()
        assert may_go_on.wait(WAIT_SECONDS)
        while True:
            yield "a", 1.0

    settler.take(Settlement(1, endless))
    assert begun.wait(WAIT_SECONDS)
    closing = threading.Thread(target=settler.close)
    closing.start()
    may_go_on.set()
    closing.join(WAIT_SECONDS)
    assert not closing.is_alive()
    settler.take(Settlement(2, endless))
    assert ledger.recorded == {}
