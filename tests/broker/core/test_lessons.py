"""From evidence to priors: known truth, lies, and a job's own evidence left out."""

from __future__ import annotations

import math

import pytest
from broker.spoken_steps import entry, evidence_of, said

from selfsched.core.performance import SeenStep, StepTimeModel, documented_prior, refusal
from selfsched.protocol import Moments
from selfsched_broker.core import lessons
from selfsched_broker.core.books import Account, Books, Broker
from selfsched_broker.core.evidence import for_a_fit, heard
from selfsched_broker.core.lessons import changes_of, learn, prior_in
from selfsched_broker.core.past_records import JobEvidence

TRUE = 2e9
HARDWARE = "Tesla-V100"


def honest(count: int, account: str = "ann") -> list[JobEvidence]:
    return [
        evidence_of(account, f"{account}{n}", *said(TRUE, compute_seconds=0.05 * 1.2**n), at=float(n))
        for n in range(count)
    ]


def books_of(evidence: list[JobEvidence], at: float = 50.0) -> Books:
    books = Books(broker=Broker(incarnation=1))
    books.apply([Account(name="ann"), *evidence])
    books.apply(changes_of(books, learn(for_a_fit(evidence)), at))
    return books


def log_bandwidth(books: Books, owner: str = "") -> float:
    return math.log(prior_in(books, HARDWARE, owner).bandwidth_bytes_per_second)


def test_the_bandwidth_that_jobs_show_is_learned() -> None:
    prior = prior_in(books_of(honest(8)), HARDWARE)
    assert prior.jobs == 8
    assert prior.form is not None
    assert refusal(prior) is None
    documented = documented_prior(HARDWARE)
    assert prior.bandwidth_bytes_per_second == pytest.approx(TRUE, rel=0.35)
    assert documented.bandwidth_bytes_per_second > 5 * TRUE
    assert prior.sigma_log < documented.sigma_log


def test_hardware_nobody_spoke_of_has_its_documented_figures() -> None:
    books = books_of(honest(3))
    assert prior_in(books, "NVIDIA-H100") == documented_prior("NVIDIA-H100")
    assert learn(()) == ()


def test_a_jobs_own_evidence_is_not_in_the_prior_it_gets() -> None:
    others = honest(2)
    mine = evidence_of("bob", "b", *said(TRUE / 2), at=9.0)
    with_own, without_any = books_of([*others, mine]), books_of(others)
    everybody, own = log_bandwidth(with_own), log_bandwidth(with_own, mine.key)
    assert prior_in(with_own, HARDWARE, mine.key).jobs == 2
    assert own == pytest.approx(log_bandwidth(without_any), abs=1e-6)
    assert everybody < own - 1e-3
    assert log_bandwidth(with_own, "someone/new") == everybody


def test_the_only_job_there_is_gets_the_documented_figures() -> None:
    alone = honest(1)
    books = books_of(alone)
    assert prior_in(books, HARDWARE).jobs == 1
    assert prior_in(books, HARDWARE, alone[0].key) == documented_prior(HARDWARE)


def test_behind_many_jobs_one_is_too_small_to_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "FEW_JOBS", 4)
    jobs = honest(4)
    books = books_of(jobs)
    assert len(books.priors) == 1
    assert prior_in(books, HARDWARE, jobs[0].key) == prior_in(books, HARDWARE)


LIES = {
    "zero steps": [entry(1, 0.1), entry(2, 0.1, log_step=Moments())],
    "a hundred times slower on two": [entry(1, 0.1), entry(2, 10.0)],
    "forty times slower on two": [entry(1, 0.1), entry(2, 4.0), entry(4, 4.5)],
    "an absurd mean": [entry(1, 0.1), entry(2, 0.1, log_step=Moments(count=100, mean=1e300))],
    "an absurd count": [entry(1, 0.1, steps=10**12), entry(2, 4.0, steps=10**12)],
    "bytes like no other": [entry(n, 0.1, gradient_bytes=10**14) for n in (1, 2, 4)],
    "many placements": [entry(n, 0.1 if n == 1 else 4.0) for n in range(1, 65)],
}


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_one_job_that_lies_moves_little_and_breaks_nothing(lie: str) -> None:
    truth = honest(8)
    liar = heard(None, "eve", "lie", LIES[lie], 99.0)
    moved = books_of([*truth, liar] if liar else truth)
    assert abs(log_bandwidth(moved) - math.log(TRUE)) < 0.5
    assert refusal(prior_in(moved, HARDWARE)) is None


def test_a_hundred_lying_jobs_of_one_account_move_it_no_further_than_as_many_as_the_honest() -> None:
    truth = honest(8)
    flood = [evidence_of("eve", f"e{n}", *LIES["forty times slower on two"], at=100.0) for n in range(100)]
    assert sum(e.account == "eve" for e in for_a_fit([*truth, *flood])) == 8


@pytest.mark.parametrize("hardware", [HARDWARE, "cpu"])
def test_an_account_that_lies_widens_and_narrows_nobodys_intervals(hardware: str) -> None:
    truth = [job for account in ("ann", "bob", "eva") for job in honest(2, account)]
    slow = [entry(n, min(40.0, n**1.7), hardware=hardware) for n in (1, 2, 4, 8)]
    flood = [evidence_of("eve", f"e{n}", *slow, at=100.0) for n in range(8)]
    before, after = (sigma_on_eight(books_of(jobs)) for jobs in (truth, [*truth, *flood]))
    assert abs(math.log(after / before)) < math.log(1.25)


def sigma_on_eight(books: Books) -> float:
    model = StepTimeModel(
        [SeenStep(devices=1, seconds=1.0, sigma_log=0.01)],
        prior=prior_in(books, HARDWARE), gradient_bytes=10**8,
    )  # fmt: skip
    return model.at(8).sigma_log


def test_priors_of_hardware_that_a_fit_says_nothing_of_stay() -> None:
    books = books_of(honest(3))
    other = [evidence_of("ann", f"o{n}", *said(TRUE, hardware="other")) for n in range(2)]
    books.apply(changes_of(books, learn(other), 60.0))
    assert {p.hardware for p in books.priors.values() if not p.without} == {HARDWARE, "other"}
    books.apply(changes_of(books, (), 70.0))
    assert prior_in(books, HARDWARE).jobs == 3


def test_a_new_fit_replaces_the_old_and_what_was_left_out_for_jobs_that_are_gone() -> None:
    books = books_of(honest(3))
    assert len(books.priors) == 4
    books.apply(changes_of(books, learn(honest(2)), 60.0))
    assert len(books.priors) == 3
    assert prior_in(books, HARDWARE).jobs == 2


def test_only_the_newest_hardware_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "MOST_HARDWARE", 2)
    books = Books(broker=Broker(incarnation=1))
    for n in range(3):
        jobs = [evidence_of("ann", f"{n}-{m}", *said(TRUE, hardware=f"gpu{n}")) for m in range(2)]
        books.apply(changes_of(books, learn(jobs), float(n)))
    assert {p.hardware for p in books.priors.values()} == {"gpu1", "gpu2"}


def test_what_administrators_see_names_no_job() -> None:
    books = books_of(honest(2))
    (view,) = lessons.views(books, 60.0)
    assert (view.hardware, view.reporting_jobs, view.placements, view.steps) == (HARDWARE, 2, 3, 600)
    assert view.learned_ago_seconds == 10.0
    assert "ann" not in view.to_json()
