"""From evidence to the account: pure, so that a synthetic demo can be accounted for in a test.

Segments, steps, losses, samples and the speed-up come from the witness of each job; forecasts
and rho as the job and the broker stated them at the time. Instants in here are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median
from typing import Literal

from selfsched.demo.result import (
    MARKS,
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
class ForecastMade:
    """A forecast as it was stated at the time. Durations from `made_at` on."""

    made_at: float
    fraction_done: float
    devices: int
    assumption: Literal["as_now", "look_ahead"]
    p10_seconds: float
    p50_seconds: float
    p90_seconds: float


@dataclass(frozen=True)
class Evidence:
    """What is known of one job when the demo is over."""

    account: Account
    name: str
    registered_at: float
    ended_at: float
    finished: bool
    record: Record
    forecasts: tuple[ForecastMade, ...] = ()
    rho: tuple[tuple[float, float], ...] = ()
    """(instant, rho)."""
    reasons: tuple[str, ...] = ()
    steps: tuple[StepParts, ...] = field(default=())


def account_for(jobs: Sequence[Evidence]) -> DemoResult:
    """The account that `--json` prints."""
    records = [job.record for job in jobs]
    return DemoResult(
        jobs=tuple(_job(job) for job in jobs),
        speedup_two_devices=next(filter(None, map(speedup, records)), None),
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


def speedup(record: Record) -> float | None:
    """How many times faster a step is on two devices than on one; None: not both were seen."""
    one, two = record.step_seconds(1), record.step_seconds(2)
    if min(len(one), len(two)) < SHORTEST_SAMPLE:
        return None
    return round(median(one) / median(two), 3)


def _job(job: Evidence) -> DemoJob:
    segments = tuple(_segments(job))
    return DemoJob(
        name=job.name,
        account=job.account,
        finished=job.finished,
        rho=round(job.rho[-1][1], 4) if job.rho else None,
        samples_seen_once=job.record.samples_seen_once(),
        segments=segments,
        forecasts=tuple(_forecasts(job, segments)),
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


def _forecasts(job: Evidence, segments: Sequence[DemoSegment]) -> Iterable[DemoForecast]:
    """At each mark, the first forecast from there on, of either assumption, before the next mark."""
    for mark, end in zip(MARKS, (*MARKS[1:], 1.0), strict=True):
        for assumption in ("as_now", "look_ahead"):
            made = next(
                (made for made in sorted(job.forecasts, key=lambda made: made.made_at)
                 if made.assumption == assumption and mark <= made.fraction_done < end),
                None,
            )  # fmt: skip
            if made is not None:
                yield _forecast(job, segments, mark, made)


def _forecast(
    job: Evidence, segments: Sequence[DemoSegment], mark: float, made: ForecastMade
) -> DemoForecast:
    made_s = made.made_at - job.registered_at
    return DemoForecast(
        at=mark,
        made_at_s=round(made_s, 2),
        devices=made.devices,
        assumption=made.assumption,
        allocation_held=bool(segments) and segments[-1].devices == made.devices
        and segments[-1].start_s <= made_s,
        predicted_finish_s=round(made_s + made.p50_seconds, 2),
        low_s=round(made_s + made.p10_seconds, 2),
        high_s=round(made_s + made.p90_seconds, 2),
        actual_finish_s=round(job.ended_at - job.registered_at, 2),
    )  # fmt: skip


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
