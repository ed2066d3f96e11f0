"""What holds for every policy on any small market, and what no change of names or order changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsched_broker.core.market import Contender
from selfsched_broker.core.policies import POLICIES, policy_named
from tests.broker.auction.markets import bid, counts, job, market, rule
from tests.broker.auction.test_contract import random_market

ALL = sorted(POLICIES)
AUCTIONS = ("selfsched", "themis")
SEEDS = st.integers(10_000, 1_000_000)
RUNS = st.lists(st.integers(200, 20_000), min_size=2, max_size=5, unique=True)


def waiting(runs: list[int], **fields: float) -> list[Contender]:
    return [
        job(f"j{n}", bid({1: float(run), 2: run / 1.7}, restart=5), n, **fields) for n, run in enumerate(runs)
    ]


@pytest.mark.parametrize("name", ALL)
@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_any_market_has_a_lawful_ruling(name: str, seed: int) -> None:
    """`rule` checks the contract: an award and a reason each, no device twice, the immovable unmoved."""
    question = random_market(seed)
    given_out = sum(counts(rule(policy_named(name), question)).values())
    assert given_out <= len(question.seats) + len(question.kept_seats)


@pytest.mark.parametrize("name", AUCTIONS)
@given(runs=RUNS, devices=st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_no_device_is_free_while_a_job_waits_that_could_use_it(
    name: str, runs: list[int], devices: int
) -> None:
    given_out = counts(rule(policy_named(name), market(waiting(runs), devices)))
    idle = devices - sum(given_out.values())
    assert idle == 0 or 0 not in given_out.values()


@pytest.mark.parametrize("name", AUCTIONS)
@given(runs=RUNS, devices=st.integers(1, 6), order=st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_the_order_of_the_contenders_changes_nothing(
    name: str, runs: list[int], devices: int, order: object
) -> None:
    contenders = waiting(runs)
    shuffled = list(contenders)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    policy = policy_named(name)
    assert rule(policy, market(contenders, devices)).awards == rule(policy, market(shuffled, devices)).awards


@given(runs=RUNS, devices=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_a_heavier_account_gets_no_fewer_devices(runs: list[int], devices: int) -> None:
    policy = policy_named("selfsched")
    light = waiting(runs)
    heavy = [replace(light[0], account_weight=3.0), *light[1:]]
    before, after = (counts(rule(policy, market(jobs, devices)))["j0"] for jobs in (light, heavy))
    assert after >= before


@pytest.mark.parametrize("name", AUCTIONS)
@given(runs=RUNS)
@settings(max_examples=8, deadline=None)
def test_whoever_waits_is_served_within_a_multiple_of_its_fair_time(name: str, runs: list[int]) -> None:
    """One device, terms of an equal part of all work: nobody is without it for thirty terms."""
    policy, left = policy_named(name), [float(run) for run in runs]
    term = sum(left) / 20
    served: set[int] = set()
    for number in range(1, 31):
        alive = [n for n, seconds in enumerate(left) if seconds > 0]
        if not alive:
            break
        contenders = [
            job(
                f"j{n}",
                bid({1: left[n]}),
                n,
                age_seconds=(number - 1) * term,
                fraction_done=1 - left[n] / runs[n],
                share=1 / len(runs),
                passed_over=0 if n in served else number - 1,
            )
            for n in alive
        ]
        winner = next(n for n in alive if counts(rule(policy, market(contenders, 1, number=number)))[f"j{n}"])
        served.add(winner)
        left[winner] -= term
    assert served == set(range(len(runs)))


@given(
    remaining=st.integers(100, 50_000),
    saved=st.floats(0.0, 3.0),
    restart=st.integers(1, 60),
)
@settings(max_examples=60, deadline=None)
def test_t18_no_move_for_less_than_its_cost_and_a_margin_and_the_reason_says_so(
    remaining: int, saved: float, restart: int
) -> None:
    quicker = max(remaining - saved * restart, 1.0)
    table = bid({1: float(remaining), 2: quicker}, restart=restart, running_on=1)
    question = market([job("held", table, at_stake=("n/0",))], 2)
    award = rule(policy_named("selfsched"), question).awards["held"]
    margin = question.options.move_gain * restart
    if remaining - quicker <= margin:
        assert len(award.devices) == 1
        assert f"less than 1.2 times the {restart:.0f}" in award.reason or restart < 10
        assert "the move costs" in award.reason
    elif len(award.devices) == 1:
        assert "the move costs" in award.reason or "no further devices fit" in award.reason
