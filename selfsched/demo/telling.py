"""The account of a demo in words, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from selfsched.core.bidding import duration_words
from selfsched.demo.result import DemoForecast, DemoJob, DemoStory

ERROR_WORDS = "error: how far the forecast was off, relative to the time that remained when it was made."
RHO_WORDS = (
    "rho: the time the job needs, relative to what it would need alone on its share of the devices; "
    "below 1 it gained by sharing."
)


def account_in_words(story: DemoStory) -> Iterator[str]:
    """What came of it, line by line."""
    yield ""
    for job in story.result.jobs:
        yield from _job_lines(job)
    if any(job.forecasts for job in story.result.jobs):
        yield ERROR_WORDS
    if any(job.rho is not None for job in story.result.jobs):
        yield RHO_WORDS
    speedup = story.result.speedup_two_devices
    if speedup is not None:
        yield f"A step on two devices was {speedup:.2f} times as fast as on one."
    for told in story.jobs:
        yield from (f"FAULT {told.account}: {fault}" for fault in told.sample_faults)
    if story.live_leases:
        yield f"FAULT {story.live_leases} devices are still leased."
    yield f"All of it took {duration_words(story.wall_s)}."


def _job_lines(job: DemoJob) -> Iterator[str]:
    end = "finished" if job.finished else "did NOT finish"
    rho = "" if job.rho is None else f", rho {job.rho:.2f}"
    samples = "every sample once an epoch" if job.samples_seen_once else "samples NOT once each"
    yield f"{job.account} ({job.name}) {end}{rho}; {samples}"
    for segment in job.segments:
        count = "1 device " if segment.devices == 1 else f"{segment.devices} devices"
        yield f"    {segment.start_s:6.1f} to {segment.end_s:6.1f} s on {count}, {segment.steps} steps"
    for forecast in job.forecasts:
        yield f"    {_forecast_words(forecast)}"


def _forecast_words(forecast: DemoForecast) -> str:
    assumption = "devices as now" if forecast.assumption == "as_now" else "broker's look-ahead"
    held = (
        "" if forecast.assumption == "look_ahead" or forecast.allocation_held else ", but the devices changed"
    )
    return (
        f"at {forecast.at:.0%}: finish at {forecast.predicted_finish_s:.0f} s "
        f"({forecast.low_s:.0f} to {forecast.high_s:.0f}, {assumption}); "
        f"came at {forecast.actual_finish_s:.0f} s, error {forecast.error():.0%}{held}"
    )
