"""Payments that are charged: a shortened term for those who wait, a debt where it is not collected."""

from __future__ import annotations

import pytest
from broker.driver import Driver, bid
from hypothesis import given
from hypothesis import strategies as st

from selfsched.protocol import JobState
from selfsched_broker.core.charging import charges
from selfsched_broker.core.fairness import part_of_term
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.core.market import FairnessOptions
from selfsched_broker.core.policies.themis import Themis
from selfsched_broker.core.views import auction_view

TERM = 300.0


def lab(payments: str = "charge") -> Driver:
    fairness = FairnessOptions(
        payments=payments,  # type: ignore[arg-type]
        repay_factor=1.0,
        repay_min_seconds=20.0,
        visit_steps=3,
        visit_seconds=20.0,
    )
    return Driver(policy=Themis(), options=LeaseOptions(term_seconds=TERM), fairness=fairness)


def contested(payments: str = "charge") -> tuple[Driver, str, str]:
    """One device, two jobs of two accounts, up to a moment after the tick at which one has won it."""
    driver = lab(payments)
    driver.node(devices=1)
    first, second = driver.register("ann", 1, 1), driver.register("bob", 1, 1)
    driver.report(first, bid=bid(4000.0), state=JobState.WAITING)
    driver.report(second, bid=bid(1500.0), state=JobState.WAITING)
    driver.live(TERM + 10.0 - driver.now)
    winner, loser = (first, second) if driver.held(first) else (second, first)
    return driver, winner, loser


@given(payment=st.floats(1e-6, 1.0), kept=st.floats(1e-6, 1e6), won=st.floats(1e-6, 1e6))
def test_a_winner_is_owed_a_part_of_its_term(payment: float, kept: float, won: float) -> None:
    part = part_of_term(payment, kept, won)
    assert 0.0 <= part <= 1.0
    assert part_of_term(1.0, kept, won) == 1.0
    if won < kept and 1e-9 < part < 1:  # c v = f v + (1 - f) v0
        assert part / won + (1 - part) / kept == pytest.approx(payment / won)


def test_auto_charges_by_the_clusters_size_and_the_others_as_they_say() -> None:
    assert charges(FairnessOptions(payments="charge"), 2)
    assert not charges(FairnessOptions(payments="record"), 10_000)
    assert not charges(FairnessOptions(), 8)


def test_who_has_had_what_its_win_was_worth_makes_room_for_who_waits() -> None:
    driver, winner, loser = contested()
    owner = driver.books.jobs[winner].account
    owed = driver.books.accounts[owner].debt_device_seconds
    assert 0 < owed <= TERM
    driver.live(TERM - 20.0)
    assert driver.held(winner) == []
    assert driver.held(loser) == ["cpu0"]
    assert any("had what its win was worth" in reason for reason in driver.books.jobs[winner].reasons)
    assert driver.books.accounts[owner].debt_device_seconds < owed


def test_recorded_payments_take_nothing_and_owe_nothing() -> None:
    driver, winner, _ = contested("record")
    driver.live(TERM - 20.0)
    assert driver.held(winner) == ["cpu0"]
    assert all(account.debt_device_seconds == 0 for account in driver.books.accounts.values())


def test_nobody_pays_while_nobody_waits_and_the_debt_stays() -> None:
    driver, winner, loser = contested()
    owner = driver.books.jobs[winner].account
    owed = driver.books.accounts[owner].debt_device_seconds
    driver.end(loser)
    driver.live(TERM - 20.0)
    assert driver.held(winner) == ["cpu0"]
    assert driver.books.accounts[owner].debt_device_seconds == owed > 0


def test_a_debt_is_collected_first_at_the_next_win() -> None:
    driver, winner, loser = contested()
    owner = driver.books.jobs[winner].account
    other = driver.books.jobs[loser].account
    driver.end(loser)
    driver.live(TERM)
    owed = driver.books.accounts[owner].debt_device_seconds
    rival = driver.register(other, 1, 1)
    driver.report(rival, bid=bid(1e6), state=JobState.WAITING)
    driver.live(2 * TERM)
    assert driver.books.accounts[owner].debt_device_seconds < owed


def test_who_has_paid_is_served_again_when_nobody_else_waits() -> None:
    driver, winner, loser = contested()
    driver.live(TERM - 20.0)
    assert driver.books.jobs[winner].barred_until is not None
    driver.end(loser)
    driver.live(30.0)
    assert driver.held(winner) == ["cpu0"]


def test_nobody_pays_before_its_last_move_is_repaid() -> None:
    driver, winner, _ = contested()
    pays_from = driver.books.jobs[winner].pays_from
    assert pays_from is not None
    for _ in range(int(TERM)):
        before = driver.books.job_pulses[winner].steady_seconds
        driver.live(1.0, step=1.0)
        if driver.books.jobs[winner].state is not JobState.RUNNING:
            break
    assert driver.books.jobs[winner].barred_until is not None
    assert before >= 20.0
    assert driver.now >= pays_from


def test_an_award_tells_its_part_of_the_term_to_its_owner_alone() -> None:
    driver, winner, _ = contested()
    owner = driver.books.jobs[winner].account
    number = next(
        auction.number
        for auction in sorted(driver.books.auctions.values(), key=lambda a: -a.number)
        if any(award.term_part is not None for award in auction.view.awards)
    )
    mine = auction_view(driver.books, driver.ctx, number, owner, admin=False)
    theirs = auction_view(driver.books, driver.ctx, number, "eve", admin=False)
    assert any(award.term_part is not None for award in mine.awards)
    assert all(award.term_part is None for award in theirs.awards)
