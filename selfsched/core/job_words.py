"""What a job's model says to a reader: where its time goes, what limits it, what others would bring."""

from __future__ import annotations

from selfsched.core.bidding import (
    Explanation,
    aside_words,
    devices_words,
    duration_words,
    limit_words,
    saving_words,
)
from selfsched.core.events import DevicesObserved
from selfsched.core.job_knowledge import JobKnowledge
from selfsched.core.job_times import JobTimes

MOST_POINTS = 256
"""Of the scaling curve."""


def explanation(
    known: JobKnowledge, devices: int, now: float, *, observed: DevicesObserved | None = None
) -> Explanation:
    """The model for a reader: parts of a step, points, curve with band, words.

    Args:
        known: what the job has learned.
        devices: it has; 0: none now, and it is told of those of which most is known.
        now: CLOCK_BOOTTIME seconds.
        observed: what its devices were last seen to do.
    """
    steps, model = known.steps, known.steps.model()
    here = devices or max(
        steps.counts, key=lambda count: steps.series(count).steady, default=known.range[0]
    )
    counts = sorted(set(known.allowed_devices) | set(steps.counts))[:MOST_POINTS]
    return Explanation(
        devices=here,
        parts=steps.series(here).part_means(),
        measured=tuple(model.at(count) for count in sorted(model.seen)) if model else (),
        curve=model.curve(counts) if model else (),
        steps={count: steps.series(count).steady for count in steps.counts},
        restart_parts=known.restart.parts(steps.gradient_bytes),
        words=_words(known, here, now, observed),
    )


def _words(
    known: JobKnowledge, devices: int, now: float, observed: DevicesObserved | None
) -> tuple[str, ...]:
    step = known.steps.step(devices)
    if step is None:
        return ("No step has been measured yet.",)
    series, done = known.steps.series(devices), known.ledger.all_done
    cycle_seconds = series.cycles.mean if series.cycles.count else step.seconds
    whole = JobTimes(known).whole(devices)
    words = [f"A step takes {duration_words(step.seconds)} on {devices_words(devices)}."]
    words += limit_words(series.part_means(), devices, cycle_seconds)
    words += aside_words(known.ledger.seconds_aside(), whole.median_seconds if whole else 0.0)
    words += _savings(known, devices, now)
    drift = None if done else series.drift()
    if drift is not None:
        words.append(drift.words(observed))
    words += known.memory.words(known.dividing)
    if known.ledger.has_no_known_limit and not known.ledger.finished:
        words.append("The length of an epoch is unknown until one has been seen.")
    elif known.ledger.early_stopping:
        words.append(known.ledger.stopping_words())
    return tuple(words)


def _savings(known: JobKnowledge, devices: int, now: float) -> tuple[str, ...]:
    """What other device counts would bring, or would have brought."""
    times, done = JobTimes(known), known.ledger.all_done
    here = times.whole(devices) if done else times.work(devices, devices, now)
    others = {}
    for count in known.allowed_devices:
        there = times.whole(count) if done else times.work(count, devices, now)
        if count != devices and there is not None:
            others[count] = (there, 0.0 if done else times.move_seconds(devices, count))
    if here is None or here.median_seconds <= 0:
        return ()
    return saving_words(here, others, in_hindsight=done)
