"""How much one owner's jobs may say among those of many: a bound, and a vote of three.

Owners (accounts) report what their jobs measured, and one of them may lie, by the hundred. Two
rules keep its part small without losing what an honest lab of one or two owners knows:

- **Weights.** No owner counts with more jobs than the median owner, two at least. Of two owners
  nobody can say which is right: there each may have as many as the other, eight at least. An
  owner alone counts in full.
- **The middle of three.** What is common to all jobs, and has to be estimated from tails (spread,
  quantiles) where a few per cent of lies are enough, is estimated in three groups of owners, and
  the middle value is taken: a median of means (Nemirovsky and Yudin, "Problem Complexity and
  Method Efficiency in Optimization", 1983). One owner is in one group only, so whatever it says the
  outcome lies between what two groups without it say. Where there are two owners, the third voice
  is the built-in value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low

import numpy as np

from selfsched.core.step_form import Array

GROUPS = 3
LEAST_JOBS = 2
"""An owner counts with so many jobs among many owners, however few the others have ..."""
LEAST_OF_TWO = 8
"""... and with so many beside one other."""


def jobs_of_owners(jobs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Distinct jobs by owner, from (owner, job)."""
    found: dict[str, set[str]] = defaultdict(set)
    for owner, job in jobs:
        found[owner].add(job)
    return dict(found)


def job_weights(jobs: Mapping[str, set[str]]) -> dict[str, float]:
    """With how much each job of an owner counts, 0 to 1, so that no owner's part is too large."""
    counts = sorted(len(own) for own in jobs.values())
    if len(counts) < 2:
        return dict.fromkeys(jobs, 1.0)
    bound = max(LEAST_OF_TWO, counts[0]) if len(counts) == 2 else max(LEAST_JOBS, median_low(counts))
    return {owner: min(1.0, bound / len(own)) for owner, own in jobs.items()}


def groups_of(jobs: Mapping[str, set[str]]) -> dict[str, int]:
    """Owners dealt into groups of about as many jobs, numbered from 0; as many as owners where few."""
    sizes = [0.0] * min(GROUPS, len(jobs))
    weights, group_of = job_weights(jobs), {}
    for owner in sorted(jobs, key=lambda owner: (-len(jobs[owner]), owner)):
        group_of[owner] = lightest = sizes.index(min(sizes))
        sizes[lightest] += weights[owner] * len(jobs[owner])
    return group_of


def middle(values: Sequence[Array], built_in: Array) -> Array:
    """The middle of what the groups say, element by element; what one alone says where it is alone."""
    if len(values) == 1:
        return values[0]
    voices = [*values, *[built_in] * (GROUPS - len(values))]
    return np.asarray(np.median(np.stack(voices), axis=0))
