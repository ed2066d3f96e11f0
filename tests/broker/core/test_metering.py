"""What a job claims against what the broker sees: the claim that holds stands, the others are corrected."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.protocol import BidRow, Placement
from selfsched_broker.core.metering import LARGEST_FACTOR, Meter, claim_for

TRUE_SECONDS = 10_000.0
"""A whole run."""


def watched(seconds: float, claim: float, *, sigma: float = 0.2, every: float = 10.0) -> Meter:
    """A job of a thousand steps that claims `claim` times its true remaining time, seen that long."""
    meter, now = Meter(), 0.0
    while now <= seconds:
        done = now / TRUE_SECONDS
        step = int(done * 100_000)
        meter = meter.moved_on(("a",), running=True, now=now, fraction=done, step=step)
        left = claim * (TRUE_SECONDS - now)
        meter = meter.compared(left, sigma, now=now, fraction=done, step=step)
        now += every
    return meter


def test_a_true_claim_stands() -> None:
    assert watched(600, 1.0).factor == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("claim", [0.5, 0.8, 1.3, 3.0])
def test_a_wrong_claim_is_corrected_the_more_the_longer_it_was_seen(claim: float) -> None:
    wrong = [abs(math.log(watched(seconds, claim).factor * claim)) for seconds in (0, 60, 600, 3000)]
    assert wrong[0] == pytest.approx(abs(math.log(claim)))
    assert wrong == sorted(wrong, reverse=True)
    assert wrong[-1] < 0.1 * wrong[0]


def test_a_claim_said_to_be_certain_is_corrected_all_the_same() -> None:
    assert watched(600, 0.5, sigma=0.0).factor == pytest.approx(2.0, rel=0.05)


def test_what_was_seen_outlives_a_move_and_counts_anew_after_it() -> None:
    before = watched(600, 0.5)
    moved = before.moved_on(("a", "b"), running=True, now=700, fraction=0.06, step=6000)
    assert moved.factor == before.factor
    assert moved.since == 700


def test_a_job_that_stands_still_is_not_measured() -> None:
    stopped = watched(600, 0.5).moved_on(("a",), running=False, now=610, fraction=0.06, step=6000)
    assert stopped.since is None
    assert stopped.compared(100, 0.2, now=700, fraction=0.06, step=6000) == stopped


def test_progress_that_goes_back_begins_anew() -> None:
    meter = Meter().moved_on(("a",), running=True, now=600, fraction=0.06, step=6000)
    back = meter.moved_on(("a",), running=True, now=610, fraction=0.01, step=1000)
    assert (back.since, back.fraction) == (610, 0.01)


@given(
    claimed=st.floats(0, 3e9),
    sigma=st.floats(0, 20),
    seconds=st.floats(-1e3, 1e9),
    fraction=st.floats(0, 1),
    step=st.integers(-10, 10**12),
)
def test_whatever_is_claimed_the_factor_stays_within_its_bounds(
    claimed: float, sigma: float, seconds: float, fraction: float, step: int
) -> None:
    meter = Meter().moved_on(("a",), running=True, now=0.0, fraction=0.0, step=0)
    factor = meter.compared(claimed, sigma, now=seconds, fraction=fraction, step=step).factor
    assert 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR


def test_a_claim_is_held_against_the_pace_on_its_own_model_and_nodes() -> None:
    rows = [
        BidRow(placement=Placement(devices=2, nodes=nodes, model=model), remaining_seconds=seconds,
               sigma_log=0.1, restart_seconds=5.0)
        for nodes, model, seconds in ((1, "fast", 100.0), (2, "fast", 140.0), (1, "slow", 900.0))
    ]  # fmt: skip
    claims = {
        (nodes, model): claim_for(Placement(devices=2, nodes=nodes, model=model), rows)
        for nodes, model in ((1, "fast"), (2, "fast"), (1, "slow"), (2, "slow"), (1, "other"))
    }
    seconds = {where: claim and claim.remaining_seconds for where, claim in claims.items()}
    assert seconds == {
        (1, "fast"): 100.0, (2, "fast"): 140.0, (1, "slow"): 900.0, (2, "slow"): 900.0, (1, "other"): None,
    }  # fmt: skip
    assert claim_for(Placement(devices=4, nodes=1, model="fast"), rows) is None
