"""What of the jobs' word is believed, what is kept, and with how much each counts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from broker.spoken_steps import BYTES, entry, evidence_of, said
from hypothesis import given
from hypothesis import strategies as st

from selfsched.protocol import Moments, Placement, StepStatistics
from selfsched_broker.core import evidence
from selfsched_broker.core.evidence import believable, beyond_bounds, for_a_fit, heard, teaches


@pytest.mark.parametrize(
    "changes",
    [
        {"log_step": Moments()},
        {"log_step": Moments(count=9, mean=-2.0)},
        {"log_step": Moments(count=2**53, mean=-2.0)},
        {"log_step": Moments(count=100, mean=1e300)},
        {"log_step": Moments(count=100, mean=-1e300)},
        {"log_step": Moments(count=100, mean=-2.0, m2=1e308)},
        {"gradient_bytes": 0},
        {"gradient_bytes": 2**53},
        {"placement": Placement(devices=65_536)},
    ],
)
def test_what_no_training_step_can_be_is_left_out(changes: dict[str, object]) -> None:
    good = entry(1, 0.1)
    assert believable([good, entry(2, 0.06, **changes)]) == (good,)


@pytest.mark.parametrize("seconds", [0.1 / 2 / 2.1, 0.1 * 51])
def test_what_does_not_fit_the_jobs_smallest_placement_is_left_out(seconds: float) -> None:
    assert [e.placement.devices for e in believable([entry(1, 0.1), entry(2, seconds), entry(4, 0.04)])] == [
        1, 4,
    ]  # fmt: skip


def test_a_smaller_local_batch_may_be_as_much_faster() -> None:
    small = entry(1, 0.1 / 16, local_samples=4)
    assert believable([entry(1, 0.1, local_samples=64), small])[-1] == small


def test_entries_of_other_gradients_are_no_entries_of_this_job() -> None:
    assert len(believable([entry(1, 0.1), entry(2, 0.06, gradient_bytes=BYTES * 2)])) == 1


finite = st.floats(allow_nan=False, allow_infinity=False)
nonsense = st.builds(
    StepStatistics,
    hardware=st.sampled_from(["cpu", "H100"]),
    placement=st.builds(Placement, devices=st.integers(1, 65_536)),
    local_samples=st.integers(0, 2**53),
    gradient_bytes=st.integers(0, 2**53),
    log_step=st.builds(
        Moments, count=st.integers(0, 2**53), mean=finite, m2=st.floats(0, 1e308, allow_nan=False)
    ),
)


@given(st.lists(nonsense, max_size=64))
def test_whatever_is_said_is_judged_and_stays_within_bounds(statistics: list[StepStatistics]) -> None:
    found = believable(statistics)
    assert len(found) <= evidence.KEPT_ENTRIES
    assert all(math.log(1e-6) <= e.log_step.mean <= math.log(86_400) for e in found)


def test_the_newest_word_replaces_the_one_before_and_is_not_added() -> None:
    first = evidence_of("ann", "a", *said(2e9, steps=100), at=1.0)
    second = heard(first, "ann", "a", said(2e9, steps=120), 2.0)
    assert second is not None
    assert [e.log_step.count for e in second.statistics] == [120] * 3
    assert heard(second, "ann", "a", said(2e9, steps=120), 3.0) is None
    assert heard(None, "ann", "a", [entry(1, 0.1, steps=3)], 1.0) is None


def test_a_job_that_comes_back_keeps_what_it_said_of_other_placements() -> None:
    first = evidence_of("ann", "a", *said(2e9))
    again = heard(first, "ann", "a", said(2e9, counts=(2,), steps=15), 2.0)
    assert again is not None
    assert {e.placement.devices: e.log_step.count for e in again.statistics} == {1: 100, 4: 100, 2: 15}


def test_another_model_under_the_same_name_is_another_job() -> None:
    first = evidence_of("ann", "a", *said(2e9))
    other = heard(first, "ann", "a", [entry(1, 0.3, gradient_bytes=17)], 2.0)
    assert other is not None
    assert [e.gradient_bytes for e in other.statistics] == [17]


def test_only_a_new_placement_or_many_more_steps_are_news() -> None:
    first = evidence_of("ann", "a", *said(2e9, steps=100), at=1.0)
    little = heard(first, "ann", "a", said(2e9, steps=110), 2.0)
    assert little is not None
    assert (little.at, little.fresh_at) == (2.0, 1.0)
    more = heard(little, "ann", "a", said(2e9, steps=150), 3.0)
    assert more is not None
    assert more.fresh_at == 3.0
    placed = heard(little, "ann", "a", said(2e9, counts=(8,), steps=10), 4.0)
    assert placed is not None
    assert placed.fresh_at == 4.0


def test_thousands_of_placements_and_of_kinds_of_hardware_are_bounded() -> None:
    known = None
    for start in range(1, 4000, 64):
        many = [entry(n, 0.1, hardware=f"made-up-{n}", local_samples=0) for n in range(start, start + 64)]
        known = heard(known, "eve", "flood", many, float(start)) or known
    assert known is not None
    assert len(known.statistics) <= evidence.KEPT_ENTRIES
    assert len({e.hardware for e in known.statistics}) <= evidence.KEPT_HARDWARE


def test_a_flood_of_one_accounts_jobs_washes_away_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "KEPT_JOBS", 10)
    kept = {e.key: e for e in (evidence_of("ann", f"a{n}", *said(2e9), at=float(n)) for n in range(4))}
    kept |= {e.key: e for e in (evidence_of("eve", f"e{n}", *said(9e9), at=100.0 + n) for n in range(20))}
    gone = beyond_bounds(kept)
    assert len(gone) == 14
    assert set(gone) == {f"eve/e{n}" for n in range(14)}


def test_an_account_counts_with_no_more_jobs_than_all_others_together() -> None:
    ann = [evidence_of("ann", f"a{n}", *said(2e9), at=float(n)) for n in range(12)]
    eve = [evidence_of("eve", f"e{n}", *said(9e9), at=100.0 + n) for n in range(50)]
    chosen = for_a_fit([*eve, *ann])
    assert sum(e.account == "eve" for e in chosen) == 12
    assert sum(e.account == "ann" for e in chosen) == 12
    assert [e.at for e in chosen] == sorted(e.at for e in chosen)
    assert len(for_a_fit(eve)) == 50  # nobody else to be fair to


def test_a_fit_looks_at_the_hardware_that_most_accounts_speak_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "MOST_HARDWARE", 1)
    shared = [evidence_of(who, "x", *said(2e9)) for who in ("ann", "bob")]
    mine = [evidence_of("eve", f"e{n}", *said(2e9, hardware="made-up")) for n in range(20)]
    assert {s.hardware for e in for_a_fit([*mine, *shared]) for s in e.statistics} == {"Tesla-V100"}


def test_of_many_placements_a_fit_sees_a_few_from_the_smallest_to_the_largest() -> None:
    many = evidence_of("ann", "a", *[entry(n, 0.1, local_samples=0) for n in range(1, 50)])
    (chosen,) = for_a_fit([many])
    counts = [s.placement.devices for s in chosen.statistics]
    assert (len(counts), counts[0], counts[-1]) == (evidence.FITTED_PLACEMENTS, 1, 49)
    assert counts == sorted(set(counts))


def test_one_placement_teaches_nothing() -> None:
    alone = evidence_of("ann", "a", *said(2e9, counts=(2,)))
    assert not teaches(alone)
    apart = replace(alone, statistics=(entry(1, 0.1), entry(2, 0.1, hardware="cpu")))
    assert not teaches(apart)
    assert for_a_fit([alone, apart]) == ()
