"""What jobs say of their steps, kept for the fit over many jobs: what is believed, what is kept.

A job's word is cumulative: each report has all that it measured, so the newest replaces the one
before and nothing is counted twice. It is also only a word. What it says of hardware, device
counts and nodes that no lease ever gave it is left out (`lease_history`): so the names of hardware
are those of devices that nodes have reported. What cannot be true of a training step is left out
entry by entry; an account counts on a kind of hardware with no more jobs than
all others together (and a few where it is alone), so that one who lies by the hundred is heard
once. What then remains of a lie meets the fit's own Student-t likelihood (`core/population`).

Kept are the newest `KEPT_JOBS` jobs; where there are more, the account that has most of them
loses its oldest, so that a flood of one account's jobs does not wash the others' away.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from selfsched.protocol import StepStatistics
from selfsched_broker.core.lease_history import Place, place_of
from selfsched_broker.core.past_records import JobEvidence

KEPT_JOBS = 400
KEPT_ENTRIES = 64
"""Of a job: what one report can hold."""
LEAST_STEPS = 10
MOST_STEPS = 10**12
SHORTEST_LOG = math.log(1e-6)
LONGEST_LOG = math.log(86_400.0)
"""A step of a microsecond, one of a day."""
MOST_SCATTER = 9.0
"""Variance of the logarithm of a step: e to the third either way."""
MOST_DEVICES = 8192
KEPT_HARDWARE = 8
"""Kinds of it that one job may speak of."""
MOST_HARDWARE = 64
"""Kinds of it that a fit looks at: those that most accounts speak of."""
GRADIENT_BYTES = (4, 10**14)
FASTER_LOG = math.log(2.0)
"""More than a device for a device: caches do that, by less than this ..."""
SLOWER_LOG = math.log(50.0)
"""... and a job that is slowed by more devices is so by less than this."""
FITTED_PLACEMENTS = 8
"""Of a job on one kind of hardware that a fit looks at, from the smallest to the largest."""
ACCOUNT_JOBS = 8
"""An account counts with so many jobs on a kind of hardware, however few the others have."""
FRESH_FACTOR = 1.5
"""So many times the steps of before are news to a fit."""

_Place = tuple[str, int, int, int]


def believable(statistics: Iterable[StepStatistics]) -> tuple[StepStatistics, ...]:
    """What of a job's statistics may be true, one entry for each placement and local batch."""
    newest: dict[_Place, StepStatistics] = {}
    for entry in statistics:
        if _is_possible(entry):
            newest.pop(_place(entry), None)
            newest[_place(entry)] = entry
    by_hardware: dict[str, list[StepStatistics]] = defaultdict(list)
    for entry in [*newest.values()][-KEPT_ENTRIES:]:
        by_hardware[entry.hardware].append(entry)
    kept = [*by_hardware.values()][-KEPT_HARDWARE:]
    return tuple(entry for entries in kept for entry in _consistent(entries))


def _place(entry: StepStatistics) -> _Place:
    return entry.hardware, entry.placement.devices, entry.placement.nodes, entry.local_samples


def _is_possible(entry: StepStatistics) -> bool:
    step, (least, most) = entry.log_step, GRADIENT_BYTES
    return (
        LEAST_STEPS <= step.count <= MOST_STEPS
        and SHORTEST_LOG <= step.mean <= LONGEST_LOG
        and step.m2 <= MOST_SCATTER * step.count
        and entry.placement.devices <= MOST_DEVICES
        and least <= entry.gradient_bytes <= most
    )


def _consistent(entries: Sequence[StepStatistics]) -> list[StepStatistics]:
    """Those that can belong to one job beside its smallest placement."""
    first = min(entries, key=lambda entry: (entry.placement.devices, entry.placement.nodes))
    kept = []
    for entry in entries:
        apart = entry.log_step.mean - first.log_step.mean
        same_bytes = entry.gradient_bytes == first.gradient_bytes
        if same_bytes and -_fewer_samples_log(first, entry) - FASTER_LOG <= apart <= SLOWER_LOG:
            kept.append(entry)
    return kept


def _fewer_samples_log(first: StepStatistics, entry: StepStatistics) -> float:
    """Log of how many times fewer samples a device has than on the first placement, at the most."""
    more_devices = math.log(entry.placement.devices / first.placement.devices)
    if entry.local_samples and first.local_samples:
        return max(more_devices, math.log(first.local_samples / entry.local_samples))
    return more_devices


def unproven(known: JobEvidence | None, said: Iterable[StepStatistics]) -> frozenset[Place]:
    """Placements that a job speaks of and that were not among its evidence yet."""
    before = {place_of(entry) for entry in known.statistics} if known is not None else set()
    return frozenset(place_of(entry) for entry in said) - before


def without_places(
    said: Iterable[StepStatistics], refused: Collection[Place]
) -> tuple[StepStatistics, ...]:
    """What is said of other placements than these."""
    return tuple(entry for entry in said if place_of(entry) not in refused)


def heard(
    known: JobEvidence | None, account: str, name: str, said: Sequence[StepStatistics], now: float
) -> JobEvidence | None:
    """The evidence of a job after its newest word.

    Args:
        known: what is kept of it.
        account: whose job it is.
        name: of the job.
        said: the statistics of its report, of placements that it was leased.
        now: broker time.

    Returns:
        None: there is nothing in it that could be used, or nothing new.
    """
    before = known.statistics if known is not None else ()
    new = believable(said)
    # A script that was changed under its old name is another job.
    entries = believable([*(entry for entry in before if _is_of_the_same(entry, new)), *new])
    if not new or entries == before:
        return None
    steps = sum(entry.log_step.count for entry in entries)
    is_fresh = (
        known is None
        or set(map(_place, entries)) - set(map(_place, known.statistics))
        or steps >= FRESH_FACTOR * known.fresh_steps
        or steps < known.fresh_steps
    )
    if not is_fresh and known is not None:
        fresh_at, fresh_steps = known.fresh_at, known.fresh_steps
    else:
        fresh_at, fresh_steps = now, steps
    return JobEvidence(
        account=account, name=name, at=now, fresh_at=fresh_at, fresh_steps=fresh_steps, statistics=entries
    )


def _is_of_the_same(entry: StepStatistics, said: Sequence[StepStatistics]) -> bool:
    return all(entry.gradient_bytes == other.gradient_bytes for other in said)


def teaches(evidence: JobEvidence) -> bool:
    """Whether a fit learns from it: two placements on one kind of hardware."""
    return max(Counter(hardware for hardware, *_ in map(_place, evidence.statistics)).values(), default=0) > 1


def beyond_bounds(kept: Mapping[str, JobEvidence]) -> tuple[str, ...]:
    """Keys of the evidence to let go, so that `KEPT_JOBS` remain."""
    surplus = len(kept) - KEPT_JOBS
    if surplus <= 0:
        return ()
    oldest_first: dict[str, list[JobEvidence]] = defaultdict(list)
    for entry in sorted(kept.values(), key=lambda entry: -entry.at):
        oldest_first[entry.account].append(entry)
    gone = []
    for _ in range(surplus):
        account = max(oldest_first, key=lambda name: len(oldest_first[name]))
        gone.append(oldest_first[account].pop().key)
    return tuple(gone)


def for_a_fit(kept: Iterable[JobEvidence]) -> tuple[JobEvidence, ...]:
    """The evidence a fit is to see, oldest first, no account with too many jobs on any hardware."""
    newest_first = sorted((e for e in kept if teaches(e)), key=lambda entry: (-entry.at, entry.key))
    own: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in newest_first:
        for hardware in _hardware_of(entry):
            own[hardware][entry.account] += 1
    looked_at = sorted(own, key=lambda name: (-len(own[name]), -own[name].total(), name))[:MOST_HARDWARE]
    left = {(h, account): _allowance(own[h], account) for h in looked_at for account in own[h]}
    chosen = []
    for entry in newest_first:
        counted = {h for h in _hardware_of(entry) if left.get((h, entry.account), 0) > 0}
        for hardware in counted:
            left[hardware, entry.account] -= 1
        statistics = tuple(s for name in sorted(counted) for s in _spaced(entry, name))
        if statistics:
            chosen.append(replace(entry, statistics=statistics))
    return tuple(reversed(chosen))


def _spaced(entry: JobEvidence, hardware: str) -> list[StepStatistics]:
    """A job's placements on one kind of hardware, a few of many."""
    placed = [s for s in entry.statistics if s.hardware == hardware]
    if len(placed) <= FITTED_PLACEMENTS:
        return placed
    placed.sort(key=lambda s: (s.placement.devices, s.placement.nodes, -s.local_samples))
    last = FITTED_PLACEMENTS - 1
    return [placed[round(index * (len(placed) - 1) / last)] for index in range(FITTED_PLACEMENTS)]


def _allowance(jobs: Counter[str], account: str) -> int:
    """With how many of its jobs an account counts."""
    own = jobs[account]
    return own if len(jobs) == 1 else max(ACCOUNT_JOBS, jobs.total() - own)


def _hardware_of(entry: JobEvidence) -> set[str]:
    return {statistics.hardware for statistics in entry.statistics}
