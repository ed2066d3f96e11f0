"""`forecast`: when jobs start and end: as things are, on other devices, without others, if they came now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from selfsched.client import BrokerClient
from selfsched.commands.connection import connect, find_job
from selfsched.commands.printing import console, plain, print_json, print_table
from selfsched.commands.words import assumption_words, forecast_words, score_words, start_words
from selfsched.core.bidding import duration_words
from selfsched.core.whole_run import (
    MOST_COUNTS,
    SPEED_EXPONENT,
    Times,
    WholeRun,
    run_by_hours,
    run_like,
    times_words,
)
from selfsched.errors import BrokerError, InvalidMessage, Refused
from selfsched.protocol import (
    Forecast,
    ForecastScore,
    ForecastScores,
    JobState,
    JobView,
    ProblemCode,
    WhatIf,
    WhatIfAnswer,
    WhatIfLine,
)

USUAL_MOST = 8
"""Devices that a job which does not exist may have, where the cluster has them and nothing is said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastRequest:
    """What is asked on the command line."""

    job: str | None = None
    devices: tuple[int, ...] = ()
    without: tuple[str, ...] = ()
    hours: float | None = None
    on: int | None = None
    most: int | None = None
    like: str | None = None

    @property
    def is_of_a_new_job(self) -> bool:
        """Whether it asks about a job that does not exist yet."""
        return self.hours is not None or self.like is not None

    def check(self) -> None:
        """Raises Refused where its parts contradict each other."""
        if self.hours is not None and self.like is not None:
            raise Refused("--hours and --like both say how long a job takes: give one of them")
        if self.job is not None and self.is_of_a_new_job:
            raise Refused("--hours and --like ask about a job that does not exist yet: leave JOB out")
        if self.hours is None and (self.on is not None or self.most is not None):
            raise Refused("--on and --most belong to --hours: say how long the job takes")
        if len(set(self.devices)) > MOST_COUNTS:
            raise Refused(f"--devices: at most {MOST_COUNTS} counts in one question")


class _Impossible(Refused):
    """The job has not bid for what is asked about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Told:
    """One table."""

    name: str
    lines: tuple[WhatIfLine, ...]
    """As things are, then by count."""
    by_bid: dict[int, Forecast]
    """If it had so many from now on."""
    reason: str = ""
    job: JobView | None = None
    is_measured: bool = True
    times: Times = ()
    """Of a job that does not exist yet."""
    newcomers_per_hour: float = 0.0
    """Others that are expected to come."""


def show_forecasts(broker: str | None, request: ForecastRequest, *, as_json: bool) -> None:
    """When the jobs in question start and end, as things are and as they might be.

    Raises:
        Refused: the question contradicts itself or names what is not there.
    """
    request.check()
    with connect(broker) as client:
        told = [_of_new_job(client, request)] if request.is_of_a_new_job else _of_jobs(client, request)
        if told and not any(one.reason for one in told):  # what stands in the views was not asked for
            per_hour = client.cluster().newcomers_per_hour
            told = [replace(one, newcomers_per_hour=per_hour) for one in told]
        scores = client.account().forecast_scores
    now = datetime.now().astimezone()
    if as_json:
        found = [_json(one, now) for one in told]
        print_json({"forecasts": found, "assumption": _assumption(told), "scores": scores_json(scores)})
        return
    if not told:
        console().print("You have no running or waiting jobs.")
    for one in told:
        _print(one, request, now)
    if said := _assumption(told):
        console().print(f"{said}.")
    console().print(f"{score_words(scores)}.")


def show_past_forecasts(broker: str | None, *, as_json: bool) -> None:
    """What was forecast before, and what came."""
    with connect(broker) as client:
        scores, summary = client.my_forecasts(), client.account().forecast_scores
    if as_json:
        past = [score.model_dump(mode="json") for score in scores]
        print_json({"past": past, "scores": scores_json(summary)})
        return
    columns = ("job", "made", "forecast", "what came", "error", "held")
    print_table("Past forecasts", columns, map(_score_row, scores), names=("job",))
    console().print(f"{score_words(summary)}.")


def scores_json(scores: ForecastScores | None) -> Any:
    """How forecasts came out, for `--json`."""
    return None if scores is None else scores.model_dump(mode="json")


# --- asking ------------------------------------------------------------------------------


def _of_jobs(client: BrokerClient, request: ForecastRequest) -> list[_Told]:
    if request.job is not None:
        chosen = [find_job(client, request.job)]
    else:
        chosen = [found for found in client.jobs() if found.state is not JobState.ENDED]
    if not request.devices and not request.without:
        return [_as_things_are(job) for job in chosen]
    ended = [job.name for job in chosen if job.state is JobState.ENDED]
    if ended:
        raise Refused(f"{ended[0]} has ended: there is nothing to forecast")
    without = _jobs_without(client, request.without)
    if request.job is not None and chosen[0].job in without:
        raise Refused(f"--without {chosen[0].name}: it is the job that is asked about")
    return [_what_if(client, job, request, without) for job in chosen if job.job not in without]


def _as_things_are(job: JobView) -> _Told:
    starts = job.starts if job.state is JobState.WAITING else None
    return _Told(
        name=job.name, job=job, lines=(WhatIfLine(starts=starts, ends=job.ends or job.forecast),), by_bid={}
    )


def _what_if(client: BrokerClient, job: JobView, request: ForecastRequest, without: tuple[str, ...]) -> _Told:
    try:
        answer = _ask(client, job=job.job, devices=_counts(request), without=without)
    except _Impossible as error:
        return replace(_as_things_are(job), reason=_unknown_words(job, str(error)))
    # A broker that plays nothing ahead still answers by the bid.
    lines = answer.ahead or (
        *_as_things_are(job).lines,
        *(WhatIfLine(devices=n) for n in _counts(request)),
    )
    return _Told(
        name=job.name, job=job, lines=lines, by_bid=dict(answer.forecasts), reason=answer.reason,
        is_measured=answer.is_measured, newcomers_per_hour=answer.newcomers_per_hour,
    )  # fmt: skip


def _unknown_words(job: JobView, said: str) -> str:
    if job.bid is not None and job.bid.rows:
        return said
    return f"{job.name} has not measured yet how fast it is on so many devices: ask again in a minute"


def _of_new_job(client: BrokerClient, request: ForecastRequest) -> _Told:
    name, run = _new_job(client, request)
    possible = run.possible(request.devices)
    odd = [n for n in request.devices if n not in possible]
    if odd:
        raise Refused(f"--devices {odd[0]}: {run.counts_words()}")
    without = _jobs_without(client, request.without)
    answer = _ask(client, seconds=run.times, doubts_log=run.doubts, devices=possible, without=without)
    return _Told(
        name=name, lines=answer.ahead, by_bid=dict(answer.forecasts), reason=answer.reason, times=run.times,
        newcomers_per_hour=answer.newcomers_per_hour,
    )  # fmt: skip


def _new_job(client: BrokerClient, request: ForecastRequest) -> tuple[str, WholeRun]:
    """(what it is called, what it takes) of a job that does not exist yet."""
    if request.like is not None:
        job = find_job(client, request.like)
        return f"A job like {job.name}, started now", run_like(job)
    hours, on, most = request.hours or 0.0, request.on or 1, request.most
    if most is None:
        most = max(on, min(USUAL_MOST, len(client.cluster().devices)))
    run = run_by_hours(hours, on, most, request.devices)
    return f"A job of {duration_words(hours * 3600)} on {on}, started now", run


def _counts(request: ForecastRequest) -> tuple[int, ...]:
    return tuple(dict.fromkeys(request.devices))


def _jobs_without(client: BrokerClient, wanted: Sequence[str]) -> tuple[str, ...]:
    """Ids of jobs for their names; what is no job that we see is taken for an account."""
    if not wanted:
        return ()
    live = [job for job in client.jobs() if job.state is not JobState.ENDED]
    found: list[str] = []
    for name in wanted:
        named = [job for job in live if name in (job.job, job.name)]
        found.append(min(named, key=lambda job: job.age_seconds).job if named else name)
    return tuple(dict.fromkeys(found))


def _ask(client: BrokerClient, **question: Any) -> WhatIfAnswer:
    try:
        asked = WhatIf(**question)
    except ValidationError as error:
        fields = ", ".join(dict.fromkeys(str(fault["loc"][0]) for fault in error.errors() if fault["loc"]))
        raise Refused(f"--{fields}: too many, too large, or no name of a job or an account") from None
    try:
        return client.what_if(asked)
    except InvalidMessage:
        raise
    except Refused as error:
        raise _Impossible(str(error)) from error
    except BrokerError as error:
        if error.code == ProblemCode.NOT_FOUND:  # a name of the user's, of a job or an account
            raise Refused(str(error)) from error
        raise


# --- telling -----------------------------------------------------------------------------


def _print(told: _Told, request: ForecastRequest, now: datetime) -> None:
    columns = ["devices", "starts", "finished in", "finished at"]
    rows = [[*_line(told, line), clock_words(line.ends, now)] for line in told.lines]
    if any(line.devices in told.by_bid for line in told.lines):
        columns.append("if it had them from now on")
        for row, line in zip(rows, told.lines, strict=True):
            here = told.by_bid.get(line.devices) if line.devices is not None else None
            row.append(forecast_words(here) if here is not None else "")
    print_table(told.name, columns, rows)
    if request.without:
        console().print(plain(f"As if these had ended: {', '.join(request.without)}."))
    if told.times:
        source = "" if request.like else f" Its speed is taken to go with devices^{SPEED_EXPONENT}."
        console().print(f"It would take {times_words(told.times)}.{source}")
    if any(_waits_first(told, line) for line in told.lines):
        console().print("What would have to wait for its devices is finished later than on those it has.")
    if not told.is_measured:
        console().print("It has not measured itself yet: its times are a guess.")
    if told.reason:
        console().print(plain(told.reason))


def _waits_first(told: _Told, line: WhatIfLine) -> bool:
    """Whether more devices would end a job that has some later, for want of them now."""
    if told.job is None or not told.job.devices or line.devices is None or line.ends is None:
        return False
    now = told.lines[0].ends
    waits = line.starts is not None and line.starts.p50_seconds >= 1
    return now is not None and waits and line.ends.p50_seconds > now.p50_seconds


def _line(told: _Told, line: WhatIfLine) -> list[str]:
    what = "as things are" if line.devices is None else str(line.devices)
    if told.job is not None and told.job.devices and line.devices is None:
        starts = "has devices"
    elif told.job is not None and line.starts is None and line.devices is None:
        starts = "not known yet"
    else:
        starts = start_words(line.starts)
    never = line.starts is None and (told.job is None or line.devices is not None)
    return [what, starts, "" if never else forecast_words(line.ends)]


def _assumption(told: Sequence[_Told]) -> str:
    """What the ranges of all lines assume."""
    lines = [line for one in told for line in one.lines]
    by_bid = [forecast for one in told for forecast in one.by_bid.values()]
    forecasts = [*(line.starts for line in lines), *(line.ends for line in lines), *by_bid]
    return assumption_words(forecasts, max((one.newcomers_per_hour for one in told), default=0.0))


def clock_words(forecast: Forecast | None, now: datetime) -> str:
    """When the median is, by the clock: `14:05`, `Thu 14:05` within six days, `2031-01-02 14:05` later."""
    if forecast is None:
        return ""
    at = (now + timedelta(seconds=forecast.p50_seconds)).astimezone(now.tzinfo)
    if at.date() == now.date():
        return f"{at:%H:%M}"
    return f"{at:%a %H:%M}" if at - now < timedelta(days=6) else f"{at:%Y-%m-%d %H:%M}"


def _json(told: _Told, now: datetime) -> dict[str, Any]:
    by_bid: list[tuple[int, Forecast | None]] = list(told.by_bid.items())
    if not by_bid and told.job is not None:
        by_bid = [(len(told.job.devices), told.job.forecast)]
    return {
        "job": told.job.job if told.job else None,
        "name": told.name,
        "rows": [{"devices": n, "forecast": one.model_dump() if one else None} for n, one in by_bid],
        "ahead": [{**line.model_dump(), "finished_at": _instant(line.ends, now)} for line in told.lines],
        "is_measured": told.is_measured,
        "seconds": [list(time) for time in told.times],
        "reason": told.reason,
    }


def _instant(forecast: Forecast | None, now: datetime) -> str | None:
    if forecast is None:
        return None
    return (now + timedelta(seconds=forecast.p50_seconds)).isoformat(timespec="seconds")


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
