"""From the evidence of many jobs to a prior for each kind of hardware, with a job's own left out.

A job that asks for the prior of its hardware brings its own measurements, and its model weighs
them against the prior. Were they in the prior too, they would count twice, and its intervals
would be too narrow. So, where few jobs stand behind a prior, there is one more without each of
them; where many do, one job's part in it is too small to matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from selfsched.core.performance import documented_prior, refusal
from selfsched.core.population import Population, Visited, fit_population, visited_of
from selfsched.protocol import MAX_COUNT, HardwarePrior, LearnedHardware, StepStatistics
from selfsched_broker.core.books import Books, Change, Erase, JobEvidence, LearnedPrior
from selfsched_broker.core.past_records import prior_key

FEW_JOBS = 30
"""With fewer jobs behind a prior than this, one job's own part in it matters."""
MOST_HARDWARE = 200
"""Kinds of it whose priors are kept; the newest."""
MOST_LEFT_OUT = 60
"""Fits without one job, newest jobs first: it is live jobs that ask."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What a fit gave for a kind of hardware."""

    prior: HardwarePrior
    without: str = ""
    """Key of the evidence that was left out."""
    jobs: tuple[str, ...] = ()
    """Keys of the evidence behind it; of what is left out for one job it is not kept."""


def learn(evidence: Sequence[JobEvidence]) -> tuple[Lesson, ...]:
    """Fit the population, and once more without each job where that matters. Takes seconds.

    Args:
        evidence: oldest first, as `evidence.for_a_fit` gives it.

    Returns:
        A lesson for each kind of hardware with something to learn from, and those without one
        job. One that a job could not use is left out.
    """
    visited = [
        entry
        for job in evidence
        for entry in visited_of(job.key, job.statistics, owner=job.account)
        if len(entry.steps) > 1
    ]
    if not visited:
        return ()
    whole = fit_population(visited)
    behind = _behind(visited)
    lessons = [Lesson(prior=whole.prior(name), jobs=jobs) for name, jobs in behind.items()]
    few = {job for jobs in behind.values() if len(jobs) < FEW_JOBS for job in jobs}
    newest = [job.key for job in reversed(evidence) if job.key in few][:MOST_LEFT_OUT]
    for job in newest:
        lessons += _without(job, visited, whole, behind)
    return tuple(lesson for lesson in lessons if refusal(lesson.prior) is None)


def _behind(visited: Sequence[Visited]) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for entry in visited:
        found.setdefault(entry.hardware, {})[entry.job] = None
    return {hardware: tuple(jobs) for hardware, jobs in found.items()}


def _without(
    job: str, visited: Sequence[Visited], whole: Population, behind: dict[str, tuple[str, ...]]
) -> list[Lesson]:
    concerned = [name for name, jobs in behind.items() if job in jobs and 1 < len(jobs) < FEW_JOBS]
    if not concerned:
        return []
    others = fit_population([entry for entry in visited if entry.job != job], calibrate=False)
    others = replace(others, widths=whole.widths)  # how wide intervals must be is a matter of all jobs
    return [Lesson(prior=others.prior(name), without=job) for name in concerned]


def prior_in(books: Books, hardware: str, owner: str = "") -> HardwarePrior:
    """The prior that is to be given away; documented figures where nothing was learned.

    Args:
        books: as they are.
        hardware: asked for.
        owner: key of the asking job's evidence, which is not to be in it; empty: no job asks.
    """
    whole = books.priors.get(prior_key(hardware))
    if whole is None:
        return documented_prior(hardware)
    if not owner or owner not in whole.jobs or len(whole.jobs) >= FEW_JOBS:
        return whole.prior
    own = books.priors.get(prior_key(hardware, owner))
    return own.prior if own is not None else documented_prior(hardware)


def changes_of(books: Books, lessons: Sequence[Lesson], at: float) -> tuple[Change, ...]:
    """What is to be written after a fit: its priors; those of hardware it says nothing of stay.

    Args:
        books: as they are.
        lessons: of the fit.
        at: broker time of the evidence that it saw.
    """
    new = [
        LearnedPrior(
            hardware=one.prior.hardware, without=one.without, at=at, jobs=one.jobs, prior=one.prior
        )
        for one in lessons
    ]  # fmt: skip
    kept = {prior.key for prior in new}
    learned = {prior.hardware for prior in new if not prior.without}
    whole = [p for p in books.priors.values() if not p.without and p.hardware not in learned]
    room = max(0, MOST_HARDWARE - len(learned))
    too_old = {p.hardware for p in sorted(whole, key=lambda prior: -prior.at)[room:]}
    gone = [
        Erase(kind=LearnedPrior, forgotten=prior.key)
        for prior in books.priors.values()
        if prior.key not in kept and prior.hardware in learned | too_old
    ]
    return (*new, *gone)


def views(books: Books, now: float) -> tuple[LearnedHardware, ...]:
    """What was learned of each kind of hardware that jobs have spoken of, by name."""
    said: dict[str, list[tuple[str, StepStatistics]]] = defaultdict(list)
    for job in books.evidence.values():
        for statistics in job.statistics:
            said[statistics.hardware].append((job.key, statistics))
    names = said.keys() | {prior.hardware for prior in books.priors.values()}
    return tuple(_view(books, name, said.get(name, ()), now) for name in sorted(names))


def _view(
    books: Books, hardware: str, said: Sequence[tuple[str, StepStatistics]], now: float
) -> LearnedHardware:
    learned = books.priors.get(prior_key(hardware))
    return LearnedHardware(
        hardware=hardware,
        reporting_jobs=len({job for job, _ in said}),
        placements=len({(s.placement.devices, s.placement.nodes) for _, s in said}),
        steps=min(sum(s.log_step.count for _, s in said), MAX_COUNT),
        learned_ago_seconds=None if learned is None else max(0.0, now - learned.at),
        prior=prior_in(books, hardware),
    )
