"""What an auction guarantees on any small market, held against every division that there is.

`themis` and `selfsched` alike: no division would end one job sooner and none later; under `themis` nobody
is left worse off than on its share. How long anybody waits, over many auctions: see
`tests/simulator/test_guarantees.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
from broker.auction.markets import bid, counts, job, market, rule
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsched_broker.core.market import Contender, Market
from selfsched_broker.core.policies import POLICIES, policy_named

AUCTIONS = ("selfsched", "themis")
RESTART = 5.0
SIZES = ((1,), (2,), (1, 2), (1, 2, 4), (2, 4), (1, 2, 3))
JOBS = st.lists(
    st.tuples(st.integers(100, 20_000), st.floats(-0.2, 1.0), st.sampled_from(SIZES), st.integers(0, 9000)),
    min_size=1,
    max_size=4,
)


def waiting(drawn: Sequence[tuple[int, float, tuple[int, ...], int]]) -> list[Contender]:
    """Jobs that hold nothing: work on one device, how it scales (also worse with more), sizes, age."""
    return [
        job(
            f"j{n}", bid({k: work / k**scaling for k in sizes}, restart=RESTART), n,
            age_seconds=float(age), share=1.0,
        )
        for n, (work, scaling, sizes, age) in enumerate(drawn)
    ]  # fmt: skip


def seconds(contender: Contender, devices: int, question: Market) -> float:
    """Until its end if it gets so many now, and if nothing, its smallest count a term later."""
    assert contender.bid is not None
    table = {row.placement.devices: row.remaining_seconds or 0.0 for row in contender.bid.rows}
    if devices:
        return RESTART + table[devices]
    return question.options.term_seconds + RESTART + table[contender.allowed_devices[0]]


def divisions(contenders: Sequence[Contender], devices: int) -> Iterator[tuple[int, ...]]:
    """Every way to divide devices of one node: (count, ...) by contender."""
    sizes = [(0, *contender.allowed_devices) for contender in contenders]
    return (division for division in itertools.product(*sizes) if sum(division) <= devices)


@pytest.mark.parametrize("name", AUCTIONS)
@given(drawn=JOBS, devices=st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_no_division_ends_one_job_sooner_and_none_later(
    name: str, drawn: list[tuple[int, float, tuple[int, ...], int]], devices: int
) -> None:
    """Pareto-efficient; the gap of a market this small is proved to be 0."""
    contenders = waiting(drawn)
    question = market(contenders, devices)
    ruling = rule(policy_named(name), question)
    assert ruling.gap == pytest.approx(0, abs=1e-6)
    got = counts(ruling)
    now = [seconds(contender, got[contender.job], question) for contender in contenders]
    for division in divisions(contenders, devices):
        then = [seconds(c, n, question) for c, n in zip(contenders, division, strict=True)]
        if all(b <= a + 1e-9 for a, b in zip(now, then, strict=True)):
            assert then == pytest.approx(now, rel=1e-6), f"{division} is better than {got}"


@given(drawn=JOBS, devices=st.integers(2, 6), weights=st.lists(st.integers(1, 3), min_size=4, max_size=4))
@settings(max_examples=150, deadline=None)
def test_under_themis_nobody_is_worse_off_than_on_its_share(
    drawn: list[tuple[int, float, tuple[int, ...], int]], devices: int, weights: list[int]
) -> None:
    """Sharing incentive, where all jobs together can have their shares at once: the bound is 0 seconds.

    A job whose share is less than its smallest count has no claim yet.
    """
    contenders = [
        job(c.job, c.bid, c.number, account_weight=float(w), age_seconds=c.age_seconds)
        for c, w in zip(waiting(drawn), weights, strict=False)
    ]
    question = market(contenders, devices)
    got = counts(rule(policy_named("themis"), question))
    total = sum(contender.account_weight for contender in contenders)
    for contender in contenders:
        share = math.floor(devices * contender.account_weight / total + 1e-9)
        on_share = [seconds(contender, n, question) for n in contender.allowed_devices if n <= share]
        if on_share:
            assert seconds(contender, got[contender.job], question) <= min(on_share) + 1e-6


def crowd(number: int) -> list[Contender]:
    table = {1: bid({1: 100.0}, restart=5)}
    return [
        job(f"j{n:05}", bid({1: 100.0 + n}, restart=5) if n % 7 else table[1], n, share=1 / number)
        for n in range(number)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_ten_thousand_jobs_for_one_device(name: str) -> None:
    """One has it, all others are told why they have not."""
    ruling = rule(policy_named(name), market(crowd(10_000), 1))
    assert sum(counts(ruling).values()) == 1
    assert len(ruling.awards) == 10_000
    winner = next(award for award in ruling.awards.values() if award.devices)
    assert winner.reason.startswith(("gets 1", "runs on 1", "starts on 1"))
    others = [award for award in ruling.awards.values() if not award.devices]
    assert all(award.reason.startswith("waits") for award in others)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_placement_that_the_cluster_does_not_have_is_never_given(name: str) -> None:
    """A model nobody has, more devices than there are, more nodes than there are."""
    odd = [
        job("other-model", bid({1: 50.0}, model="h100"), 1),
        job("too-wide", bid({64: 50.0}), 2),
        job("too-spread", bid({}, spread={(2, 2): 50.0}), 3),
        job("partly", bid({1: 500.0, 64: 9.0}), 4),
    ]
    plain = job("plain", bid({1: 400.0}), 5)
    given_out = counts(rule(policy_named(name), market([*odd[:2], plain], 2)))
    if name == "fifo":  # the head of its queue is waited for, whatever it asks for
        assert given_out["too-wide"] == 0
        return
    assert given_out == {"other-model": 0, "plain": 1, "too-wide": 0}
    if name in AUCTIONS:
        given_out = counts(rule(policy_named(name), market([*odd, plain], 2)))
        assert given_out == {"other-model": 0, "partly": 1, "plain": 1, "too-spread": 0, "too-wide": 0}
