"""`status` and `forecast`: one call of the client each, and its printing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfsched.client import BrokerClient
from selfsched.commands.connection import connect, find_job
from selfsched.commands.printing import console, plain, print_json, print_table
from selfsched.core.bidding import duration_words
from selfsched.protocol import ClusterView, Forecast, ForecastScore, ForecastScores, JobState, JobView, WhatIf


def forecast_words(forecast: Forecast | None) -> str:
    """When, as a range: `3 min (2 min 40 s to 4 min)`."""
    if forecast is None:
        return "not measured yet"
    low, middle, high = map(
        duration_words, (forecast.p10_seconds, forecast.p50_seconds, forecast.p90_seconds)
    )
    return middle if low == middle == high else f"{middle} ({low} to {high})"


def show_status(broker: str | None, *, as_json: bool) -> None:
    """My jobs and the cluster."""
    with connect(broker) as client:
        jobs, cluster, scores = client.jobs(), client.cluster(), client.account().forecast_scores
    if as_json:
        print_json(
            {"jobs": [_plain(job) for job in jobs], "cluster": _plain(cluster), "forecasts": _scores(scores)}
        )
        return
    if jobs:
        columns = ("job", "account", "state", "devices", "done", "finished in", "rho")
        ordered = sorted(jobs, key=_order)
        print_table("Jobs", columns, map(_job_row, ordered), names=("job", "account"))
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
    if scores is not None:
        console().print(f"{score_words(scores)}.")


def show_forecasts(broker: str | None, job: str | None, devices: tuple[int, ...], *, as_json: bool) -> None:
    """When the jobs in question end, and when on so many devices."""
    with connect(broker) as client:
        if job is not None:
            chosen = [find_job(client, job)]
        else:
            chosen = [found for found in client.jobs() if found.state is not JobState.ENDED]
        answers = [_forecasts_of(client, found, devices) for found in chosen]
        scores = client.account().forecast_scores
    if as_json:
        print_json({"forecasts": answers, "scores": _scores(scores)})
        return
    if not answers:
        console().print("You have no running or waiting jobs.")
    for answer in answers:
        rows = [(row["devices"], forecast_words(_forecast(row))) for row in answer["rows"]]
        print_table(str(plain(answer["name"])), ("devices", "finished in"), rows)
        if answer["reason"]:
            console().print(plain(answer["reason"]))
    console().print(f"{score_words(scores)}.")


def show_past_forecasts(broker: str | None, *, as_json: bool) -> None:
    """What was forecast before, and what came."""
    with connect(broker) as client:
        scores, summary = client.my_forecasts(), client.account().forecast_scores
    if as_json:
        print_json({"past": [_plain(score) for score in scores], "scores": _scores(summary)})
        return
    columns = ("job", "made", "forecast", "what came", "error", "held")
    print_table("Past forecasts", columns, map(_score_row, scores), names=("job",))
    console().print(f"{score_words(summary)}.")


def score_words(scores: ForecastScores | None) -> str:
    """`Of the last 40 forecasts 33 held (80 % expected); for 6 the devices changed meanwhile`."""
    if scores is None or not scores.made:
        return "No forecast has been held against an end yet"
    resized = f"; for {scores.resized} the devices changed meanwhile" if scores.resized else ""
    return f"Of the last {scores.made} forecasts {scores.held} held (80 % expected){resized}"


def _forecasts_of(client: BrokerClient, job: JobView, devices: tuple[int, ...]) -> dict[str, Any]:
    now = {"devices": len(job.devices), "forecast": _plain(job.forecast) if job.forecast else None}
    answer: dict[str, Any] = {"job": job.job, "name": job.name, "rows": [now], "reason": ""}
    if devices:
        found = client.what_if(WhatIf(job=job.job, devices=devices))
        answer["rows"] = [{"devices": n, "forecast": _plain(forecast)} for n, forecast in found.forecasts]
        answer["reason"] = found.reason
    return answer


def _forecast(row: dict[str, Any]) -> Forecast | None:
    return Forecast.model_validate(row["forecast"]) if row["forecast"] else None


def _order(job: JobView) -> tuple[bool, float]:
    return job.state is JobState.ENDED, job.age_seconds


def _job_row(job: JobView) -> Sequence[object]:
    ended = job.state is JobState.ENDED
    return (
        job.name,
        job.account,
        job.outcome if ended and job.outcome else job.state,
        _devices_words(job),
        f"{job.fraction_done:.0%}",
        "" if ended else forecast_words(job.forecast),
        "" if job.rho is None else f"{job.rho:.2f}",
    )


def _devices_words(job: JobView) -> str:
    wanted = f"{job.min_devices}-{job.max_devices}" if job.min_devices < job.max_devices else job.max_devices
    return f"{len(job.devices)} of {wanted}"


def _last_words(job: JobView) -> str:
    """`bert (vm/cpu0, vm/cpu1): grows to 2 of 2 devices`: below the table, where there is room."""
    names = ", ".join(device.id for device in job.devices)
    if not names and not job.reasons:
        return ""
    return job.name + (f" ({names})" if names else "") + (f": {job.reasons[-1]}" if job.reasons else "")


def _device_rows(cluster: ClusterView) -> list[Sequence[object]]:
    return [
        (device.id, device.model, device.state, device.account or "",
         duration_words(device.since_seconds))
        for device in cluster.devices
    ]  # fmt: skip


def _score_row(score: ForecastScore) -> Sequence[object]:
    actual = score.actual_seconds
    error = f"{abs(score.forecast.p50_seconds - actual) / actual:.0%}" if actual else ""
    came = "still running" if actual is None else duration_words(actual)
    held = {True: "yes", False: "no", None: ""}[score.covered]
    return (
        f"{score.name} ({score.job})" if score.name else score.job,
        f"{duration_words(score.made_ago_seconds)} ago",
        forecast_words(score.forecast),
        came,
        error,
        held + (" (devices changed)" if score.held is False else ""),
    )


def _scores(scores: ForecastScores | None) -> Any:
    return None if scores is None else _plain(scores)


def _plain(message: Any) -> Any:
    return message.model_dump(mode="json")
