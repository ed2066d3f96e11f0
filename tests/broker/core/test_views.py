"""What people see, and what they must not."""

from __future__ import annotations

import pytest
from broker.driver import Driver, bid

from selfsched.protocol import DeviceProcess as Process
from selfsched.protocol import DeviceReport, JobState, NodeReport, ProblemCode
from selfsched_broker.core import arbiter
from selfsched_broker.core.leases import LeaseOptions, Refusal
from selfsched_broker.core.policies.themis import Themis
from selfsched_broker.core.views import account_view, auction_view, cluster_view, job_view


@pytest.fixture
def driver() -> Driver:
    driver = Driver(options=LeaseOptions(term_seconds=60.0), policy=Themis())
    driver.node(devices=2)
    return driver


def _two_jobs(driver: Driver) -> tuple[str, str]:
    first = driver.register("ann")
    driver.report(first, step=30, steady_steps=30, bid=bid(1000.0, 600.0))
    driver.live(40.0)
    second = driver.register("bob", 1, 1)
    driver.report(second)
    driver.live(20.0)
    return first, second


def test_a_jobs_history_tells_who_had_which_devices_when(driver: Driver) -> None:
    first, second = _two_jobs(driver)
    view = job_view(driver.books, driver.ctx, first)
    spans = [(len(span.devices), span.to_seconds is None) for span in view.history]
    assert spans == [(2, False), (1, True)], "the visit and the win fell on one instant"
    assert list(view.history[-1].devices) == driver.books.devices_of(first)
    assert view.state is JobState.STARTING or view.state is JobState.RUNNING
    assert view.age_seconds == driver.now
    other = job_view(driver.books, driver.ctx, second)
    assert {d.id for d in (*view.devices, *other.devices)} == {"n/cpu0", "n/cpu1"}
    driver.end(first)
    driver.now += 100.0
    ended = job_view(driver.books, driver.ctx, first)
    assert ended.outcome == "finished"
    assert ended.age_seconds == driver.now - 100.0
    assert ended.share > 0.0
    assert ended.history[-1].to_seconds == driver.now - 100.0


def test_a_job_that_has_never_held_anything_has_no_history(driver: Driver) -> None:
    driver.register("ann")
    driver.live(1.0)
    waiting = driver.register("bob")
    assert job_view(driver.books, driver.ctx, waiting).history == ()


def test_of_other_accounts_an_auction_shows_no_numbers_and_no_reasons(driver: Driver) -> None:
    first, second = _two_jobs(driver)
    number = max(auction.number for auction in driver.books.auctions.values())
    mine = {a.job: a for a in auction_view(driver.books, driver.ctx, number, "ann", admin=False).awards}
    assert mine[second].reason == "another account's"
    assert (mine[second].rho_before, mine[second].rho_after, mine[second].payment) == (None, None, None)
    assert "another" not in mine[first].reason
    everything = auction_view(driver.books, driver.ctx, number, "root", admin=True)
    assert "another account's" not in {award.reason for award in everything.awards}
    with pytest.raises(Refusal) as refused:
        auction_view(driver.books, driver.ctx, 999, "root", admin=True)
    assert refused.value.code is ProblemCode.NOT_FOUND


def test_u15_the_cluster_shows_holders_by_account_and_strangers_by_owner_and_process(driver: Driver) -> None:
    driver.register("ann", 1, 1)
    driver.node_sequence["n"] += 1
    stranger = Process(pid=123, started=1, account="mallory", used_bytes=5)
    devices = (
        DeviceReport(id="n/cpu0", index=0, model="cpu", kind="cpu", state="occupied"),
        DeviceReport(id="n/cpu1", index=1, model="cpu", kind="cpu", state="occupied", processes=(stranger,)),
    )
    message = NodeReport(incarnation=1, sequence=driver.node_sequence["n"], devices=devices)
    driver.do(arbiter.node_report, "n", message)
    view = {device.id: device for device in cluster_view(driver.books, driver.ctx).devices}
    assert (view["n/cpu0"].account, view["n/cpu0"].state.value) == ("ann", "held")
    assert view["n/cpu1"].account is None
    assert view["n/cpu1"].detail == "in use without a lease by mallory (process 123)"
    assert view["n/cpu1"].processes == (stranger,), "with what it takes of the memory"
    second = driver.register("bob", 1, 1)
    assert driver.held(second) == [], "a stranger's device is not offered"


def test_accounts_are_shown_with_what_they_hold_and_used(driver: Driver) -> None:
    first, _ = _two_jobs(driver)
    assert account_view(driver.books, "ann").held_devices == 1
    driver.end(first)
    assert account_view(driver.books, "ann").used_device_seconds > 60.0
    with pytest.raises(Refusal):
        account_view(driver.books, "nobody")


def test_an_unknown_job_is_not_found(driver: Driver) -> None:
    for view in (job_view, arbiter.instructions):
        with pytest.raises(Refusal) as refused:
            view(driver.books, driver.ctx, "job-9")
        assert refused.value.code is ProblemCode.NOT_FOUND


def test_a_device_whose_node_has_not_been_heard_since_the_start_says_so(driver: Driver) -> None:
    driver.books.pulses.clear()
    assert {device.detail for device in cluster_view(driver.books, driver.ctx).devices} == {
        "its node has not reported since the broker started"
    }


def test_idleness_grows_between_two_reports_of_a_job_that_idles(driver: Driver) -> None:
    job = driver.register("ann")

    def idle() -> float:
        return job_view(driver.books, driver.ctx, job).idle_seconds

    driver.report(job, step=5)
    driver.now += 10.0
    driver.report(job, step=6, idle_seconds=2.0)
    driver.now += 8.0
    assert idle() == 2.0, "it made steps until its report: it is not known to idle since"
    driver.now += 2.0
    driver.report(job, step=6, idle_seconds=12.0)
    assert idle() == 12.0
    driver.now += 7.0
    assert idle() == 19.0
    driver.end(job)
    driver.now += 7.0
    assert idle() == 0.0, "what has ended does not idle"
