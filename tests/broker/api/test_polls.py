"""Requests that wait: answered at once when there is news, and not before."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from broker.live_broker import LiveBroker, live_broker, refs, register, report, until_leased

from selfsched.protocol import ControlJob, EndJob, Forecast, JobState, JobView, Outcome, Resume
from selfsched_broker.api.jobs import still
from selfsched_broker.service import instructions_topic

LONG = 8.0
"""Longer than any of these tests may take when an answer comes at once."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with live_broker(tmp_path / "state") as live:
        yield live


@pytest.fixture
def ada(broker: LiveBroker) -> httpx.Client:
    return broker.as_account("ada")


def waiting(broker: LiveBroker, topic: str) -> bool:
    """Wait until a request waits for a topic."""
    polls = broker.running.polls
    give_up_at = time.monotonic() + 5
    while topic not in polls.topics() and time.monotonic() < give_up_at:
        time.sleep(0.005)
    return topic in polls.topics()


def test_a_report_is_answered_as_soon_as_there_is_a_lease(broker: LiveBroker, ada: httpx.Client) -> None:
    began = time.monotonic()
    told, _ = until_leased(ada, register(ada))
    assert told.leases[0].devices[0].id == "here/cpu0"
    assert time.monotonic() - began < LONG


def test_a_held_back_report_is_answered_when_the_instructions_change(
    broker: LiveBroker, ada: httpx.Client
) -> None:
    job = register(ada)
    told, last = until_leased(ada, job)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(
            report, ada, job, last + 1, leases=refs(told), wait_seconds=LONG, seen=told.version
        )
        assert waiting(broker, instructions_topic(job))
        order = ControlJob(action="stop")
        began = time.monotonic()
        broker.admin.post(f"/v1/jobs/{job}/control", content=order.to_json())
        answer = held.result(LONG).json()
    assert answer["order"] == "stop"
    assert answer["leases"][0]["leave"] == ["here/cpu0"]
    assert time.monotonic() - began < LONG / 2


def test_a_newer_report_ends_the_older_ones_wait(broker: LiveBroker, ada: httpx.Client) -> None:
    job = register(ada)
    told, last = until_leased(ada, job)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(
            report, ada, job, last + 1, leases=refs(told), wait_seconds=LONG, seen=told.version
        )
        assert waiting(broker, f"reports of {job}")
        began = time.monotonic()
        newer = report(ada, job, last + 2, leases=refs(told), seen=told.version)
        assert newer.status_code == 200
        assert held.result(LONG).status_code == 200
    assert time.monotonic() - began < LONG / 2


def test_a_report_with_old_news_is_answered_at_once(broker: LiveBroker, ada: httpx.Client) -> None:
    job = register(ada)
    told, last = until_leased(ada, job)
    began = time.monotonic()
    answer = report(ada, job, last + 1, leases=refs(told), wait_seconds=LONG, seen=told.version - 1)
    assert answer.json()["version"] == told.version
    assert time.monotonic() - began < LONG / 2


def test_a_wait_without_news_ends_by_itself(broker: LiveBroker, ada: httpx.Client) -> None:
    job = register(ada)
    told, last = until_leased(ada, job)
    answer = report(ada, job, last + 1, leases=refs(told), wait_seconds=0.2, seen=told.version)
    assert answer.json()["version"] == told.version


def test_a_view_is_sent_once_and_again_when_it_is_new(broker: LiveBroker, ada: httpx.Client) -> None:
    first = ada.get("/v1/cluster")
    tag = first.headers["etag"]
    again = ada.get("/v1/cluster", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(
            ada.get, f"/v1/cluster?wait_seconds={LONG:.0f}", headers={"If-None-Match": tag}, timeout=20
        )
        assert waiting(broker, "cluster")
        broker.admin.post("/v1/admin/devices/here/cpu1/drain")
        news = held.result(LONG)
    assert news.status_code == 200
    assert news.headers["etag"] != tag
    assert [d["state"] for d in news.json()["devices"]] == ["free", "drained"]


def test_a_job_view_has_news_when_the_job_reports_steps(broker: LiveBroker, ada: httpx.Client) -> None:
    job = register(ada)
    told, last = until_leased(ada, job)
    tag = ada.get(f"/v1/jobs/{job}").headers["etag"]
    assert ada.get(f"/v1/jobs/{job}", headers={"If-None-Match": tag}).status_code == 304
    report(ada, job, last + 1, leases=refs(told), step=5)
    news = ada.get(f"/v1/jobs/{job}", headers={"If-None-Match": tag})
    assert news.json()["step"] == 5


def test_the_list_of_jobs_is_held_back_until_one_of_them_changes(
    broker: LiveBroker, ada: httpx.Client
) -> None:
    job = register(ada)
    until_leased(ada, job)
    tag = ada.get("/v1/jobs").headers["etag"]
    again = ada.get("/v1/jobs", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    with ThreadPoolExecutor(1) as pool:
        asked = {"If-None-Match": tag}
        held = pool.submit(ada.get, f"/v1/jobs?wait_seconds={LONG:.0f}", headers=asked, timeout=20)
        assert waiting(broker, "cluster")
        ada.post(f"/v1/jobs/{job}/control", content=ControlJob(action="stop").to_json())
        news = held.result(LONG)
    assert news.status_code == 200
    assert news.headers["etag"] != tag
    assert [seen["job"] for seen in news.json()] == [job]


def test_a_job_that_waits_has_no_news_while_its_expected_start_only_comes_nearer() -> None:
    def seen(age_seconds: float, starts_seconds: float) -> object:
        starts = Forecast(
            p10_seconds=0.0, p50_seconds=starts_seconds, p90_seconds=1e6, assumption="look_ahead"
        )
        return still(
            JobView(
                job="job-1", name="x", account="ada", state=JobState.WAITING, min_devices=1, max_devices=1,
                resume=Resume.ELASTIC, priority=1.0, age_seconds=age_seconds, starts=starts,
            )
        )  # fmt: skip

    assert seen(10.0, 300.0) == seen(70.0, 240.0)
    assert seen(10.0, 300.0) != seen(10.0, 360.0)


def test_waiting_requests_do_not_hold_threads(broker: LiveBroker, ada: httpx.Client) -> None:
    tag = ada.get("/v1/cluster").headers["etag"]
    waiters = 24  # more than the broker has threads
    with ThreadPoolExecutor(waiters) as pool:
        held = [
            pool.submit(
                ada.get, f"/v1/cluster?wait_seconds={LONG:.0f}", headers={"If-None-Match": tag}, timeout=20
            )
            for _ in range(waiters)
        ]
        assert waiting(broker, "cluster")
        assert register(broker.admin)  # other calls go through, and end the wait
        assert [answer.result(LONG).status_code for answer in held] == [200] * waiters


def test_ending_answers_those_who_wait(tmp_path: Path) -> None:
    with live_broker(tmp_path / "state") as broker, ThreadPoolExecutor(1) as pool:
        ada = broker.as_account("ada")
        job = register(ada)
        told, last = until_leased(ada, job)
        held = pool.submit(
            report, ada, job, last + 1, leases=refs(told), wait_seconds=LONG, seen=told.version
        )
        assert waiting(broker, instructions_topic(job))
        began = time.monotonic()
        broker.running.end()
        assert held.result(LONG).status_code == 200
        assert time.monotonic() - began < LONG / 2


def test_a_freed_device_is_proven_empty_and_given_on_at_once(broker: LiveBroker, ada: httpx.Client) -> None:
    bob = broker.as_account("bob")
    first, second = register(ada, max_devices=2, min_devices=2), register(bob, min_devices=2, max_devices=2)
    until_leased(ada, first)
    report(bob, second, 1)
    ended = EndJob(outcome=Outcome.FINISHED)
    began = time.monotonic()
    assert ada.post(f"/v1/jobs/{first}/end", content=ended.to_json()).status_code == 200
    told, _ = until_leased(bob, second)
    assert len(told.leases[0].devices) == 2
    assert time.monotonic() - began < LONG


def test_the_lease_of_one_who_was_silent_is_lost_with_410(tmp_path: Path) -> None:
    with live_broker(
        tmp_path / "state", ttl_seconds=0.3, report_seconds=0.1, grace_seconds=0.1, restart_window_seconds=0.1
    ) as broker:
        ada = broker.as_account("ada")
        job = register(ada)
        told, last = until_leased(ada, job)
        lost = threading.Event()
        broker.running.service.listen(lambda _: lost.set() if not broker.books.devices_of(job) else None)
        assert lost.wait(10)
        answer = report(ada, job, last + 1, leases=refs(told))
        assert answer.status_code == 410
        assert answer.json()["code"] == "lease_lost"
