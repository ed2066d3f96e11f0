"""Payments computed by hand: the worked example of docs/auction.md, and the paper's limit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from broker.auction.markets import bid, counts, job, market, rule

from selfsched_broker.core.auction import standings_of
from selfsched_broker.core.choices import survey
from selfsched_broker.core.options import write_options
from selfsched_broker.core.partition import divide_options
from selfsched_broker.core.policies import policy_named
from selfsched_broker.core.solver.dual import evaluate

THEMIS = policy_named("themis")


def test_the_worked_example_of_the_manual() -> None:
    """Three jobs, four devices, terms of 300 s, nothing runs yet (docs/auction.md)."""
    jobs = [
        job("ann", bid({1: 400, 2: 200}), 1),
        job("bob", bid({1: 400, 2: 250}), 2),
        job("cleo", bid({2: 300}), 3),
    ]
    ruling = rule(THEMIS, market(jobs, 4))
    assert counts(ruling) == {"ann": 2, "bob": 2, "cleo": 0}
    # Without ann: bob 250 s, cleo 300 s; with her: 250 s, 300 + 300 s.
    assert ruling.awards["ann"].payment == pytest.approx((250 * 300) / (250 * 600))
    # Without bob: ann 200 s, cleo 300 s; with him: 200 s, 300 + 300 s.
    assert ruling.awards["bob"].payment == pytest.approx((200 * 300) / (200 * 600))
    assert ruling.awards["cleo"].payment is None


def test_the_worked_example_by_pieces_and_prices() -> None:
    """Two devices cost between what cleo gains by them and twice what bob gains by his second."""
    jobs = [
        job("ann", bid({1: 400, 2: 200}), 1),
        job("bob", bid({1: 400, 2: 250}), 2),
        job("cleo", bid({2: 300}), 3),
    ]
    question = market(jobs, 4)
    standings = list(standings_of(question, dict.fromkeys(("ann", "bob", "cleo"), 4 / 3), {}).values())
    options = write_options(standings, survey(question.seats, question), question, entitles=False)
    division = divide_options(options)
    assert {name: choice.devices for name, choice in division.chosen.items()} == {
        "ann": 2,
        "bob": 2,
        "cleo": 0,
    }
    idle = -math.log(700) - math.log(700) - math.log(600)
    gained = math.log(700 / 200) + math.log(700 / 250)
    assert division.gain - idle == pytest.approx(gained, abs=1e-6) == pytest.approx(2.282, abs=1e-3)
    for two in (math.log(600 / 300), 0.8, 2 * math.log(400 / 250)):
        one = two / 2
        bound = evaluate(options.problem, np.array([one, two, one + two, 2 * two])).bound
        assert bound - idle == pytest.approx(gained, abs=1e-6)
    assert evaluate(options.problem, np.array([0.3, 0.6, 0.9, 1.2])).bound - idle > gained + 0.05
    for name in ("ann", "bob"):
        assert math.exp(-division.harm[name]) == pytest.approx(0.5, abs=0.11), "from prices"
        assert division.settle is not None
        assert math.exp(-dict(division.settle())[name]) == pytest.approx(0.5), "settled"


def test_a_single_device_costs_its_winner_what_the_other_loses() -> None:
    """Values 1/100 against 1/400 (one term of 300 s later) and 1/200 against 1/500."""
    ruling = rule(THEMIS, market([job("a", bid({1: 100}), 1), job("b", bid({1: 200}), 2)], 1))
    assert counts(ruling) == {"a": 1, "b": 0}
    assert ruling.awards["a"].payment == pytest.approx(200 / 500)


@pytest.mark.parametrize(("bidders", "devices"), [(2, 16), (3, 12), (4, 12)])
def test_identical_bidders_keep_the_papers_fraction(bidders: int, devices: int) -> None:
    """Cole, Gkatzelis, Goel (EC 2013): ((n-1)/n)^(n-1), which tends to 1/e, the bound they prove.

    Linear speed-up, age 0: the value of k devices is k, everybody gets D/n, and without one
    of them the others get D/(n-1).
    """
    table = {k: 1e6 / k for k in range(1, devices + 1)}
    jobs = [job(f"j{i}", bid(table), i) for i in range(bidders)]
    ruling = rule(THEMIS, market(jobs, devices))
    assert set(counts(ruling).values()) == {devices // bidders}
    for award in ruling.awards.values():
        assert award.payment == pytest.approx(((bidders - 1) / bidders) ** (bidders - 1))


def test_who_takes_nothing_from_anybody_pays_nothing() -> None:
    ruling = rule(THEMIS, market([job("a", bid({1: 100}), 1), job("b", bid({1: 100}), 2)], 4))
    assert [award.payment for award in ruling.awards.values()] == [1.0, 1.0]


def test_weights_are_exponents_of_the_values() -> None:
    """-log c_i = sum of w_j log(v_j without / with) / w_i, by hand for weights 3 and 1."""
    heavy = job("heavy", bid({1: 100}), 1, account_weight=3.0)
    light = job("light", bid({1: 100}), 2, account_weight=1.0)
    ruling = rule(THEMIS, market([heavy, light], 1))
    assert counts(ruling) == {"heavy": 1, "light": 0}
    assert ruling.awards["heavy"].payment == pytest.approx((100 / 400) ** (1 / 3))
