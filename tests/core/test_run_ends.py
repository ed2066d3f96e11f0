"""One word for one end, wherever it is read."""

from __future__ import annotations

import pytest
from cli.canned_broker import a_job

from selfsched.cluster_view import Shown
from selfsched.core.run_ends import job_state_words, run_end_words
from selfsched.protocol import ClusterView, JobState, JobView, Outcome


def an_end(outcome: Outcome | None) -> JobView:
    return a_job(state=JobState.ENDED, outcome=outcome, devices=())


@pytest.mark.parametrize(
    ("outcome", "message", "words"),
    [
        ("yielded", "stopped by its owner", "stopped"),
        ("stopped", "", "stopped"),
        ("yielded", "its time on the devices was over", "left its devices"),
        ("finished", "", "finished"),
        ("failed", "rank 1 died", "failed"),
    ],
)
def test_a_run_that_its_owner_stopped_is_stopped_by_whichever_way(
    outcome: str, message: str, words: str
) -> None:
    assert run_end_words(outcome, message) == words


def test_a_job_says_how_it_ended() -> None:
    assert job_state_words(a_job()) == "running"
    told = [job_state_words(an_end(outcome)) for outcome in (Outcome.CANCELLED, Outcome.FINISHED, None)]
    assert told == ["stopped", "finished", "ended"]


def test_the_cluster_s_view_says_how_jobs_ended_and_foretells_nothing_of_them() -> None:
    cluster = ClusterView(
        policy="themis", devices=(), waiting_jobs=0, running_jobs=1, next_tick_seconds=1.0, incarnation=1
    )
    shown = Shown("alice", cluster, (an_end(Outcome.CANCELLED), an_end(Outcome.FINISHED), a_job()))
    assert [(row[1], row[4]) for row in shown.job_rows()] == [
        ("running", "2 min 00 s (1 min 40 s to 3 min 20 s)"), ("stopped", ""), ("finished", ""),
    ]  # fmt: skip
