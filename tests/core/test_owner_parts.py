"""How much one owner's jobs may say among those of many."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.core.owner_parts import groups_of, job_weights, jobs_of_owners, middle


def owners(*counts: int) -> dict[str, set[str]]:
    return jobs_of_owners((f"o{n}", f"{n}-{job}") for n, count in enumerate(counts) for job in range(count))


@pytest.mark.parametrize(
    ("counts", "counted"),
    [
        ((40,), (40,)),  # a lab of one learns from all it has
        ((40, 3), (8, 3)),
        ((40, 12), (12, 12)),
        ((2, 2, 2, 8), (2, 2, 2, 2)),
        ((4, 4, 4, 4, 200), (4, 4, 4, 4, 4)),
        ((1, 1, 1, 50), (1, 1, 1, 2)),
        ((30, 30, 30), (30, 30, 30)),
    ],
)
def test_no_owner_counts_with_more_jobs_than_the_median_one(
    counts: tuple[int, ...], counted: tuple[int, ...]
) -> None:
    jobs = owners(*counts)
    weights = job_weights(jobs)
    assert [weights[owner] * len(own) for owner, own in jobs.items()] == pytest.approx(counted)


@given(st.lists(st.integers(1, 50), max_size=12))
def test_every_owner_is_in_one_group_and_none_is_empty(counts: list[int]) -> None:
    jobs = owners(*counts)
    group_of = groups_of(jobs)
    assert set(group_of) == set(jobs)
    assert set(group_of.values()) == set(range(min(3, len(jobs))))
    assert all(0 < weight <= 1 for weight in job_weights(jobs).values())


def test_groups_are_about_as_large() -> None:
    assert sorted(Counter(groups_of(owners(*[4] * 10)).values()).values()) == [3, 3, 4]


@given(st.tuples(*[st.floats(0.1, 10.0)] * 2), st.floats(0.001, 1000.0), st.integers(0, 2))
def test_what_one_group_says_stays_between_what_two_others_say(
    honest: tuple[float, float], lie: float, place: int
) -> None:
    said = [*honest]
    said.insert(place, lie)
    found = middle([np.array([value]) for value in said], np.ones(1))
    assert min(honest) <= found[0] <= max(honest)


def test_of_two_that_disagree_the_built_in_value_is_the_middle_and_one_alone_is_heard() -> None:
    built_in = np.array([1.0, 1.0])
    assert middle([np.array([0.2, 2.0]), np.array([9.0, 3.0])], built_in) == pytest.approx([1.0, 2.0])
    assert middle([np.array([0.2, 2.0])], built_in) == pytest.approx([0.2, 2.0])
    assert middle([], built_in) == pytest.approx(built_in)
