"""From evidence to the account: pure, so that a synthetic demo can be accounted for in a test.

Segments, steps, losses, samples and the speed-up come from the witness of each job; forecasts
from its history, where they were noted when they were made; rho as the broker
stated it. Instants in here are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median
from typing import Literal

from selfsched.demo.result import (
    DemoForecast,
    DemoJob,
    DemoResult,
    DemoSegment,
    JobStory,
    LossPoint,
    StepParts,
)
from selfsched.witness.record import Record, WitnessedBatch

Account = Literal["notebook", "script"]
SHORTEST_SAMPLE = 10
"""Steps on a device count below which no speed-up is told."""
MOST_LOSS_POINTS = 400


@dataclass(frozen=True)
class Evidence:
    """What is known of one job when the demo is over."""

    account: Account
    name: str
    registered_at: float
    finished: bool
    record: Record
    forecasts: tuple[DemoForecast, ...] = ()
    rho: tuple[tuple[float, float], ...] = ()
    """(instant, rho)."""
    reasons: tuple[str, ...] = ()
    steps: tuple[StepParts, ...] = field(default=())


def account_for(jobs: Sequence[Evidence]) -> DemoResult:
    """The account that `--json` prints."""
    records = [job.record for job in jobs]
    found = (speedup(record, [other for other in records if other is not record]) for record in records)
    return DemoResult(
        jobs=tuple(_job(job) for job in jobs),
        speedup_two_devices=next(filter(None, found), None),
    )


def story_of(job: Evidence, first_at: float) -> JobStory:
    """What the report shows of a job; `first_at` is when the first job registered."""
    return JobStory(
        account=job.account,
        registered_s=round(job.registered_at - first_at, 2),
        losses=tuple(_losses(job.record)),
        steps=job.steps,
        reasons=job.reasons,
        rho_over_time=tuple((round(at - job.registered_at, 2), rho) for at, rho in job.rho),
        sample_faults=tuple(job.record.faults()),
    )


def speedup(record: Record, others: Sequence[Record] = ()) -> float | None:
    """How many times faster a step is on two devices than on one; None: not both were seen.

    Slots do not isolate: beside another job a step on one device is slowed by it. So the steps
    with the machine to itself count, and those beside others only where there are too few.
    """
    one, two = record.steady_steps(1), record.steady_steps(2)
    busy = [(o.batches[0].at - o.batches[0].seconds, o.batches[-1].at) for o in others if o.batches]
    undisturbed = [step for step in one if not any(step.overlaps(start, end) for start, end in busy)]
    if len(undisturbed) >= SHORTEST_SAMPLE:
        one = undisturbed
    if min(len(one), len(two)) < SHORTEST_SAMPLE:
        return None
    return round(median(step.seconds for step in one) / median(step.seconds for step in two), 3)


def _job(job: Evidence) -> DemoJob:
    return DemoJob(
        name=job.name,
        account=job.account,
        finished=job.finished,
        rho=round(job.rho[-1][1], 4) if job.rho else None,
        samples_seen_once=job.record.samples_seen_once(),
        segments=tuple(_segments(job)),
        forecasts=job.forecasts,
    )


def _segments(job: Evidence) -> Iterable[DemoSegment]:
    """Stretches on one set of devices, from their first batch's start to their last one's end."""
    for _, group in groupby(job.record.batches, key=lambda batch: batch.segment):
        batches: list[WitnessedBatch] = list(group)
        yield DemoSegment(
            devices=batches[0].devices,
            start_s=round(batches[0].at - batches[0].seconds - job.registered_at, 2),
            end_s=round(batches[-1].at - job.registered_at, 2),
            steps=len({batch.step for batch in batches}),
        )


def _losses(record: Record) -> Iterable[LossPoint]:
    """Loss against samples, thinned evenly: a mean over each stretch of batches."""
    width = max(1, len(record.batches) // MOST_LOSS_POINTS)
    samples = 0
    for _, group in groupby(enumerate(record.batches), key=lambda item: (item[0] // width, item[1].segment)):
        batches = [batch for _, batch in group]
        samples += sum(len(batch.samples) for batch in batches)
        losses = [batch.loss for batch in batches if batch.loss is not None]
        if losses:
            yield LossPoint(samples=samples, loss=sum(losses) / len(losses), devices=batches[0].devices)
