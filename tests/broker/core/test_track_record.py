"""An account's record: what its jobs claimed, held against what they took."""

from __future__ import annotations

import math

import pytest
from broker.driver import Driver, bid
from hypothesis import given
from hypothesis import strategies as st

from selfsched.protocol import BidRow, Placement, StandingBid
from selfsched_broker.core.books import Account
from selfsched_broker.core.draft import Draft
from selfsched_broker.core.fairness import measured_rows
from selfsched_broker.core.markets import Stakes, build_market
from selfsched_broker.core.metering import Meter
from selfsched_broker.core.track_record import (
    FORGOTTEN_SECONDS,
    LEAST_FACTOR,
    MOST_FACTOR,
    Tally,
    TrackRecord,
)
from selfsched_broker.core.views import account_view
from selfsched_broker.store.tables import from_body, to_row

ONE, TWO = Placement(devices=1, model="cpu"), Placement(devices=2, model="cpu")


def lived(claimed: float, *, steep: float = 1.0, seconds: float = 1000.0) -> Tally:
    """A job of 1000 s on one device or 600 s on two that claims so many times as much, seen half on each.

    Args:
        claimed: times claimed over true ones.
        steep: and those on two devices besides.
        seconds: seen.
    """
    tally = Tally().heard(bid(1000.0 * claimed, 600.0 * claimed * steep), 0.0)
    tally = tally.ran(ONE, seconds / 2, seconds / 2 / 1000.0)
    return tally.ran(TWO, seconds / 2, seconds / 2 / 600.0)


def ratios(tally: Tally) -> list[float]:
    return [x for _, x, _ in tally.observations()]


def record_of(*claims: float) -> TrackRecord:
    record = TrackRecord()
    for at, claimed in enumerate(claims):
        record = record.with_job(lived(claimed), 1000.0 * at)
    return record


@pytest.mark.parametrize("claimed", [0.1, 0.5, 1.0, 3.0])
def test_a_jobs_claims_are_held_against_its_time_wherever_it_ran(claimed: float) -> None:
    assert ratios(lived(claimed)) == pytest.approx([-math.log(claimed)] * 2)


def test_the_first_claim_counts_not_a_later_better_one() -> None:
    tally = lived(0.5, seconds=400.0).heard(bid(1000.0, 600.0), 0.3)
    assert ratios(tally.ran(ONE, 500.0, 0.5)) == pytest.approx([math.log(2.0)] * 2)


def test_progress_told_too_early_is_found_out_when_the_job_has_finished() -> None:
    claimed = Tally().heard(bid(300.0), 0.0)
    fast = claimed.ran(ONE, 100.0, 0.9)  # truly a tenth: it takes 1000 s
    assert ratios(fast.ran(ONE, 900.0, 0.1)) == pytest.approx([math.log(1000.0 / 300.0)])


def test_a_claim_made_half_way_is_one_for_the_other_half() -> None:
    tally = Tally().heard(bid(500.0), 0.5)
    assert ratios(tally.ran(ONE, 500.0, 0.5)) == pytest.approx([0.0])


def test_without_evidence_nothing_counts() -> None:
    unknown = StandingBid(rows=(BidRow(placement=Placement(devices=1), remaining_seconds=9.0),),
                          end_is_unknown=True)  # fmt: skip
    for tally in (Tally(), Tally().heard(unknown, 0.0).ran(ONE, 900.0, 0.5), lived(0.1, seconds=5.0)):
        assert tally.observations() == []
        assert TrackRecord().with_job(tally, 10.0) == TrackRecord()
    assert TrackRecord().factor(4.0) == 1.0


def test_an_account_that_understates_is_corrected_the_more_the_oftener_it_did() -> None:
    factors = [record_of(*[1 / 3] * times).factor() for times in range(6)]
    assert factors == sorted(factors)
    assert factors[0] == 1.0 < factors[1] < 3.0
    assert factors[5] == pytest.approx(3.0, rel=0.2)


def test_who_scales_worse_than_it_says_is_corrected_where_it_is_wrong() -> None:
    record = TrackRecord()
    for at in range(8):
        record = record.with_job(lived(1.0, steep=0.5), 1000.0 * at)
    assert record.factor() == pytest.approx(1.0, abs=0.15)
    assert record.factor(2.0) == pytest.approx(2.0, rel=0.25)
    assert record.factors(bid(100.0, 50.0).rows) == {1: record.factor(), 2: record.factor(2.0)}


def test_honest_error_has_no_mean_and_widens_what_is_believed() -> None:
    errs, knows = record_of(*[0.7, 1.45] * 6), record_of(*[1.0] * 12)
    assert errs.factor() == pytest.approx(1.0, abs=0.1)
    assert errs.spread_log > 0.3 > knows.spread_log


def test_old_lies_are_forgotten_slowly() -> None:
    liar = record_of(*[1 / 3] * 6)
    soon = liar.with_job(lived(1.0), 10_000.0)
    later = liar.with_job(lived(1.0), 3 * FORGOTTEN_SECONDS)
    assert 1.0 < later.factor() < soon.factor() < liar.factor()
    for at in range(60):
        liar = liar.with_job(lived(1.0), 10_000.0 + at)
    assert liar.factor() < 1.2


@given(
    claims=st.lists(st.floats(1e-4, 1e4), max_size=30), seconds=st.floats(1.0, 1e7), now=st.floats(0.0, 1e9)
)
def test_the_factor_is_bounded_whatever_was_claimed(claims: list[float], seconds: float, now: float) -> None:
    record = TrackRecord()
    for claimed in claims:
        record = record.with_job(lived(claimed, seconds=seconds), now)
    for wider in (1.0, 2.0, 1024.0):
        assert 0.999 * LEAST_FACTOR <= record.factor(wider) <= 1.001 * MOST_FACTOR
    assert math.isfinite(record.spread_log)
    assert 0 <= record.weight <= 40


# --- in the broker ------------------------------------------------------------------------------


def run_job(driver: Driver, account: str, *, claims: float, truly: float) -> str:
    """A job on one device from its registration to its end."""
    job = driver.register(account, 1, 1)
    driver.report(job, bid=bid(claims))
    for at in range(1, 11):
        driver.now += truly / 10
        done = min(1.0, (at - 1) / 9)
        driver.report(
            job, step=at * 100, steady_steps=at * 100, fraction_done=done, devices_in_use=("n/cpu0",),
            bid=bid(claims * (1 - done)),
        )  # fmt: skip
    driver.end(job)
    driver.node(devices=1)
    return job


def test_a_record_corrects_the_next_job_until_its_own_pace_is_seen() -> None:
    driver = Driver()
    driver.node(devices=1)
    for _ in range(3):
        run_job(driver, "ann", claims=200.0, truly=600.0)
    record = driver.books.accounts["ann"].claims
    assert record.jobs == 3
    assert 2.0 < record.factor() < 3.2
    job = driver.register("ann", 1, 1)
    driver.report(job, bid=bid(300.0))
    draft = Draft(driver.books, driver.ctx)
    market = build_market(draft, "tick", Stakes({}), [driver.books.jobs[job]])
    (row,) = measured_rows(market.contenders[0])
    assert row.remaining_seconds == pytest.approx(300.0 * record.factor())
    assert row.sigma_log == pytest.approx(record.spread_log)


def test_its_own_pace_overrules_a_record_that_does_it_wrong() -> None:
    meter, wrong = Meter(), 3.0
    for now in range(0, 700, 10):
        done = now / 1000.0
        meter = meter.moved_on(("a",), running=True, now=now, fraction=done, step=now * 10)
        believed = wrong * (1000.0 - now)
        meter = meter.compared(believed, 0.1, now=now, fraction=done, step=now * 10, doubt_log=0.3)
    assert meter.factor == pytest.approx(1 / wrong, rel=0.05)


def test_no_claim_counts_where_the_pace_is_known() -> None:
    driver = Driver()
    driver.node(devices=1)
    job = driver.register("ann", 1, 1)
    driver.report(job, bid=bid(1000.0))
    for at in range(1, 50):
        driver.now += 10.0
        done = (at - 1) / 100.0
        driver.report(
            job, step=at * 100, steady_steps=at * 100, fraction_done=done, devices_in_use=("n/cpu0",),
            bid=bid(1000.0 * (1 - done)),
        )  # fmt: skip
    driver.report(job, step=4900, fraction_done=0.48, devices_in_use=(), leases=(), bid=bid(9.0))
    draft = Draft(driver.books, driver.ctx)
    market = build_market(draft, "tick", Stakes({}), [driver.books.jobs[job]])
    (row,) = measured_rows(market.contenders[0])
    assert row.remaining_seconds == pytest.approx(520.0, rel=0.05)


def test_a_claim_that_shrinks_while_the_job_waits_is_no_news() -> None:
    here = Placement(devices=1, model="cpu")
    seen = Meter(factor=1.0, sigma_log=0.05, told=(here, 1000.0))
    restated = seen.restated(bid(50.0).rows, 0.5)
    assert restated.factor == pytest.approx(10.0)  # 100 s a run now, 1000 s then
    assert restated.restated(bid(500.0).rows, 0.5).factor == pytest.approx(1.0)


def test_an_owner_sees_its_record_and_nobody_without_evidence_has_one() -> None:
    driver = Driver()
    driver.node(devices=1)
    run_job(driver, "ann", claims=200.0, truly=600.0)
    driver.register("bob", 1, 1)
    seen = account_view(driver.books, "ann").claims
    assert seen is not None
    assert (seen.jobs, seen.took_over_claimed > 1.3) == (1, True)
    assert account_view(driver.books, "bob").claims is None


def test_books_of_an_older_release_begin_without_a_record() -> None:
    row = to_row(Account(name="ann", claims=record_of(0.5, 0.5)))
    assert from_body(Account, str(row["body"])) == Account(name="ann", claims=record_of(0.5, 0.5))
    assert from_body(Account, '{"name": "ann"}') == Account(name="ann")
