"""The learner: what is stored when, when it fits, and what happens when a fit fails or must stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from broker.live_broker import StandInAgent
from broker.service.test_service import FragileStore
from broker.spoken_steps import entry, past_leases, said
from pydantic import TypeAdapter

from selfsched.core.performance import documented_prior
from selfsched.protocol import (
    EndJob,
    Forecast,
    HardwarePrior,
    JobRegistered,
    JobReport,
    JobState,
    Outcome,
    RegisterJob,
    StepStatistics,
)
from selfsched_broker import fitting
from selfsched_broker.core import arbiter
from selfsched_broker.core.books import Books, JobEvidence
from selfsched_broker.core.draft import Context, Decision, Draft
from selfsched_broker.core.evidence import KEPT_JOBS
from selfsched_broker.core.lessons import Lesson, learn
from selfsched_broker.core.policies import policy_named
from selfsched_broker.desk import Desk
from selfsched_broker.fitting import FitFailed, FitStopped, fit_apart
from selfsched_broker.identity import Caller
from selfsched_broker.learning import Learner
from selfsched_broker.service import Rules, Service
from selfsched_broker.store.memory import MemoryDisk

ANN, BOB = Caller(account="ann"), Caller(account="bob")
HARDWARE = "Tesla-V100"


@dataclass
class Fits:
    """Stands in for the fit: what it was shown, and what it does."""

    seen: list[Sequence[JobEvidence]] = field(default_factory=list)
    fails: bool = False

    def __call__(self, evidence: Sequence[JobEvidence], stop: threading.Event) -> tuple[Lesson, ...]:
        self.seen.append(evidence)
        if self.fails:
            raise FitFailed("the fit ended with -11")
        prior = documented_prior(HARDWARE).model_copy(update={"jobs": len(evidence)})
        return (Lesson(prior=prior, jobs=tuple(job.key for job in evidence)),)


class House:
    """A desk on a store, its clock in a test's hand, and a learner whose thread is not started."""

    def __init__(self, store: Any = None, fit: Any = None) -> None:
        self.now = 0.0
        self.store = store or FragileStore()
        self.fits = fit or Fits()
        rules = Rules(policy=policy_named("themis"))
        self.service = Service(self.store, rules, monotonic=lambda: self.now)
        self.desk = Desk(self.service)
        self.learner = Learner(
            self.service, self.desk.forecasts, every_seconds=60.0, fit=self.fits, monotonic=lambda: self.now
        )
        self.desk.learner = self.learner
        self.sequences = 0
        self.service.perform(arbiter.node_report, "here", StandInAgent().report())

    @property
    def books(self) -> Books:
        return self.service.books

    def job(self, caller: Caller = ANN, name: str = "train", *, leased: bool = True) -> str:
        """A job that was on one, two and four devices of `HARDWARE`, or that never had any."""
        self.sequences += 1
        answer = self.desk.register(caller, RegisterJob(name=name), key=f"k{self.sequences}")
        assert isinstance(answer, JobRegistered)
        if leased:
            self.lease(answer.job)
        return answer.job

    def lease(self, job: str, **fields: Any) -> None:
        def decide(books: Books, ctx: Context) -> Decision[None]:
            draft = Draft(books, ctx)
            draft.put(*past_leases(books, job, **fields))
            return draft.finish(lambda _: None)

        self.service.perform(decide)

    def report(self, job: str, caller: Caller = ANN, **fields: Any) -> None:
        self.sequences += 1
        message = JobReport(incarnation=1, sequence=self.sequences, **{"state": JobState.WAITING, **fields})
        self.desk.report(caller, job, message)

    def speak(self, job: str, statistics: Sequence[StepStatistics], caller: Caller = ANN) -> None:
        self.report(job, caller, statistics=tuple(statistics))

    def later(self, seconds: float = 3.0) -> None:
        self.now += seconds
        self.learner.store()
        self.learner.learn()


def test_a_report_costs_no_write_and_what_it_said_is_stored_soon_after() -> None:
    house = House()
    job = house.job()
    house.report(job)  # its first, which is durable
    before = house.store.commits
    forecast = Forecast(p10_seconds=1, p50_seconds=2, p90_seconds=3, assumption="as_now")
    house.report(job, statistics=said(2e9), forecast=forecast)
    assert house.store.commits == before
    house.learner.store()
    assert house.store.commits == before + 1
    assert set(house.books.evidence) == {"ann/train"}
    assert set(house.books.forecasts) == {f"{job}/1"}
    house.learner.store()
    assert house.store.commits == before + 1


def test_the_last_word_of_a_job_counts_too() -> None:
    house = House()
    message = EndJob(outcome=Outcome.FINISHED, statistics=said(2e9))
    house.desk.end(ANN, house.job(), message, key="k")
    house.learner.store()
    assert set(house.books.evidence) == {"ann/train"}


def test_a_full_disk_loses_nothing_and_holds_up_no_report() -> None:
    house = House()
    job = house.job()
    house.report(job)
    house.store.full = True
    house.speak(job, said(2e9))
    house.learner.store()
    assert not house.books.evidence
    house.store.full = False
    house.learner.store()
    assert set(house.books.evidence) == {"ann/train"}


def test_it_fits_when_there_is_something_new_and_not_more_often() -> None:
    house = House()
    job = house.job()
    house.later()
    assert house.fits.seen == []
    house.speak(job, said(2e9))
    house.later()
    assert len(house.fits.seen) == 1
    house.later(1000.0)
    assert len(house.fits.seen) == 1  # nothing new
    house.speak(job, said(2e9, steps=110))
    house.later(1000.0)
    assert len(house.fits.seen) == 1  # hardly anything new
    house.speak(job, said(2e9, steps=1000))
    house.later()
    assert len(house.fits.seen) == 2
    house.speak(job, said(2e9, steps=10_000))
    house.later(30.0)
    assert len(house.fits.seen) == 2  # too soon
    house.later(30.0)
    assert len(house.fits.seen) == 3


def test_a_fit_that_fails_is_logged_and_tried_again_and_the_last_good_prior_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House()
    job = house.job()
    house.speak(job, said(2e9))
    house.later()
    good = house.desk.prior(BOB, HARDWARE)
    assert good.jobs == 1
    house.fits.fails = True
    house.speak(house.job(name="other"), said(3e9))
    with caplog.at_level(logging.WARNING):
        house.later(60.0)
    assert "the fit ended with -11" in caplog.text
    assert house.desk.prior(BOB, HARDWARE) == good
    seen = len(house.fits.seen)
    house.later(60.0)
    assert len(house.fits.seen) == seen  # it waits longer now
    house.fits.fails = False
    house.later(60.0)
    assert house.desk.prior(BOB, HARDWARE).jobs == 2


def test_a_restarted_broker_serves_what_was_learned_and_fits_nothing_anew() -> None:
    disk = MemoryDisk()
    house = House(FragileStore(disk))
    house.speak(house.job(), said(2e9))
    house.later()
    again = House(FragileStore(disk))
    assert again.desk.prior(BOB, HARDWARE).jobs == 1
    again.later(1000.0)
    assert again.fits.seen == []


def test_a_job_that_reports_again_and_again_counts_once_and_not_in_its_own_prior() -> None:
    house = House(fit=lambda evidence, stop: learn(evidence))
    job, other = house.job(), house.job(BOB, "other")
    for steps in (20, 60, 200):
        house.speak(job, said(2e9, steps=steps))
        house.later(60.0)
    assert house.desk.prior(BOB, HARDWARE).jobs == 1
    assert house.desk.prior(ANN, HARDWARE, job=job) == documented_prior(HARDWARE)
    assert house.desk.prior(BOB, HARDWARE, job=other).jobs == 1
    house.speak(other, said(2e9), BOB)
    house.later(60.0)
    assert house.desk.prior(ANN, HARDWARE).jobs == 2
    assert house.desk.prior(ANN, HARDWARE, job=job).jobs == 1
    # Submitted again under its name it goes on with what it measured, and is the same job.
    again = house.job()
    assert house.desk.prior(ANN, HARDWARE, job=again).jobs == 1


def test_a_prior_has_nobodys_name_nor_figures_of_one_job_in_it() -> None:
    house = House(fit=lambda evidence, stop: learn(evidence))
    marked = tuple(s.model_copy(update={"gradient_bytes": 123_456_789}) for s in said(2e9))
    for caller, name in ((ANN, "secret-a"), (BOB, "secret-b")):
        house.speak(house.job(caller, name), marked, caller)
    house.later()
    for prior in (house.desk.prior(ANN, HARDWARE), house.desk.prior(BOB, HARDWARE)):
        text = prior.to_json()
        for word in ("ann", "bob", "secret", "job-", "123456789"):
            assert word not in text
        assert set(HardwarePrior.model_fields) == set(prior.model_dump())


def test_what_a_job_says_of_devices_it_never_had_is_not_believed() -> None:
    house = House(fit=lambda evidence, stop: learn(evidence))
    house.speak(house.job(), said(2e9))
    house.later()
    learned = house.desk.prior(BOB, HARDWARE)
    assert learned.jobs == 1
    waiting = house.job(BOB, "liar", leased=False)
    house.speak(waiting, said(1e6), BOB)
    house.speak(waiting, said(1e6, hardware="made-up"), BOB)
    house.later(60.0)
    assert set(house.books.evidence) == {"ann/train"}
    assert house.desk.prior(BOB, HARDWARE) == learned
    assert house.desk.prior(BOB, "made-up") == documented_prior("made-up")
    # Two devices once, and it is heard of those two.
    house.lease(waiting, counts=(2,))
    house.speak(waiting, [*said(1e6), *said(1e6, hardware="made-up")], BOB)
    house.later(60.0)
    assert [(s.hardware, s.placement.devices) for s in house.books.evidence["bob/liar"].statistics] == [
        (HARDWARE, 2)
    ]


def test_a_flood_of_invented_hardware_leaves_no_trace() -> None:
    house = House(fit=lambda evidence, stop: learn(evidence))
    house.speak(house.job(), said(2e9))
    liar = house.job(BOB, "liar", leased=False)
    for number in range(0, 300, 4):
        fakes = [entry(n, 0.1 / n, hardware=f"fake{number + k}") for k in range(4) for n in (1, 2)]
        house.speak(liar, fakes, BOB)
        house.later(1.0)
    house.later(60.0)
    assert {p.hardware for p in house.books.priors.values()} == {HARDWARE}


def test_under_its_name_a_job_goes_on_with_what_it_was_leased_before() -> None:
    house = House()
    first = house.job()
    house.desk.end(ANN, first, EndJob(outcome=Outcome.FINISHED), key=None)
    house.speak(house.job(leased=False), said(2e9))
    house.speak(house.job(BOB, leased=False), said(2e9), BOB)  # of the same name, and another's
    house.later()
    assert set(house.books.evidence) == {"ann/train"}


def rename_jobs(books: Books, ctx: Context) -> Decision[None]:
    draft = Draft(books, ctx)
    draft.put(*(replace(job, name="renamed") for job in books.jobs.values()))
    return draft.finish(lambda _: None)


def test_what_was_believed_once_is_renewed_when_the_leases_are_long_forgotten() -> None:
    house = House()
    house.speak(house.job(), said(2e9))
    house.later()
    house.service.perform(rename_jobs)  # as if no job of this name were left in the books
    house.speak(house.job(leased=False), said(2e9, steps=1000, counts=(1, 2, 4, 8)))
    house.later()
    counted = {s.placement.devices: s.log_step.count for s in house.books.evidence["ann/train"].statistics}
    assert counted == {1: 1000, 2: 1000, 4: 1000}


def test_a_flood_of_jobs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfsched_broker.core.evidence.KEPT_JOBS", 5)
    assert KEPT_JOBS > 5
    house = House()
    for number in range(9):
        house.speak(house.job(name=f"j{number}"), said(2e9))
        house.later(1.0)
    assert set(house.books.evidence) == {f"ann/j{n}" for n in range(4, 9)}


def test_a_new_job_of_the_account_is_told_how_earlier_forecasts_came_out() -> None:
    house = House()
    job = house.job()
    forecast = Forecast(p10_seconds=0, p50_seconds=1, p90_seconds=3600, assumption="as_now")
    house.report(job, forecast=forecast, forecast_width=1.5)
    house.desk.end(ANN, job, EndJob(outcome=Outcome.FINISHED), key=None)
    answer = house.desk.register(ANN, RegisterJob(name="next"), key="next")
    assert isinstance(answer, JobRegistered)
    assert answer.forecast_scores is not None
    assert (answer.forecast_scores.made, answer.forecast_scores.held) == (1, 1)
    assert [len(run) for run in answer.forecast_scores.runs] == [1]
    stranger = house.desk.register(BOB, RegisterJob(name="next"), key="next")
    assert isinstance(stranger, JobRegistered)
    assert stranger.forecast_scores is None
    assert house.desk.scores(BOB) == ()


# --- the fit's own process -----------------------------------------------------------


EVIDENCE = [
    JobEvidence(account=a, name="n", at=1.0, fresh_at=1.0, fresh_steps=300, statistics=said(2e9))
    for a in ("ann", "bob")
]


def pretend(monkeypatch: pytest.MonkeyPatch, *program: str) -> None:
    """Have another program run in the place of the fit."""
    real = fitting.subprocess.Popen
    monkeypatch.setattr(
        fitting.subprocess, "Popen", lambda command, **options: real(["/bin/sh", "-c", *program], **options)
    )


@pytest.mark.slow
def test_a_fit_apart_gives_the_same_as_here_and_sees_no_names() -> None:
    found = fit_apart(EVIDENCE, threading.Event())
    expected = learn(EVIDENCE)
    assert [(x.prior.jobs, x.without, x.jobs) for x in found] == [
        (x.prior.jobs, x.without, x.jobs) for x in expected
    ]
    assert found[0].prior.bandwidth_bytes_per_second == pytest.approx(
        expected[0].prior.bandwidth_bytes_per_second, rel=1e-6
    )


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("echo boom >&2; exit 3", "ended with 3: boom"),
        ("kill -SEGV $$", "ended with -11"),
        ("echo '[{}]'", "no lessons"),
        ("echo", "no lessons"),
    ],
)
def test_a_fit_that_dies_or_talks_nonsense_has_failed(
    program: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, program)
    with pytest.raises(FitFailed, match=words):
        fit_apart(EVIDENCE, threading.Event())


def test_more_than_a_pipe_holds_gets_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    pretend(monkeypatch, f"sleep 0.3; wc -c > {tmp_path}/size; echo '[]'")
    many = [replace(EVIDENCE[0], name=f"n{number}") for number in range(300)]
    assert fit_apart(many, threading.Event()) == ()
    assert int((tmp_path / "size").read_text()) > 2 * 65_536


def test_what_the_process_is_given_has_no_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    pretend(monkeypatch, f"cat > {tmp_path}/given; echo '[]'")
    assert fit_apart(EVIDENCE, threading.Event()) == ()
    given = (tmp_path / "given").read_text()
    # Whose is whose matters: no account's part may be too large.
    assert len({job.account for job in TypeAdapter(list[JobEvidence]).validate_json(given)}) == 2
    assert "ann" not in given
    assert "bob" not in given


def test_a_fit_without_an_end_is_stopped_and_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "exec sleep 600")
    begun = threading.Event()

    def fit(evidence: Sequence[JobEvidence], stop: threading.Event) -> tuple[Lesson, ...]:
        begun.set()
        return fit_apart(evidence, stop)

    house = House(fit=fit)
    learner = Learner(house.service, house.desk.forecasts, every_seconds=0.05, fit=fit)
    house.desk.learner = learner
    learner.start()
    house.speak(house.job(), said(2e9))
    assert begun.wait(20)
    stopping = threading.Thread(target=learner.stop)
    stopping.start()
    stopping.join(20)
    assert not stopping.is_alive()


def test_what_waits_is_stored_at_the_end() -> None:
    house = House()
    learner = Learner(house.service, house.desk.forecasts, every_seconds=3600.0, fit=house.fits)
    house.desk.learner = learner
    learner.start()
    house.speak(house.job(), said(2e9))
    learner.stop()
    assert set(house.books.evidence) == {"ann/train"}


def test_a_stopped_fit_says_so() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(FitStopped):
        fit_apart(EVIDENCE, stop)


def test_a_mistake_of_ours_does_not_end_the_learning(caplog: pytest.LogCaptureFixture) -> None:
    fitted = threading.Event()

    def fit(evidence: Sequence[JobEvidence], stop: threading.Event) -> tuple[Lesson, ...]:
        if not caplog.records:
            raise ZeroDivisionError("a mistake")
        fitted.set()
        return ()

    house = House()
    learner = Learner(house.service, house.desk.forecasts, every_seconds=0.05, fit=fit)
    house.desk.learner = learner
    learner.start()
    try:
        house.speak(house.job(), said(2e9))
        assert fitted.wait(20)
    finally:
        learner.stop()
    assert "a mistake" in caplog.text
