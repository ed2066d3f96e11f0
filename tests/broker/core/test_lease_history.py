"""Which placements the leases in the books prove."""

from __future__ import annotations

from broker.driver import Driver, bid
from broker.spoken_steps import devices_of, entry, evidence_of, past_lease, said

from selfsched.protocol import Placement
from selfsched_broker.core.books import Account, Books, Broker, Job
from selfsched_broker.core.evidence import unproven, without_places
from selfsched_broker.core.lease_history import (
    Place,
    device_seconds_by_model,
    jobs_named,
    place_of,
    places_held,
)


def books_with(*jobs: Job) -> Books:
    books = Books(broker=Broker(incarnation=1))
    books.apply([*(Account(name=name) for name in {job.account for job in jobs}), *jobs])
    return books


def job(number: int, account: str = "ann", name: str = "train") -> Job:
    return Job(
        id=f"job-{number}", number=number, name=name, account=account,
        min_devices=1, max_devices=8, allowed_devices=(),
    )  # fmt: skip


def test_a_job_that_waits_was_nowhere_and_one_that_grows_was_on_each_count() -> None:
    house = Driver()
    house.node(devices=2)
    first, second = house.register(most=2), house.register(account="bob")
    house.live(5.0)
    assert places_held(house.books, [first]) == {Place("cpu", 1, 1)}
    house.end(second)
    house.report(first, bid=bid(100.0, 50.0, current=1), steady_steps=100)
    house.live(400.0)
    assert len(house.held(first)) == 2
    assert places_held(house.books, [first]) == {Place("cpu", 1, 1), Place("cpu", 2, 1)}
    third = house.register(account="eve", fewest=2)
    assert places_held(house.books, [third]) == frozenset()


def test_leases_held_together_are_one_placement_and_nodes_count() -> None:
    books = books_with(job(1))
    devices = devices_of("Tesla-V100", 4, nodes=2)
    books.apply(past_lease("job-1", 1, devices[:2], 0.0, 10.0))
    assert places_held(books, ["job-1"]) == {Place("Tesla-V100", 2, 2)}
    books.apply(past_lease("job-1", 2, devices[2:], 3.0, 6.0))
    assert places_held(books, ["job-1"]) == {Place("Tesla-V100", 2, 2), Place("Tesla-V100", 4, 2)}
    assert places_held(books, ["job-2"]) == frozenset()


def test_the_time_had_on_each_model_counts_devices_and_goes_on_where_one_is_held() -> None:
    books = books_with(job(1))
    old, new = devices_of("Tesla-V100", 2), devices_of("A100", 1)
    books.apply(past_lease("job-1", 1, old, 0.0, 10.0))
    books.apply(past_lease("job-1", 2, new, 10.0, 14.0))
    assert device_seconds_by_model(books, "job-1", now=99.0) == {"Tesla-V100": 20.0, "A100": 4.0}
    assert device_seconds_by_model(books, "job-2", now=99.0) == {}
    house = Driver()
    house.node(devices=1)
    running = house.register()
    house.live(5.0)
    held_since = next(iter(house.books.all_leases_of(running))).granted_at
    found = device_seconds_by_model(house.books, running, now=held_since + 7.0)
    assert found == {"cpu": 7.0}


def test_what_follows_at_the_same_instant_is_no_placement_of_both() -> None:
    books = books_with(job(1))
    devices = devices_of("Tesla-V100", 4)
    books.apply(past_lease("job-1", 1, devices[:2], 0.0, 5.0))
    books.apply(past_lease("job-1", 2, devices[2:], 5.0, 9.0))
    assert places_held(books, ["job-1"]) == {Place("Tesla-V100", 2, 1)}


def test_on_two_models_at_once_it_was_on_neither() -> None:
    books = books_with(job(1))
    books.apply(past_lease("job-1", 1, devices_of("Tesla-V100", 2), 0.0, 5.0))
    books.apply(past_lease("job-1", 2, devices_of("Tesla-T4", 2), 0.0, 5.0))
    assert places_held(books, ["job-1"]) == frozenset()


def test_jobs_are_found_by_account_and_name() -> None:
    books = books_with(job(1), job(2), job(3, name="other"), job(4, "bob"))
    assert jobs_named(books, {("ann", "train"), ("eve", "train")}) == {
        ("ann", "train"): ["job-1", "job-2"], ("eve", "train"): [],
    }  # fmt: skip


def test_only_what_is_not_known_must_be_proven_and_what_is_not_is_left_out() -> None:
    known = evidence_of("ann", "train", *said(2e9, counts=(1, 2)))
    spoken = [*said(2e9), entry(2, 0.1, placement=Placement(devices=2, nodes=2))]
    found = unproven(known, spoken)
    assert found == {Place("Tesla-V100", 4, 1), Place("Tesla-V100", 2, 2)}
    assert [place_of(e).devices for e in without_places(spoken, found)] == [1, 2]
    assert len(unproven(None, spoken)) == 4
