"""Which model suits which job: the programme's bound, its prices, and what the policy makes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched_broker.core.fairness import Row
from selfsched_broker.core.policies.matching import match

TERM = 100.0


def row(model: str, seconds: float, devices: int = 1) -> Row:
    return Row(devices=devices, nodes=1, model=model, remaining_seconds=seconds, restart_seconds=0.0)


def test_each_goes_where_it_loses_least_and_not_where_it_is_fastest() -> None:
    # Both are faster on the big one; `heavy` by far more.
    rows = {
        "heavy": [row("big", 1000), row("small", 8000)],
        **{f"light-{n}": [row("big", 500), row("small", 750)] for n in range(3)},
    }
    matching = match(rows, {"big": 1, "small": 1}, 0.0)
    assert matching is not None
    paces = {
        (job, there.model): matching.pace(job, there.remaining_seconds)
        for job, bids in rows.items()
        for there in bids
    }
    apart = paces["heavy", "big"] + paces["light-0", "small"]
    assert apart > paces["light-0", "big"] + paces["heavy", "small"]
    # 1000 s of heavy and 500 s of light ones on the big one, 1500 s of light ones on the small one.
    assert matching.soonest == pytest.approx(1500)


def test_a_job_on_one_model_at_a_time_bounds_the_end() -> None:
    matching = match({"only": [row("big", 1000), row("small", 2000)]}, {"big": 1, "small": 1}, TERM)
    assert matching is not None
    assert matching.soonest == pytest.approx(1000)


def test_where_a_job_fits_nowhere_there_is_no_answer() -> None:
    assert match({"wide": [row("big", 1000, devices=4)]}, {"big": 2, "small": 8}, TERM) is None
    assert match({"strange": [row("other", 1000)]}, {"big": 2}, TERM) is None


@given(
    times=st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)), min_size=1, max_size=12),
    big=st.integers(1, 8),
    small=st.integers(1, 8),
)
def test_the_prices_of_all_work_make_up_the_time_that_all_takes(
    times: list[tuple[float, float]], big: int, small: int
) -> None:
    rows = {f"job-{n}": [row("big", b), row("small", s)] for n, (b, s) in enumerate(times)}
    # Within a term that is nothing the prices of later are those of now.
    matching = match(rows, {"big": big, "small": small}, 0.0)
    assert matching is not None
    assert min(matching.prices.values()) >= 0
    assert sum(matching.prices.values()) == pytest.approx(matching.soonest, rel=1e-4)
    # No schedule is quicker than the longest job at its best, nor than all work spread over all devices.
    longest = max(min(there) for there in times)
    spread = sum(min(there) for there in times) / (big + small)
    assert matching.soonest >= max(longest, spread) * (1 - 1e-6)
    assert matching.soonest <= sum(min(there) for there in times) * (1 + 1e-6)
