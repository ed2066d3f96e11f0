"""Forecasts as jobs make them, until their ends show what they were worth.

A report costs no disk write (decision 0009), so forecasts wait in memory and are stored a few
seconds later, many at once. The end of a job and the scores of its forecasts are one commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from selfsched.protocol import (
    Accepted,
    EndJob,
    ForecastScore,
    JobReport,
    Outcome,
)
from selfsched_broker.core import arbiter, past_forecasts
from selfsched_broker.core.books import Books, Change, Erase, PastForecast
from selfsched_broker.core.draft import Context, Decision
from selfsched_broker.core.past_forecasts import Moment


class ForecastLog:
    """Forecasts that are not stored yet, and the last one of each job.

    Everything is called one at a time, under the service's lock.

    Args:
        books: as they were read from the store.
    """

    def __init__(self, books: Books) -> None:
        self._waiting: dict[str, PastForecast] = {}
        self._first_at: dict[str, float] = {}
        self._last: dict[str, PastForecast] = {}
        for made in sorted(books.forecasts.values(), key=lambda made: made.number):
            self._remember(made)

    def note(self, books: Books, now: float, moment: Moment, job_id: str, report: JobReport) -> None:
        """Keep the forecast of a report where the last one is long enough ago."""
        job, last = books.jobs.get(job_id), self._last.get(job_id)
        if job is None or not job.live or report.forecast is None:
            return
        if not past_forecasts.is_due(last, self._first_at.get(job_id, now), now, report.fraction_done):
            return
        made = PastForecast(
            job=job_id, number=last.number + 1 if last else 1, name=job.name, account=job.account,
            made_at=now, boot=moment.boot, boot_at=moment.seconds, devices=tuple(books.devices_of(job_id)),
            fraction_done=report.fraction_done, forecast=report.forecast, width=report.forecast_width,
        )  # fmt: skip
        self._waiting[made.key] = made
        self._remember(made)

    def _remember(self, made: PastForecast) -> None:
        self._first_at.setdefault(made.job, made.made_at)
        self._last[made.job] = made

    # --- storing ---------------------------------------------------------------------

    def waiting(self) -> tuple[PastForecast, ...]:
        """What is to be stored."""
        return tuple(self._waiting.values())

    def settle(self, books: Books) -> None:
        """What is in the books waits no more."""
        self._waiting = {key: made for key, made in self._waiting.items() if key not in books.forecasts}

    def beyond_bounds(self, books: Books, now: float) -> tuple[Change, ...]:
        """What the books are to let go of: of jobs that ended without finishing, and what is too much."""
        orphans = {m.key for m in books.forecasts.values() if m.actual_seconds is None and _is_over(books, m)}
        for job in [job for job in self._last if job not in books.jobs or not books.jobs[job].live]:
            del self._last[job], self._first_at[job]
        self._waiting = {key: made for key, made in self._waiting.items() if not _is_over(books, made)}
        gone = orphans.union(past_forecasts.beyond_bounds(books.forecasts.values(), now))
        return tuple(Erase(kind=PastForecast, forgotten=key) for key in sorted(gone))

    # --- the end of a job --------------------------------------------------------------

    def end(
        self, books: Books, ctx: Context, job_id: str, message: EndJob, *, moment: Moment
    ) -> Decision[Accepted]:
        """End a job, and hold its forecasts against what came, in one decision."""
        decision = arbiter.end(books, ctx, job_id, message)
        if not books.jobs[job_id].live:
            return decision
        after = books.overlay()
        after.apply(decision.changes)
        changes: list[Change] = []
        over = replace(moment, seconds=moment.seconds - message.finished_ago_seconds)
        for made in self._of(books, lambda made: made.job == job_id and made.actual_seconds is None):
            told = past_forecasts.scored(after, made, over) if message.outcome is Outcome.FINISHED else None
            if told is not None:
                changes.append(told)
            elif made.key in books.forecasts:
                changes.append(Erase(kind=PastForecast, forgotten=made.key))
        return replace(decision, changes=(*decision.changes, *changes))

    # --- views -----------------------------------------------------------------------

    def scores(self, books: Books, now: float, moment: Moment, account: str) -> tuple[ForecastScore, ...]:
        """An account's forecasts, oldest first, and what came where that is known."""
        return past_forecasts.scores_of(self._of(books, lambda made: made.account == account), now, moment)

    def _of(self, books: Books, wanted: Callable[[PastForecast], bool]) -> list[PastForecast]:
        # What is in the books is never older than what waits.
        return [made for made in {**self._waiting, **books.forecasts}.values() if wanted(made)]


def _is_over(books: Books, made: PastForecast) -> bool:
    job = books.jobs.get(made.job)
    return job is None or not job.live
