"""Forecasts after the fact: which are kept, how they are held against what came, and for how long.

A job's own `as_now` forecasts are kept whenever it has come a tenth further, up to nine (or, where nobody
knows how far it is, a quarter of its life later), so that a long job says no more than a short
one. When the job finishes, each gets the time that really passed. A job that was stopped or
failed had no finish, and its forecasts are let go.

Broker time stands still while no broker runs, and the job goes on. So the time that really
passed is counted by the machine's own clock (`Moment`), over restarts of the broker; over a
restart of the machine it cannot be told, and is not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from selfsched.protocol import Forecast, ForecastScore, ForecastScores
from selfsched_broker.core.books import Books
from selfsched_broker.core.past_records import PastForecast

KEPT_SCORED = 200
"""Of an account: with ten of each job, those of some twenty jobs."""
KEPT_OPEN = 2000
"""Of an account's live jobs."""
KEPT_SECONDS = 180 * 86_400.0
FURTHER = 0.1
"""So much of the work later the next one is kept ..."""
LAST = 0.9
"""... up to here: what is left then is soon over, and mostly the end of processes."""
LATER = 0.25
"""Where no progress is known: so much of the life of the job later ..."""
LATER_SECONDS = 60.0
"""... and at least so long."""
LEAST_SECONDS = 1.0
_Z90 = 1.2815515655446004
_MOST_DEVIATIONS = 100.0
_LEAST_SIGMA = 1e-3
_RUNS, _RUN_FORECASTS = 64, 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """An instant by the machine's own clock, which runs whether a broker does or not."""

    boot: str
    """Names the run of the machine; empty: it cannot be told."""
    seconds: float

    def since(self, boot: str, seconds: float) -> float | None:
        """Seconds since another instant; None where it was in another run of the machine."""
        passed = self.seconds - seconds
        return passed if boot and boot == self.boot and passed >= 0 else None


def is_due(last: PastForecast | None, first_at: float, now: float, fraction_done: float) -> bool:
    """Whether a forecast is to be kept.

    Args:
        last: that was kept of the job.
        first_at: when the first one was, broker time.
        now: broker time.
        fraction_done: of the job.
    """
    if fraction_done > LAST:
        return False
    if last is None:
        return True
    since = now - last.made_at
    if since < LEAST_SECONDS:
        return False
    if fraction_done >= last.fraction_done + FURTHER:
        return True
    return fraction_done <= last.fraction_done and since >= max(LATER_SECONDS, LATER * (now - first_at))


def scored(after: Books, made: PastForecast, moment: Moment) -> PastForecast | None:
    """A forecast of a job that has just finished, with what came.

    Args:
        after: books in which the job has ended.
        made: the forecast.
        moment: now, by the machine's clock.

    Returns:
        None where it cannot be told how long it took.
    """
    actual = moment.since(made.boot, made.boot_at)
    if actual is None:
        return None
    job = after.jobs[made.job]
    later = any(lease.granted_at > made.made_at for lease in after.all_leases_of(made.job))
    kept = not later and tuple(job.last_devices) == made.devices
    return replace(made, actual_seconds=actual, kept_devices=kept)


def covered(made: PastForecast) -> bool | None:
    """Whether what came lay between the 10 and the 90 % quantile."""
    if made.actual_seconds is None:
        return None
    return made.forecast.p10_seconds <= made.actual_seconds <= made.forecast.p90_seconds


def beyond_bounds(kept: Iterable[PastForecast], now: float) -> tuple[str, ...]:
    """Keys of the forecasts to let go: too old, or too many of an account."""
    gone: list[str] = []
    of_account: dict[tuple[str, bool], list[PastForecast]] = defaultdict(list)
    for made in kept:
        if now - made.made_at > KEPT_SECONDS:
            gone.append(made.key)
        else:
            of_account[made.account, made.actual_seconds is None].append(made)
    for (_, is_open), group in of_account.items():
        surplus = len(group) - (KEPT_OPEN if is_open else KEPT_SCORED)
        if surplus > 0:
            gone += [made.key for made in sorted(group, key=_age)[:surplus]]
    return tuple(gone)


def scores_of(made: Iterable[PastForecast], now: float, moment: Moment) -> tuple[ForecastScore, ...]:
    """Forecasts for their owner, oldest first."""
    return tuple(
        ForecastScore(
            job=one.job,
            name=one.name,
            made_ago_seconds=_ago(one, now, moment),
            forecast=one.forecast,
            actual_seconds=one.actual_seconds,
            held=one.kept_devices,
            covered=covered(one),
        )
        for one in sorted(made, key=_age)
    )


def _ago(made: PastForecast, now: float, moment: Moment) -> float:
    passed = moment.since(made.boot, made.boot_at)
    return max(0.0, now - made.made_at) if passed is None else passed


def summary(books: Books, account: str, *, runs: bool = False) -> ForecastScores | None:
    """How an account's forecasts came out; None while none has.

    Args:
        books: as they are.
        account: whose.
        runs: each one's deviation too, for a job that calibrates itself.
    """
    past = [m for m in books.forecasts.values() if m.account == account and m.actual_seconds is not None]
    if not past:
        return None
    past.sort(key=_age)
    still = [made for made in past if made.kept_devices]
    return ForecastScores(
        made=len(past),
        held=sum(bool(covered(made)) for made in past),
        resized=len(past) - len(still),
        jobs=len({made.job for made in past}),
        runs=_runs(still) if runs else (),
    )


def _runs(still: Iterable[PastForecast]) -> tuple[tuple[float, ...], ...]:
    of_job: dict[str, list[float]] = defaultdict(list)
    for made in still:
        of_job[made.job].append(_deviation(made))
    return tuple(tuple(run[-_RUN_FORECASTS:]) for run in of_job.values())[-_RUNS:]


def _deviation(made: PastForecast) -> float:
    """In standard deviations of the side on which what came lay, as they were before recalibration."""
    assert made.actual_seconds is not None
    low, middle, high = map(_log, _quantiles(made.forecast))
    apart = _log(made.actual_seconds) - middle
    side = high - middle if apart > 0 else middle - low
    sigma = max(side / _Z90 / made.width, _LEAST_SIGMA)
    return min(max(apart / sigma, -_MOST_DEVIATIONS), _MOST_DEVIATIONS)


def _quantiles(forecast: Forecast) -> tuple[float, float, float]:
    return forecast.p10_seconds, forecast.p50_seconds, forecast.p90_seconds


def _log(seconds: float) -> float:
    return math.log(max(seconds, 1e-3))


def _age(made: PastForecast) -> tuple[float, str, int]:
    return made.made_at, made.job, made.number
