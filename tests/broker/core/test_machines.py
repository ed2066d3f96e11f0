"""The tables of states, the overlay, and the books' own check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from broker.driver import Driver
from hypothesis import given
from hypothesis import strategies as st

from selfsched.protocol import JobState
from selfsched_broker.core.books import Books, BooksBroken, Broker, Claim, Holding, Lease
from selfsched_broker.core.draft import Draft
from selfsched_broker.core.grants import claim, grant
from selfsched_broker.core.leases import (
    CLAIM_TABLE,
    HOLDING_TABLE,
    JOB_TABLE,
    ClaimEvent,
    HoldingEvent,
    IllegalEvent,
    JobEvent,
    step,
)
from selfsched_broker.core.overlay import Overlay


@pytest.mark.parametrize(
    ("table", "states", "events", "dead_ends"),
    [
        (HOLDING_TABLE, ("held", "yielding", "quarantined", "ended"), HoldingEvent, {"ended"}),
        (JOB_TABLE, tuple(JobState), JobEvent, {JobState.ENDED}),
        (CLAIM_TABLE, ("open", "granted", "dead"), ClaimEvent, {"granted", "dead"}),
    ],
)
def test_every_event_has_one_outcome_or_is_illegal(
    table: Any, states: tuple[Any, ...], events: Any, dead_ends: set[Any]
) -> None:
    for state in states:
        legal = {event for event in events if (state, event) in table}
        assert (not legal) == (state in dead_ends)
        for event in events:
            if event in legal:
                assert step(table, state, event) in states
            else:
                with pytest.raises(IllegalEvent, match=r"cannot happen to what is"):
                    step(table, state, event)


def test_a_quarantined_device_leaves_quarantine_by_proof_alone() -> None:
    ways = [event for (state, event) in HOLDING_TABLE if state == "quarantined"]
    assert ways == [HoldingEvent.PROVEN_EMPTY]


def test_an_illegal_grant_raises_and_changes_nothing() -> None:
    driver = Driver()
    driver.node(devices=1)
    first = driver.register("ann", 1, 1)
    second = driver.register("bob", 1, 1)
    before = repr(driver.books)
    draft = Draft(driver.books, driver.ctx)
    for device in ("n/cpu0", "elsewhere"):
        with pytest.raises(IllegalEvent):
            grant(draft, second, [device], term_ends_at=1.0, visit=False, reason="")
    claim(draft, 1, second, "n/cpu0", term_ends_at=1.0, visit=False)
    with pytest.raises(IllegalEvent):
        claim(draft, 1, first, "n/cpu0", term_ends_at=1.0, visit=False)
    assert repr(driver.books) == before


KEYS = st.sampled_from("abcde")
OPERATIONS = st.lists(st.tuples(st.sampled_from(["set", "del"]), KEYS, st.integers(0, 9)), max_size=30)


@given(below=st.dictionaries(KEYS, st.integers(0, 9)), operations=OPERATIONS)
def test_an_overlay_is_a_changed_copy_that_leaves_the_original_alone(
    below: dict[str, int], operations: list[tuple[str, str, int]]
) -> None:
    original, expected, overlay = dict(below), dict(below), Overlay(below)
    for what, key, value in operations:
        if what == "set":
            overlay[key] = expected[key] = value
        elif key in expected:
            del overlay[key], expected[key]
        else:
            with pytest.raises(KeyError):
                del overlay[key]
        assert dict(overlay) == expected
        assert len(overlay) == len(expected)
        assert [overlay.get(k) for k in "abcde"] == [expected.get(k) for k in "abcde"]
        assert [k in overlay for k in "abcde"] == [k in expected for k in "abcde"]
    assert below == original


def _held() -> Books:
    driver = Driver()
    driver.node(devices=2)
    driver.register("ann", 1, 1)
    driver.register("bob", 1, 1)
    return driver.books


def _second_lease_on_a_held_device(books: Books) -> list[Any]:
    return [Holding(lease="lease-2", device="n/cpu0", state="held", since=0.0)]


def _open_lease_without_devices(books: Books) -> list[Any]:
    lease = Lease(id="lease-9", job="job-1", fence=0, granted_at=0.0, term_ends_at=1.0)
    return [lease]


def _two_claims(books: Books) -> list[Any]:
    first = Claim(auction=1, job="job-1", device="n/cpu0", made_at=0.0, term_ends_at=1.0)
    return [first, replace(first, auction=2)]


def _claim_of_an_ended_job(books: Books) -> list[Any]:
    ended = replace(books.jobs["job-1"], state=JobState.ENDED, ended_at=1.0)
    return [ended, Claim(auction=1, job="job-1", device="n/cpu0", made_at=0.0, term_ends_at=1.0)]


def _fence_from_the_future(books: Books) -> list[Any]:
    return [Broker(incarnation=1, next_fence=1)]


def _ended_job_with_devices(books: Books) -> list[Any]:
    return [replace(books.jobs["job-1"], state=JobState.ENDED, ended_at=1.0)]


def _holding_of_an_ended_lease(books: Books) -> list[Any]:
    return [replace(books.leases["lease-1"], ended_at=1.0)]


def _live_lease_with_an_end_reason(books: Books) -> list[Any]:
    return [replace(books.leases["lease-1"], end_reason="expired")]


def _holding_of_no_device(books: Books) -> list[Any]:
    return [Holding(lease="lease-1", device="nowhere", state="held", since=0.0)]


@pytest.mark.parametrize(
    "damage",
    [
        _second_lease_on_a_held_device, _open_lease_without_devices, _two_claims, _claim_of_an_ended_job,
        _fence_from_the_future, _ended_job_with_devices, _holding_of_an_ended_lease,
        _live_lease_with_an_end_reason, _holding_of_no_device,
    ],
)  # fmt: skip
def test_the_books_own_check_finds_every_kind_of_damage(damage: Callable[[Books], list[Any]]) -> None:
    books = _held()
    books.validate()
    books.apply(damage(books))
    with pytest.raises(BooksBroken):
        books.validate()
