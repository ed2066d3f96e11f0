"""Which forecasts are kept, how they are held against what came, and what is said of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from broker.driver import Driver, bid

from selfsched.protocol import Accepted, EndJob, Forecast, JobReport, JobState, Outcome
from selfsched_broker.core import past_forecasts
from selfsched_broker.core.books import Books, Broker, PastForecast
from selfsched_broker.core.draft import Decision
from selfsched_broker.core.past_forecasts import Moment, beyond_bounds, is_due, scores_of, summary
from selfsched_broker.core.views import account_view
from selfsched_broker.forecasts import ForecastLog

SOON = Forecast(p10_seconds=80, p50_seconds=100, p90_seconds=125, assumption="as_now")


def made(number: int, **changes: Any) -> PastForecast:
    values: dict[str, Any] = {
        "job": "job-1", "number": number, "name": "x", "account": "ann", "made_at": float(number),
        "boot": "b", "boot_at": float(number), "devices": ("n/cpu0",), "fraction_done": 0.1 * number,
        "forecast": SOON,
    }  # fmt: skip
    return PastForecast(**(values | changes))


@pytest.mark.parametrize(
    ("now", "fraction", "due"),
    [
        (10.5, 0.9, False),  # a moment later
        (20.0, 0.55, False),
        (20.0, 0.6, True),  # a tenth further
        (69.0, 0.5, False),
        (70.0, 0.5, True),  # a minute, and nobody knows how far it is
        (5000.0, 0.55, False),
        (5000.0, 0.95, False),  # it is soon over
    ],
)
def test_a_forecast_is_kept_where_the_job_has_come_further(now: float, fraction: float, due: bool) -> None:
    assert is_due(made(10, fraction_done=0.5), 0.0, now, fraction) is due


def test_without_progress_they_become_fewer_as_the_job_grows_old() -> None:
    now, last, kept = 0.0, None, 0
    while now < 30 * 86_400.0:
        if is_due(last, 0.0, now, 0.0):
            last, kept = made(1, made_at=now, fraction_done=0.0), kept + 1
        now += 10.0
    assert 10 < kept < 80


class Lab:
    """A broker's core with a log of forecasts, on a virtual clock."""

    def __init__(self, boot: str = "b") -> None:
        self.driver = Driver()
        self.driver.node()
        self.log = ForecastLog(self.driver.books)
        self.boot = boot
        self.away = 0.0
        """Seconds of the machine's clock that the broker's did not count."""

    @property
    def moment(self) -> Moment:
        return Moment(boot=self.boot, seconds=self.driver.now + self.away)

    def start(self, account: str = "ann", **wishes: Any) -> str:
        job = self.driver.register(account, **wishes)
        self.driver.report(job, bid=bid(100.0, 60.0))
        return job

    def forecast(self, job: str, fraction: float, forecast: Forecast = SOON) -> None:
        report = JobReport(
            incarnation=1, sequence=1, state=JobState.RUNNING, fraction_done=fraction, forecast=forecast
        )
        self.log.note(self.driver.books, self.driver.now, self.moment, job, report)

    def store(self) -> None:
        books = self.driver.books
        erased = self.log.beyond_bounds(books, self.driver.now)
        books.apply([*erased, *self.log.waiting()])
        self.log.settle(books)

    def end(self, job: str, outcome: Outcome = Outcome.FINISHED, *, ago: float = 0.0) -> None:
        moment = self.moment

        def call(books: Books, ctx: Any, *arguments: Any) -> Decision[Accepted]:
            return self.log.end(books, ctx, *arguments, moment=moment)

        self.driver.do(call, job, EndJob(outcome=outcome, finished_ago_seconds=ago))

    def scores(self, account: str = "ann") -> list[tuple[Any, ...]]:
        found = self.log.scores(self.driver.books, self.driver.now, self.moment, account)
        return [(s.actual_seconds, s.held, s.covered) for s in found]


def test_a_forecast_is_scored_by_what_came() -> None:
    lab = Lab()
    job = lab.start(most=1)
    lab.forecast(job, 0.1)
    lab.forecast(job, 0.15)
    assert lab.scores() == [(None, None, None)]
    lab.store()
    lab.driver.live(110.0)
    lab.forecast(job, 0.9)
    lab.driver.live(20.0)
    lab.end(job)
    assert lab.scores() == [(130.0, True, False), (20.0, True, False)]
    assert lab.scores("bob") == []


def test_what_came_after_the_trainings_own_end_is_not_in_the_score() -> None:
    lab = Lab()
    job = lab.start(most=1)
    lab.forecast(job, 0.1)
    lab.driver.live(130.0)
    lab.end(job, ago=20.0)
    assert lab.scores() == [(110.0, True, True)]


def test_a_resize_is_said() -> None:
    lab = Lab()
    job = lab.start(most=1)
    lab.driver.books.apply([made(1, job=job, devices=("n/cpu0", "n/cpu1"), boot_at=lab.moment.seconds)])
    lab.driver.live(100.0)
    lab.end(job)
    assert lab.scores() == [(100.0, False, True)]


def test_time_without_a_broker_counts_for_the_job() -> None:
    lab = Lab()
    job = lab.start()
    lab.forecast(job, 0.1)
    lab.store()
    lab.log = ForecastLog(lab.driver.books)  # the broker after a restart
    lab.away = 50.0
    lab.driver.live(50.0)
    lab.end(job)
    assert lab.scores() == [(100.0, True, True)]


def test_over_a_restart_of_the_machine_nothing_is_claimed() -> None:
    lab = Lab()
    job = lab.start()
    lab.forecast(job, 0.1)
    lab.store()
    lab.boot = "another"
    lab.end(job)
    assert lab.scores() == []


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.FAILED])
@pytest.mark.parametrize("stored", [True, False])
def test_a_job_that_did_not_finish_scores_nothing(outcome: Outcome, stored: bool) -> None:
    lab = Lab()
    job = lab.start()
    lab.forecast(job, 0.1)
    if stored:
        lab.store()
    lab.end(job, outcome)
    lab.store()
    assert lab.scores() == []
    assert not lab.driver.books.forecasts


def test_the_end_said_twice_scores_once() -> None:
    lab = Lab()
    job = lab.start()
    lab.forecast(job, 0.1)
    lab.driver.live(100.0)
    lab.end(job)
    lab.driver.live(100.0)
    lab.end(job)
    lab.store()
    assert lab.scores() == [(100.0, True, True)]


def test_a_lost_jobs_forecasts_are_let_go() -> None:
    lab = Lab()
    job = lab.start()
    lab.forecast(job, 0.1)
    lab.store()
    lab.driver.end(job, Outcome.LOST)  # not by its own word
    lab.store()
    assert lab.scores() == []


def test_they_are_bounded_in_number_and_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_forecasts, "KEPT_SCORED", 3)
    monkeypatch.setattr(past_forecasts, "KEPT_OPEN", 2)
    old = made(0, made_at=-past_forecasts.KEPT_SECONDS)
    scored = [made(n, actual_seconds=100.0, kept_devices=True) for n in range(1, 6)]
    others = [made(n, account="bob", job="job-2", actual_seconds=1.0, kept_devices=True) for n in (1, 2)]
    still = [made(n, job="job-3") for n in range(1, 5)]
    gone = beyond_bounds([old, *scored, *others, *still], 10.0)
    assert set(gone) == {"job-1/0", "job-1/1", "job-1/2", "job-3/1", "job-3/2"}


def test_an_account_is_told_how_many_held_and_how_many_were_resized() -> None:
    books = Books(broker=Broker(incarnation=1))
    spread = math.log(125 / 80) / (2 * 1.2815515655446004)
    books.apply(
        [
            made(1, actual_seconds=100.0, kept_devices=True),
            made(2, actual_seconds=100 * math.exp(2 * spread), kept_devices=True),
            made(3, actual_seconds=300.0, kept_devices=False),
            made(4),
            made(
                1, job="job-2", width=2.0, actual_seconds=100 * math.exp(-2 * spread), kept_devices=True
            ),
            made(5, account="bob", actual_seconds=1.0, kept_devices=True),
        ]
    )
    found = summary(books, "ann", runs=True)
    assert found is not None
    assert (found.made, found.held, found.resized, found.jobs) == (4, 1, 1, 2)
    assert found.runs == (pytest.approx((0.0, 2.0)), pytest.approx((-4.0,)))
    plain = summary(books, "ann")
    assert plain is not None
    assert plain.runs == ()
    assert summary(books, "eve") is None


def test_a_forecast_without_a_width_has_a_bounded_deviation() -> None:
    books = Books(broker=Broker(incarnation=1))
    sure = Forecast(p10_seconds=0, p50_seconds=0, p90_seconds=0, assumption="as_now")
    books.apply([made(1, forecast=sure, actual_seconds=1e9, kept_devices=True)])
    found = summary(books, "ann", runs=True)
    assert found is not None
    assert found.runs == ((100.0,),)


def test_the_score_stands_in_the_accounts_view() -> None:
    lab = Lab()
    job = lab.start()
    assert account_view(lab.driver.books, "ann").forecast_scores is None
    lab.forecast(job, 0.1)
    lab.driver.live(100.0)
    lab.end(job)
    found = account_view(lab.driver.books, "ann").forecast_scores
    assert found is not None
    assert (found.made, found.held) == (1, 1)


def test_scores_are_oldest_first() -> None:
    found = scores_of([made(3), made(1), made(2)], 10.0, Moment(boot="b", seconds=100.0))
    assert [score.made_ago_seconds for score in found] == [99.0, 98.0, 97.0]
    another = scores_of([made(3)], 10.0, Moment(boot="c", seconds=100.0))
    assert another[0].made_ago_seconds == 7.0
    assert found[0].name == "x"
