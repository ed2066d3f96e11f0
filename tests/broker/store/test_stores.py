"""One suite over every store: what is committed is there after a restart, and nothing else."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broker.driver import Driver, bid

from selfsched.protocol import Forecast, JobState, Outcome
from selfsched_broker.core.books import (
    Account,
    Books,
    Claim,
    Device,
    Erase,
    Holding,
    Job,
    Lease,
    LeasePulse,
    PastForecast,
)
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.store.contract import Store, StoreConflict, StoreFenced
from selfsched_broker.store.memory import MemoryDisk, MemoryStore
from selfsched_broker.store.sql import SqlStore

Opener = Callable[..., Any]


@pytest.fixture(params=["memory", "sqlite"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Makes further stores on the same disk, as further brokers would."""
    disk, made = MemoryDisk(), []
    home = tmp_path / "state"

    def make(**options: Any) -> Store:
        if request.param == "memory":
            return MemoryStore(disk, **options)
        store = SqlStore(f"sqlite:///{home / 'books.sqlite'}", exclusive=False, **options)
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


ACCOUNT = Account(name="ann")
DEVICE = Device(id="n/cpu0", node="n", index=0, model="cpu")


def _job(number: int, **fields: Any) -> Job:
    basics: dict[str, Any] = {
        "id": f"job-{number}", "number": number, "name": "x", "account": "ann", "min_devices": 1,
        "max_devices": 1, "allowed_devices": (),
    }  # fmt: skip
    return Job(**{**basics, **fields})


def _lease(number: int, **fields: Any) -> Lease:
    basics: dict[str, Any] = {
        "id": f"lease-{number}", "job": f"job-{number}", "fence": number, "granted_at": 0.0,
        "term_ends_at": 1.0,
    }  # fmt: skip
    return Lease(**{**basics, **fields})


def _grant(number: int) -> list[Any]:
    holding = Holding(lease=f"lease-{number}", device="n/cpu0", state="held", since=0.0)
    return [ACCOUNT, DEVICE, _job(number), _lease(number), holding]


def _as_durable(books: Books) -> dict[str, Any]:
    names = ("accounts", "tokens", "devices", "jobs", "leases", "holdings", "claims", "auctions", "audits")
    return {name: dict(getattr(books, name)) for name in names}


def test_a_history_reads_back_as_it_was(opener: Opener) -> None:
    driver = Driver(store=opener(), options=LeaseOptions(term_seconds=60.0))
    driver.node()
    first = driver.register("ann")
    driver.report(first, step=5, steady_steps=5, bid=bid(1000.0, 600.0))
    driver.live(40.0)
    second = driver.register("bob", 1, 1)
    driver.live(60.0)
    driver.end(second)
    again = opener().open()
    assert _as_durable(again) == _as_durable(driver.books)
    assert again.broker == replace(driver.books.broker, incarnation=2)
    assert not again.job_pulses
    again.validate()


def test_each_start_has_its_own_incarnation(opener: Opener) -> None:
    assert [opener().open().broker.incarnation for _ in range(3)] == [1, 2, 3]


def test_d6_a_broker_that_was_overtaken_can_write_no_more(opener: Opener) -> None:
    first, second = opener(), opener()
    first.open()
    first.commit([ACCOUNT])
    books = second.open()
    with pytest.raises(StoreFenced):
        first.commit([replace(ACCOUNT, weight=9.0)])
    second.commit([replace(ACCOUNT, weight=2.0)])
    assert books.accounts["ann"].weight == 1.0
    assert opener().open().accounts["ann"].weight == 2.0


def test_a_device_cannot_be_held_twice(opener: Opener) -> None:
    store = opener()
    store.open()
    store.commit(_grant(1))
    with pytest.raises(StoreConflict):
        store.commit(_grant(2))
    found = opener().open()
    assert set(found.jobs) == {"job-1"}, "of the refused commit nothing is there"


def test_a_holding_may_end_and_the_next_begin_in_one_commit_in_any_order(opener: Opener) -> None:
    store = opener()
    store.open()
    store.commit(_grant(1))
    old = Holding(lease="lease-1", device="n/cpu0", state="ended", since=1.0, left_at=1.0)
    store.commit([*_grant(2), _lease(1, ended_at=1.0, end_reason="released"), old])
    found = opener().open()
    holding = found.holding_of("n/cpu0")
    assert holding is not None
    assert holding.lease == "lease-2"


def test_a_device_cannot_be_claimed_twice(opener: Opener) -> None:
    store = opener()
    store.open()
    store.commit([ACCOUNT, DEVICE, _job(1)])
    claim = Claim(auction=1, job="job-1", device="n/cpu0", made_at=0.0, term_ends_at=1.0)
    store.commit([claim])
    with pytest.raises(StoreConflict):
        store.commit([replace(claim, auction=2)])
    store.commit([replace(claim, state="dead"), replace(claim, auction=2)])


@pytest.mark.parametrize("fence", [1, 2])
def test_s2_a_fence_never_changes_and_never_comes_back(opener: Opener, fence: int) -> None:
    store = opener()
    store.open()
    store.commit([ACCOUNT, DEVICE, _job(1), _job(2), _lease(2)])
    with pytest.raises(StoreConflict):
        store.commit([_lease(1, fence=fence)])
    with pytest.raises(StoreConflict):
        store.commit([_lease(2, fence=3)])
    store.commit([_lease(2, term_ends_at=9.0)])


def test_what_is_not_durable_is_not_written(opener: Opener) -> None:
    store = opener()
    store.open()
    store.commit([LeasePulse(lease="lease-1", renewed_at=1.0)])
    assert not opener().open().lease_pulses


def test_only_the_newest_of_what_has_ended_is_read_back(opener: Opener) -> None:
    store = opener()
    store.open()
    ended = [_job(n, state=JobState.ENDED, outcome=Outcome.FINISHED, ended_at=float(n)) for n in range(1, 9)]
    store.commit([ACCOUNT, DEVICE, *ended, _lease(1), _lease(2, ended_at=2.0, end_reason="released")])
    store.commit([Holding(lease="lease-1", device="n/cpu0", state="quarantined", since=1.0)])
    found = opener(bounds=LeaseOptions(kept_ended_jobs=3)).open()
    assert set(found.jobs) == {"job-1", "job-6", "job-7", "job-8"}, "job-1 still has a device in quarantine"
    assert set(found.leases) == {"lease-1"}


def test_d5_of_fifty_grants_of_one_device_at_once_exactly_one_is_written(opener: Opener) -> None:
    store = opener()
    store.open()
    numbers = range(1, 51)
    store.commit([ACCOUNT, DEVICE, *(_job(n) for n in numbers), *(_lease(n) for n in numbers)])
    outcomes: list[str] = []
    gate = threading.Barrier(50)

    def grant(number: int) -> None:
        gate.wait()
        try:
            store.commit(_grant(number)[4:])
            outcomes.append("granted")
        except StoreConflict:
            outcomes.append("refused")

    threads = [threading.Thread(target=grant, args=(n,)) for n in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["granted"] + ["refused"] * 49
    found = opener().open()
    assert sum(holding.live for holding in found.holdings.values()) == 1


def test_the_index_alone_forbids_a_second_live_holding(tmp_path: Path) -> None:
    path = tmp_path / "state" / "books.sqlite"
    store = SqlStore(f"sqlite:///{path}")
    store.open()
    store.commit(_grant(1))
    store.close()
    second = "insert into holdings values ('q', 'lease-1', 'n/cpu0', 'quarantined', '{}')"
    with sqlite3.connect(path) as connection, pytest.raises(sqlite3.IntegrityError, match=r"\.device"):
        connection.execute(second)
    connection.close()


def test_what_is_kept_within_bounds_is_erased_for_good(opener: Opener) -> None:
    soon = Forecast(p10_seconds=1.0, p50_seconds=2.0, p90_seconds=3.0, assumption="as_now")
    first, second = (
        PastForecast(
            job="job-1", number=number, name="x", account="ann", made_at=1.0, boot="b", boot_at=5.0,
            devices=("n/cpu0",), fraction_done=0.1, forecast=soon,
        )
        for number in (1, 2)
    )  # fmt: skip
    store = opener()
    books = store.open()
    store.commit([ACCOUNT, _job(1), first, second])
    scored = replace(second, actual_seconds=2.5, kept_devices=True)
    erased = Erase(kind=PastForecast, forgotten=first.key)
    store.commit([scored, erased])
    books.apply([first, scored, erased])
    assert books.forecasts == {second.key: scored}
    assert opener().open().forecasts == {second.key: scored}
