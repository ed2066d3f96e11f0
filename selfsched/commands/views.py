"""`status`: what a client's calls tell, and its printing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from selfsched.commands.connection import connect
from selfsched.commands.forecast import scores_json
from selfsched.commands.printing import console, plain, print_json, print_table
from selfsched.commands.words import assumption_words, expected_start, forecast_words, score_words
from selfsched.core.bidding import duration_words
from selfsched.core.run_ends import job_state_words
from selfsched.protocol import ClusterView, Forecast, JobState, JobView


def show_status(broker: str | None, *, as_json: bool) -> None:
    """My jobs and the cluster."""
    with connect(broker) as client:
        jobs, cluster, scores = client.jobs(), client.cluster(), client.account().forecast_scores
    if as_json:
        print_json(
            {
                "jobs": [_plain(job) for job in jobs],
                "cluster": _plain(cluster),
                "forecasts": scores_json(scores),
            }
        )
        return
    if jobs:
        columns = ("job", "account", "state", "devices", "done", "finished in", "rho")
        ordered = sorted(jobs, key=_order)
        print_table(
            "Jobs", columns, map(_job_row, ordered), names=("job", "account"), words="finished in"
        )
        for job in ordered:
            if said := _last_words(job):
                console().print(plain(said))
    else:
        console().print("You have no jobs.")
    print_table(
        "Devices", ("device", "kind", "state", "held by", "since"), _device_rows(cluster),
        names=("device", "kind", "held by"),
    )  # fmt: skip
    console().print(
        f"{cluster.running_jobs} running, {cluster.waiting_jobs} waiting; "
        f"devices are auctioned in {duration_words(cluster.next_tick_seconds)} (policy {cluster.policy})."
    )
    if said := assumption_words(_shown(jobs), cluster.newcomers_per_hour):
        console().print(f"{said}.")
    if scores is not None:
        console().print(f"{score_words(scores)}.")


def _shown(jobs: Sequence[JobView]) -> Iterator[Forecast | None]:
    for job in jobs:
        if job.state is not JobState.ENDED:
            yield job.ends or job.forecast
            yield job.starts


def _order(job: JobView) -> tuple[bool, float]:
    return job.state is JobState.ENDED, job.age_seconds


def _job_row(job: JobView) -> Sequence[object]:
    ended = job.state is JobState.ENDED
    return (
        job.name,
        job.account,
        job_state_words(job),
        _devices_words(job),
        f"{job.fraction_done:.0%}",
        "" if ended else forecast_words(job.ends or job.forecast),
        "" if job.rho is None else f"{job.rho:.2f}",
    )


def _devices_words(job: JobView) -> str:
    wanted = f"{job.min_devices}-{job.max_devices}" if job.min_devices < job.max_devices else job.max_devices
    return f"{len(job.devices)} of {wanted}"


def _last_words(job: JobView) -> str:
    """`bert (vm/cpu0, vm/cpu1): grows to 2 of 2 devices`: below the table, where there is room."""
    names = ", ".join(device.id for device in job.devices)
    said = "; ".join(filter(None, (job.reasons[-1] if job.reasons else "", expected_start(job))))
    if not names and not said:
        return ""
    return job.name + (f" ({names})" if names else "") + (f": {said}" if said else "")


def _device_rows(cluster: ClusterView) -> list[Sequence[object]]:
    return [
        (device.id, device.model, device.state, device.account or "",
         duration_words(device.since_seconds))
        for device in cluster.devices
    ]  # fmt: skip


def _plain(message: Any) -> Any:
    return message.model_dump(mode="json")
