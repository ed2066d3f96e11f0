"""Shares, rates, times alone and shared, by hand."""

from __future__ import annotations

import pytest
from broker.auction.markets import bid, job

from selfsched.protocol import JobState, Placement, StandingBid
from selfsched_broker.core.books import Account, Job
from selfsched_broker.core.fairness import (
    Row,
    alone_seconds,
    current_share,
    current_shares,
    held_row,
    is_measured,
    measured_rows,
    rate,
    restart_cost,
    shared_seconds,
    weight_parts,
)


def live(name: str, account: str, **fields: object) -> Job:
    defaults: dict[str, object] = {"min_devices": 1, "max_devices": 1, "allowed_devices": ()}
    return Job(id=name, number=1, name=name, account=account, **(defaults | fields))  # type: ignore[arg-type]


def test_devices_are_divided_by_weight_and_within_an_account_by_priority() -> None:
    accounts = {"a": Account(name="a", weight=3.0), "b": Account(name="b")}
    jobs = [live("a1", "a", priority=2.0), live("a2", "a"), live("b1", "b")]
    assert current_shares(jobs, accounts, 8) == pytest.approx({"a1": 4.0, "a2": 2.0, "b1": 2.0})
    assert current_share("a2", jobs, accounts, 8) == pytest.approx(2.0)
    assert current_share("none", jobs, accounts, 8) == 0.0


def test_who_is_paused_is_owed_nothing_and_weighs_nothing() -> None:
    jobs = [live("a", "a"), live("b", "b", state=JobState.PAUSED), live("c", "c")]
    assert current_shares(jobs, {}, 4) == {"a": 2.0, "b": 0.0, "c": 2.0}
    assert current_shares([jobs[1]], {}, 4) == {"b": 0.0}


def test_ten_jobs_of_one_account_are_owed_what_one_would_be() -> None:
    jobs = [live(f"a{i}", "a") for i in range(10)] + [live("b", "b")]
    shares = current_shares(jobs, {}, 6)
    assert shares["b"] == pytest.approx(3.0)
    assert sum(shares.values()) == pytest.approx(6.0)


def test_parts_of_contenders_are_the_shares_of_jobs() -> None:
    contenders = [
        job("a1", bid({1: 1}), account="a", account_weight=3.0, priority=2.0),
        job("a2", bid({1: 1}), account="a", account_weight=3.0),
        job("b", bid({1: 1})),
    ]
    assert weight_parts(contenders) == pytest.approx({"a1": 0.5, "a2": 0.25, "b": 0.25})


ROWS = (Row(2, 1, None, 400.0, 0.0), Row(4, 1, None, 250.0, 0.0), Row(4, 2, None, 320.0, 0.0))


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (2, 0.5 / 400),
        (1, 0.5 / 800),
        (0.5, 0.5 / 1600),
        (3, 0.5 * (1 / 400 + 1 / 250) / 2),
        (2.5, 0.5 * (0.75 / 400 + 0.25 / 250)),
        (4, 0.5 / 250),
        (40, 0.5 / 250),
    ],
)
def test_rates_between_below_and_above_the_rows(devices: float, expected: float) -> None:
    """Half the run is left: 0.5 / 400 whole runs a second on two devices."""
    assert rate(ROWS, 0.5, devices) == pytest.approx(expected)


def test_times_alone_and_shared() -> None:
    contender = job("a", bid({1: 600, 2: 300}, restart=20), share=1.0, age_seconds=100, fraction_done=0.25)
    rows = measured_rows(contender)
    assert alone_seconds(contender, rows) == pytest.approx(600 / 0.75)
    options = {"term_seconds": 300.0}
    assert shared_seconds(contender, rows, rows[1], moves=False, **options) == 400
    assert shared_seconds(contender, rows, rows[1], moves=True, **options) == 420
    assert shared_seconds(contender, rows, None, moves=True, **options) == 100 + 300 + 20 + 600


def test_other_devices_of_the_same_count_cost_a_restart_though_the_row_says_none() -> None:
    contender = job("a", bid({1: 600, 2: 300}, restart=20, running_on=1))
    rows = measured_rows(contender)
    assert restart_cost(rows, rows[0]) == restart_cost(rows, rows[1]) == 20
    assert shared_seconds(contender, rows, rows[0], moves=False, term_seconds=60) == 600
    assert shared_seconds(contender, rows, rows[0], moves=True, term_seconds=60) == 620


def test_a_job_as_good_as_done_has_finite_times() -> None:
    contender = job("a", bid({1: 0.0}), fraction_done=1.0, share=0.0)
    rows = measured_rows(contender)
    assert 0 < alone_seconds(contender, rows) < float("inf")


def test_unmeasured_rows_are_left_out() -> None:
    assert measured_rows(job("a", None)) == ()
    assert [row.devices for row in measured_rows(job("a", bid({1: None, 2: 30})))] == [2]
    assert not is_measured(None)
    assert not is_measured(bid({1: None}))
    assert is_measured(bid({1: None, 2: 30}))


def test_an_unknown_end_is_bid_to_the_limit_it_states() -> None:
    rows = measured_rows(job("a", bid({2: 30, 4: 20}, unknown=True)))
    assert [row.remaining_seconds for row in rows] == [30, 20]


def test_the_row_of_what_a_job_holds() -> None:
    assert held_row(ROWS, 4, 2, "gpu") == ROWS[2]
    assert held_row(ROWS, 4, 1, "gpu") == ROWS[1]
    assert held_row(ROWS, 4, 9, "gpu") == ROWS[2]
    assert held_row(ROWS, 3, 1, "gpu") is None
    only = (ROWS[0]._replace(model="v100"),)
    assert held_row(only, 2, 1, "k80") is None


def test_a_bid_has_one_row_for_a_placement() -> None:
    row = bid({1: 5}).rows[0]
    with pytest.raises(ValueError, match="two rows"):
        StandingBid(rows=(row, row.model_copy(update={"placement": Placement(devices=1)})))
