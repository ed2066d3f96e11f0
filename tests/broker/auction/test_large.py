"""Auctions by pieces: against integer programming node by node, on questions a lab never asks."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from broker.auction.markets import bid, check_contract, counts, job, market, rule
from broker.auction.test_auction import random_market as small_market
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bench._auction_markets import Size, options_of, random_market
from selfsched.protocol import BidRow, Placement
from selfsched_broker.core import auction
from selfsched_broker.core.allocation import Question, solve_milp
from selfsched_broker.core.auction import hold_auction, standings_of
from selfsched_broker.core.choices import survey, write_choices
from selfsched_broker.core.fairness import weight_parts
from selfsched_broker.core.market import Contender, FairnessOptions, Market
from selfsched_broker.core.options import partitions, write_options
from selfsched_broker.core.partition import divide_options, solve_options
from selfsched_broker.core.policies import policy_named
from selfsched_broker.core.rulings import find_faults
from selfsched_broker.core.solver import problem as problems
from selfsched_broker.core.solver.exact import Effort

THEMIS = policy_named("themis")
EVERYBODY = FairnessOptions(fairness_knob=0.0)


def standings(question: Market) -> list[auction.Standing]:
    owed = {j: part * question.total_devices for j, part in weight_parts(question.contenders).items()}
    return list(standings_of(question, owed, {}).values())


@pytest.mark.parametrize("seed", range(6))
def test_the_division_is_that_of_integer_programming_node_by_node(seed: int) -> None:
    """The oracle knows no pieces: a column for every choice of nodes, what is held included."""
    question = random_market(np.random.default_rng(seed), Size(20, 5, 2, 9), held=0.6)
    everybody, ground = standings(question), survey(question.seats, question)
    choices = write_choices(everybody, ground, question, entitles=False)
    best = solve_milp(Question(ground.seats, choices))[0]
    division = divide_options(write_options(everybody, ground, question, entitles=False))
    assert division.gain == pytest.approx(division.bound, abs=1e-6)
    found = sum(choice.welfare for choice in division.chosen.values())
    assert found == pytest.approx(sum(choice.welfare for choice in best.values()), abs=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_settled_payments_are_those_by_counts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    question = small_market(seed, spread=seed % 2 == 0)
    exact = {name: award.payment for name, award in rule(THEMIS, question).awards.items()}
    monkeypatch.setattr(auction, "_MOST_STATES", -1)
    ruling = rule(THEMIS, question)
    assert ruling.settle is not None
    settled = dict(ruling.settle())
    assert {name: award.payment is None for name, award in ruling.awards.items()} == {
        name: payment is None for name, payment in exact.items()
    }
    for name, payment in settled.items():
        assert payment == pytest.approx(exact[name], abs=1e-5)


def test_a_large_auction_keeps_the_contract_is_nearly_the_best_and_the_same_in_any_order() -> None:
    question = random_market(np.random.default_rng(4), Size(600, 75, 3, 160))
    ruling = rule(THEMIS, question)
    assert find_faults(question, ruling) == []
    assert ruling.gap is not None
    assert ruling.gap < 0.001
    assert ruling.settle is None, "at this size the prices tell"
    winners = [award for award in ruling.awards.values() if award.devices]
    assert all(award.payment is not None and 0 < award.payment <= 1 for award in winners)
    turned = replace(question, contenders=question.contenders[::-1], seats=question.seats[::-1])
    assert rule(THEMIS, turned).awards == ruling.awards


def test_a_large_market_that_has_not_changed_moves_nobody() -> None:
    """T18 at scale: moves made are paid, moves to be made are not."""
    question = random_market(np.random.default_rng(2), Size(256, 32, 2, 80))
    given_ = rule(THEMIS, question).awards
    holder = {device: name for name, award in given_.items() for device in award.devices}
    after = replace(
        question,
        number=question.number + 1,
        contenders=tuple(replace(c, at_stake=given_[c.job].devices) for c in question.contenders),
        seats=tuple(replace(seat, holder=holder.get(seat.device)) for seat in question.seats),
    )
    again = rule(THEMIS, after).awards
    moved = [name for name in given_ if given_[name].devices and again[name].devices != given_[name].devices]
    assert moved == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 3), st.integers(1, 12))
def test_any_market_by_pieces_keeps_the_contract(
    by_pieces: None, seed: int, nodes: int, models: int, jobs: int
) -> None:
    rng = np.random.default_rng(seed)
    question = random_market(rng, Size(4 * nodes, nodes, min(models, nodes), jobs), held=rng.uniform(0, 1))
    ruling = hold_auction(question)
    check_contract(question, ruling)
    assert find_faults(question, ruling) == []
    used = Counter(d for award in ruling.awards.values() for d in award.devices)
    assert max(used.values(), default=1) == 1
    assert ruling.gap == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_nobody_is_left_below_its_share_where_all_shares_can_be_had(seed: int, by_pieces: None) -> None:
    """Sharing incentive: whole shares of one model, tables of single nodes; a product alone would not."""
    rng = np.random.default_rng(seed)
    jobs = [
        job(f"j{i:02}", bid({n: float(rng.lognormal(7, 1.5) / n**0.9) for n in (1, 2, 4, 8)}), i)
        for i in range(16)
    ]
    question = market(jobs, {f"n{i}": 8 for i in range(4)}, options=EVERYBODY)
    ruling = hold_auction(question)
    for contender in question.contenders:
        assert contender.bid is not None
        seconds = {r.placement.devices: r.remaining_seconds or 0.0 for r in contender.bid.rows}
        got = len(ruling.awards[contender.job].devices)
        assert got
        assert seconds[got] <= min(seconds[1], seconds[2])


def test_on_several_models_nobody_is_promised_the_fastest() -> None:
    """A share of each: ten equal jobs cannot all have the one model of two that is quick."""
    table = bid({1: 1000}, model="fast")
    slow = bid({1: 1300}, model="slow").rows
    both = table.model_copy(update={"rows": (*table.rows, *slow)})
    jobs = [job(f"j{i}", both, i, share=1.0) for i in range(10)]
    models = {f"n{i}": "fast" if i < 5 else "slow" for i in range(10)}
    options = options_of(market(jobs, {f"n{i}": 1 for i in range(10)}, models=models))
    division = divide_options(options)
    assert sum(choice.devices for choice in division.chosen.values()) == 10
    unmet = [s.job for s, kept in zip(options.standings, options.urgency, strict=True) if kept <= 0]
    assert unmet == []


def test_the_most_often_passed_over_come_first_where_not_all_can_be_served() -> None:
    """Twice as many gangs have been passed over as there are nodes."""
    gangs = [job(f"g{i:02}", bid({8: 1000.0 + 10 * i}), i, passed_over=1 + i % 3) for i in range(24)]
    options = options_of(market(gangs, {f"n{i:02}": 8 for i in range(12)}))
    division = divide_options(options, effort=Effort(most_columns=0))
    served = {name for name, choice in division.chosen.items() if choice.devices}
    assert len(served) == 12
    assert {f"g{i:02}" for i in range(24) if i % 3 == 2} <= served
    assert (division.bound - division.gain) / 24 < 0.01


def test_a_share_that_cannot_be_kept_does_not_blur_the_gap() -> None:
    """Growth is tied to where devices are kept, which the prices do not see: half a share is only theirs."""
    question = random_market(np.random.default_rng(3), Size(128, 16, 2, 60))
    given_, rng = rule(THEMIS, question).awards, np.random.default_rng(3)
    gone = {c.job for c in question.contenders if rng.random() < 0.2}
    rest = [
        replace(c, kept=given_[c.job].devices, at_stake=()) for c in question.contenders if c.job not in gone
    ]
    kept = {device for c in rest for device in c.kept}
    seats = [replace(seat, holder=None) for seat in question.seats]
    freed = replace(
        question,
        trigger="device_free",
        contenders=tuple(rest),
        seats=tuple(seat for seat in seats if seat.device not in kept),
        kept_seats=tuple(seat for seat in seats if seat.device in kept),
    )
    options = options_of(freed)
    asked, solution = solve_options(options, Effort(most_columns=0))
    unmet = (options.urgency > 0) & ~options.enough[solution.chosen]
    assert unmet.sum() == 1
    assert options.urgency[unmet].min() > 1
    assert solution.gap < 0.05
    assert np.all(asked.gain <= options.problem.gain + options.urgency[options.problem.job] + 1e-9)
    assert find_faults(freed, rule(THEMIS, freed)) == []


@pytest.mark.parametrize("waited", [(0.0, 0.0, 5.0), (9.0, 3.0, 5.0)])
def test_equal_jobs_go_by_waiting(waited: tuple[float, ...], by_pieces: None) -> None:
    jobs = [
        job(name, bid({1: 500}), n, waiting_seconds=seconds)
        for n, (name, seconds) in enumerate(zip("abc", waited, strict=True))
    ]
    winners = [name for name, n in counts(rule(THEMIS, market(jobs, 1))).items() if n]
    assert winners == ["abc"[waited.index(max(waited))]]


def equal_jobs(count: int) -> list[Contender]:
    return [job(f"j{i:05}", bid({1: 900, 2: 500}), i, waiting_seconds=float(i)) for i in range(count)]


def test_thousands_of_jobs_on_one_device() -> None:
    ruling = hold_auction(market(equal_jobs(2000), 1, options=EVERYBODY))
    assert [name for name, award in ruling.awards.items() if award.devices] == ["j01999"]
    unmeasured = [replace(c, bid=None) for c in equal_jobs(2000)]
    ruling = hold_auction(market(unmeasured, 1))
    assert sum(award.visit for award in ruling.awards.values()) == 1


@pytest.mark.parametrize("devices", [0, 1, 300])
def test_no_job_one_job_and_more_devices_than_anybody_wants(devices: int, by_pieces: None) -> None:
    layout = {f"n{i}": 1 for i in range(devices)}
    assert hold_auction(market([], layout)).awards == {}
    ruling = hold_auction(market([job("a", bid({1: 100, 2: 60}), 1)], layout, total=max(devices, 1)))
    assert len(ruling.awards["a"].devices) == min(devices, 1)
    full = hold_auction(market(equal_jobs(3), layout, total=max(devices, 1)))
    assert sum(bool(award.devices) for award in full.awards.values()) == min(devices, 3)


def test_tables_nobody_can_serve(by_pieces: None) -> None:
    """A model the cluster does not have, a job wider than the cluster, a node too small, no time left."""
    alien = job("alien", bid({1: 100}, model="tpu"), 1)
    wide = job("wide", bid({64: 100}), 2)
    packed = job("packed", bid({4: 100}), 3)
    done = job("done", bid({1: 0.0}), 4)
    got = counts(hold_auction(market([alien, wide, packed, done], {"x": 3, "y": 3})))
    assert got == {"alien": 0, "wide": 0, "packed": 0, "done": 1}


def test_what_is_no_number_or_too_much_is_refused(by_pieces: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError):
        BidRow(placement=Placement(devices=1), remaining_seconds=math.nan)
    broken = BidRow.model_construct(
        placement=Placement(devices=1), remaining_seconds=math.nan, restart_seconds=0.0, sigma_log=0.0
    )
    table = bid({1: 100}).model_copy(update={"rows": (broken,)})
    with pytest.raises(ValueError, match="not a finite number"):
        hold_auction(market([job("a", table, 1)], 2))
    monkeypatch.setattr(problems, "MOST_OPTIONS", 10)
    with pytest.raises(ValueError, match="more than 10"):
        hold_auction(market(equal_jobs(20), 4))


def test_a_node_too_wide_for_prices_is_divided_by_node(by_pieces: None) -> None:
    jobs = [job(f"j{i}", bid({100: 1000.0 + i, 150: 950}), i) for i in range(3)]
    assert counts(hold_auction(market(jobs, {"x": 200, "y": 4}))) == {"j0": 100, "j1": 100, "j2": 0}


def test_a_node_with_a_sick_device_is_taken_last(way: str) -> None:
    question = market([job("a", bid({2: 100}), 1)], {"x": 2, "y": 4})
    doubtful = tuple(replace(seat, doubtful=seat.node == "x") for seat in question.seats)
    assert hold_auction(question).awards["a"].devices == ("x/0", "x/1")
    assert hold_auction(replace(question, seats=doubtful)).awards["a"].devices == ("y/0", "y/1")


def test_quotas_and_devices_wanted_by_two_at_scale(by_pieces: None) -> None:
    table = bid({1: 1000, 2: 400, 3: 200})
    mine = [job(f"a{i}", table, i, account="a", quota_left=3) for i in range(3)]
    picky = [job(f"p{i}", bid({1: 300}), 10 + i, wanted_devices=("n0/0",)) for i in range(2)]
    ruling = rule(THEMIS, market([*mine, *picky], {"n0": 4, "n1": 4, "n2": 4}))
    got = counts(ruling)
    assert sum(got[f"a{i}"] for i in range(3)) == 3
    assert got["p0"] + got["p1"] == 1
    assert [a.devices for a in ruling.awards.values() if a.job.startswith("p") and a.devices] == [("n0/0",)]


def test_ways_to_lie_on_nodes() -> None:
    assert partitions(8, 1, 8) == ((8,),)
    assert partitions(9, 1, 8) == ()
    assert partitions(5, 2, 8) == ((3, 2), (4, 1))
    assert partitions(16, 2, 8) == ((8, 8),)
    assert partitions(16, 3, 8)[0] == (6, 5, 5)
    assert len(partitions(24, 5, 8)) == 8
    assert all(sum(pieces) == 24 and len(pieces) == 5 for pieces in partitions(24, 5, 8))
