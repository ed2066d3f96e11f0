"""The fault cases of the broker that need no process: lost, late and wrong messages, silence, restarts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from broker.driver import Driver, bid

import selfsched_broker.core
from selfsched.protocol import (
    DeviceReport,
    EndJob,
    JobReport,
    JobState,
    LeaseRef,
    NodeReport,
    Outcome,
    ProblemCode,
    ProcessOnNode,
    ReleaseDevices,
)
from selfsched_broker.core import arbiter
from selfsched_broker.core.draft import Draft
from selfsched_broker.core.leases import LeaseOptions, Refusal
from selfsched_broker.core.markets import Stakes, build_market
from selfsched_broker.core.views import cluster_view, device_state, job_view
from selfsched_broker.store.memory import MemoryDisk, MemoryStore


@pytest.fixture
def driver() -> Driver:
    driver = Driver(options=LeaseOptions(term_seconds=60.0), store=MemoryStore(MemoryDisk()))
    driver.node(devices=2)
    return driver


def _settled(driver: Driver, account: str = "ann", **fields: object) -> str:
    job = driver.register(account, **fields)  # type: ignore[arg-type]
    driver.report(job, step=5, steady_steps=5, bid=bid(1000.0, 600.0))
    driver.live(40.0)
    return job


def _refs(driver: Driver, job: str) -> tuple[LeaseRef, ...]:
    told = arbiter.instructions(driver.books, driver.ctx, job)
    return tuple(LeaseRef(lease=lease.lease, fence=lease.fence) for lease in told.leases)


def _restart(driver: Driver, *, away_seconds: float) -> None:
    driver.store = MemoryStore(driver.store._disk)
    driver.now += away_seconds
    driver.open()


def test_d3_after_a_long_absence_all_who_return_keep_their_leases(driver: Driver) -> None:
    first = _settled(driver)
    second = driver.register("bob", 1, 1)
    driver.live(40.0)
    held, refs = driver.held(first), _refs(driver, first)
    auctions = len(driver.books.auctions)
    _restart(driver, away_seconds=3600.0)
    driver.node(incarnation=2)
    driver.now += 20.0
    driver.report(first, leases=refs, step=100)
    driver.now += 24.0
    driver.report(first, leases=refs, step=101)
    driver.node(incarnation=2)
    assert driver.held(first) == held
    assert driver.held(second) == ["cpu1"]
    assert len(driver.books.auctions) == auctions, "no auction before the window has ended"
    driver.now += 2.0
    driver.settle()
    assert driver.held(second) == [], "who does not return loses its lease after ttl + grace"
    assert driver.held(first) == held
    assert len(driver.books.auctions) > auctions


def test_a_first_start_has_no_quiet_time(driver: Driver) -> None:
    assert driver.books.agenda.quiet_until <= driver.now
    assert driver.held(driver.register()) == ["cpu0"]


def test_d7_a_gap_shorter_than_ttl_and_grace_costs_nothing(driver: Driver) -> None:
    job = _settled(driver)
    held = driver.held(job)
    for gap in (29.0, 44.0):
        driver.live(gap, jobs=False)
        driver.report(job)
        assert driver.held(job) == held
    assert not any(audit.action == "lease_expired" for audit in driver.books.audits.values())


def test_d8_a_job_that_returns_too_late_is_told_and_not_revived(driver: Driver) -> None:
    job = _settled(driver)
    refs = _refs(driver, job)
    driver.live(46.0, jobs=False, nodes=False)
    with pytest.raises(Refusal) as refused:
        driver.report(job, leases=refs)
    assert refused.value.code is ProblemCode.LEASE_LOST
    assert f"fence {refs[0].fence}" in refused.value.message
    assert driver.held(job) == []
    driver.report(job)
    assert driver.books.jobs[job].state is JobState.WAITING, "it may go on waiting as a job"


def test_d9_an_old_fence_changes_nothing_for_the_new_holder(driver: Driver) -> None:
    first = _settled(driver, most=1)
    refs = _refs(driver, first)
    driver.now += 46.0
    driver.settle()
    second = driver.register("bob", 2, 2)
    driver.node()
    assert driver.held(second) == ["cpu0", "cpu1"]
    with pytest.raises(Refusal):
        driver.report(first, leases=refs)
    lost = ReleaseDevices(fence=refs[0].fence, devices=("n/cpu0",))
    with pytest.raises(Refusal) as refused:
        driver.do(arbiter.release, refs[0].lease, lost)
    assert refused.value.code is ProblemCode.LEASE_LOST
    with pytest.raises(Refusal):
        driver.do(arbiter.release, _refs(driver, second)[0].lease, lost)
    assert driver.held(second) == ["cpu0", "cpu1"]


def test_d11_an_expired_device_stays_in_quarantine_while_a_process_is_on_it(driver: Driver) -> None:
    first = _settled(driver)
    second = driver.register("bob", 1, 1)
    driver.now += 46.0
    driver.settle()
    for _ in range(5):
        driver.now += 5.0
        driver.report(second)
        driver.node(cpu0="occupied", cpu1="occupied")
        assert driver.held(second) == []
        assert {device_state(driver.books, d).value for d in driver.books.devices} == {"quarantined"}
    driver.node(cpu1="occupied")
    assert driver.held(second) == ["cpu0"]
    assert driver.held(first) == []


def test_d11_the_process_of_a_lost_job_must_be_gone_as_well(driver: Driver) -> None:
    process = ProcessOnNode(node="n", pid=7, session=7, started=1)
    first = driver.register("ann", process=process)
    lease = _refs(driver, first)[0].lease
    driver.now += 46.0
    driver.settle()
    second = driver.register("bob", 1, 1)
    answer = driver.node()
    assert answer.watched_leases == (lease,)
    assert answer.watched[0].process == process
    assert answer.next_report_seconds == driver.options.node_hurried_report_seconds
    assert driver.held(second) == ["cpu1"]
    assert driver.books.holding_of("n/cpu0").state == "quarantined"
    devices = tuple(
        DeviceReport(id=f"n/cpu{i}", index=i, model="cpu", kind="cpu", state=("empty", "occupied")[i])
        for i in range(2)
    )
    message = NodeReport(incarnation=1, sequence=99, devices=devices, ended_leases=(lease,))
    driver.do(arbiter.node_report, "n", message)
    assert driver.books.holding_of("n/cpu0") is None


def test_d11_a_late_report_of_the_dead_does_not_speak_for_its_processes(driver: Driver) -> None:
    process = ProcessOnNode(node="n", pid=7, session=7, started=1)
    first = driver.register("ann", most=1, process=process)
    held = driver.books.devices_of(first)
    driver.now += 46.0
    driver.settle()
    driver.now += 1.0
    driver.report(first, devices_in_use=tuple(held), sequence=90)
    driver.node()
    assert driver.books.holding_of(held[0]).state == "quarantined"
    driver.now += 1.0
    driver.report(first, devices_in_use=(), sequence=91)
    driver.node()
    holding = driver.books.holding_of(held[0])
    assert holding is None or holding.state == "held", "its own word that it runs elsewhere is enough"


def test_a_finished_job_is_shown_as_done(driver: Driver) -> None:
    job = _settled(driver)
    driver.report(job, step=95, planned_steps=100, fraction_done=0.95)
    driver.end(job)
    view = job_view(driver.books, driver.ctx, job)
    assert (view.fraction_done, view.forecast, view.devices) == (1.0, None, ())


def test_a_market_says_where_the_kept_devices_lie(driver: Driver) -> None:
    job = _settled(driver, most=2)
    draft = Draft(driver.books, driver.ctx)
    market = build_market(draft, "device_free", Stakes({}), [driver.books.jobs[job]])
    assert [seat.device for seat in market.kept_seats] == driver.books.devices_of(job)
    assert {seat.node for seat in market.kept_seats} == {"n"}


def test_d12_a_silent_nodes_devices_are_unknown_and_its_holders_keep_theirs(driver: Driver) -> None:
    driver.node("m", devices=1)
    job = _settled(driver, most=3)
    held = driver.books.devices_of(job)
    other = driver.register("bob", 1, 1)
    driver.end(other)
    for _ in range(10):
        driver.now += 5.0
        driver.settle()
        driver.report(job, step=driver.books.job_pulses[job].step + 1)
        driver.node("n")
    assert driver.books.devices_of(job) == held
    assert driver.books.pulses["m/cpu0"].state == "unknown"
    third = driver.register("cis", 1, 1)
    driver.live(5.0, nodes=False)
    assert "m/cpu0" not in driver.books.devices_of(third)


def test_d12_an_unknown_device_is_not_granted(driver: Driver) -> None:
    driver.now += 31.0
    driver.settle()
    job = driver.register()
    assert driver.held(job) == []
    driver.node()
    assert driver.held(job) == ["cpu0"]


def test_d13_a_lost_gpu_ends_its_lease_alone_and_comes_back_after_a_while(driver: Driver) -> None:
    job = _settled(driver)
    lease = driver.books.leases[driver.books.holding_of("n/cpu1").lease]
    driver.node(cpu1="sick")
    assert driver.held(job) == ["cpu0"]
    assert driver.books.leases[lease.id].end_reason == "resource_gone"
    assert any("n/cpu1 is gone" in reason for reason in driver.books.jobs[job].reasons)
    assert driver.books.healthy_devices == 1
    driver.now += 1.0
    driver.node()
    assert driver.held(job) == ["cpu0"], "healthy again, but not for long enough"
    for _ in range(14):
        driver.now += 5.0
        driver.report(job, step=driver.books.job_pulses[job].step + 1)
        driver.node()
    assert driver.held(job) == ["cpu0", "cpu1"]


def test_d13_a_device_that_its_node_no_longer_lists_is_gone(driver: Driver) -> None:
    job = _settled(driver)
    driver.node(devices=["n/cpu0"])
    assert driver.held(job) == ["cpu0"]
    assert device_state(driver.books, "n/cpu1").value == "quarantined"


def test_a_claim_dies_when_its_device_turns_sick(driver: Driver) -> None:
    first = _settled(driver)
    second = driver.register("bob", 1, 1)
    assert driver.books.claim_on("n/cpu1").job == second
    driver.node(cpu1="sick")
    assert driver.books.claim_on("n/cpu1") is None
    assert driver.held(first) == ["cpu0"]


def test_d14_after_a_reboot_with_another_order_the_devices_are_the_same(driver: Driver) -> None:
    job = driver.register("ann", 1, 1)
    driver.report(job)
    driver.node(devices=["n/cpu1", "n/cpu0"], incarnation=2, cpu0="occupied")
    assert driver.held(job) == ["cpu0"]
    assert driver.books.devices["n/cpu0"].index == 1
    assert driver.books.devices["n/cpu1"].index == 0


def test_d15_late_and_reordered_node_reports_are_ignored(driver: Driver) -> None:
    job = driver.register("ann", 1, 1)
    driver.node_sequence["n"] = 50
    driver.node(incarnation=3)
    refs = _refs(driver, job)
    driver.do(arbiter.release, refs[0].lease, ReleaseDevices(fence=refs[0].fence, devices=("n/cpu0",)))
    devices = (DeviceReport(id="n/cpu0", index=0, model="cpu", kind="cpu", state="empty"),)
    for incarnation, sequence in ((3, 51), (3, 7), (2, 99)):
        message = NodeReport(incarnation=incarnation, sequence=sequence, devices=devices)
        driver.do(arbiter.node_report, "n", message)
        assert driver.last is not None
        assert not driver.last.changes
    assert driver.books.holding_of("n/cpu0").state == "quarantined"


def test_a_node_cannot_speak_for_anothers_device(driver: Driver) -> None:
    with pytest.raises(Refusal) as refused:
        driver.node("evil", devices=["n/cpu0"])
    assert refused.value.code is ProblemCode.FORBIDDEN
    with pytest.raises(Refusal, match="lists a device twice"):
        driver.node("n", devices=["n/cpu0", "n/cpu0"])


def test_a_device_may_move_to_another_node_when_its_old_one_is_silent(driver: Driver) -> None:
    driver.now += 31.0
    driver.settle()
    driver.node("other", devices=["n/cpu0"])
    assert driver.books.devices["n/cpu0"].node == "other"


def test_d16_d17_the_cores_read_no_clock_and_no_message_carries_an_instant() -> None:
    package = Path(selfsched_broker.core.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {"time", "datetime"} & {name.split(".")[0] for name in names}, path
    from selfsched import protocol

    for kind in protocol.Message.__subclasses__():
        assert not [name for name in kind.model_fields if name.endswith("_at")], kind


def test_d16_a_broker_that_was_suspended_lets_leases_end_not_live_on(driver: Driver) -> None:
    job = _settled(driver)
    driver.now += 3600.0
    driver.settle()
    assert driver.held(job) == []


def test_d18_a_late_release_after_the_promised_window_is_overdue_and_proven_before_regrant() -> None:
    driver = Driver(options=LeaseOptions(term_seconds=60.0))
    driver.node(devices=1)
    first = driver.register("ann", 1, 1)
    driver.report(first, step=5, steady_steps=5, bid=bid(1000.0), notice_seconds=20.0)
    driver.do(arbiter.drain_device, "n/cpu0", by="root")
    told = arbiter.instructions(driver.books, driver.ctx, first).leases[0]
    assert (told.leave, told.within_seconds) == (("n/cpu0",), 20.0)
    for _ in range(6):
        driver.now += 5.0
        driver.report(first)
    assert driver.held(first) == ["cpu0"], "the promised window is kept"
    for _ in range(4):
        driver.now += 5.0
        driver.report(first)
    assert driver.held(first) == []
    assert any(audit.action == "overdue" for audit in driver.books.audits.values())


def test_the_notice_is_what_the_job_asked_for_up_to_the_policys_maximum(driver: Driver) -> None:
    job = _settled(driver)
    driver.report(job, notice_seconds=1e6)
    driver.control(job, "give_back")
    leases = arbiter.instructions(driver.books, driver.ctx, job).leases
    assert [x.within_seconds for x in leases if x.leave] == [driver.options.max_notice_seconds] * 2


def test_an_order_that_reaches_a_job_late_still_gives_it_its_whole_notice() -> None:
    driver = Driver(options=LeaseOptions(term_seconds=60.0))
    driver.node(devices=1)
    job = driver.register("ann", 1, 1)
    driver.report(job, step=5, steady_steps=5, bid=bid(1000.0), notice_seconds=5.0)
    driver.do(arbiter.drain_device, "n/cpu0", by="root")

    def told_after(seconds: float) -> float | None:
        driver.now += seconds
        return arbiter.instructions(driver.books, driver.ctx, job).leases[0].within_seconds

    assert [told_after(0.0), told_after(6.0), told_after(4.0)] == [5.0, 5.0, 5.0]
    assert told_after(3.0) == 2.0
    assert told_after(3.0) == 0.0


def test_reports_out_of_order_and_doubled_change_nothing(driver: Driver) -> None:
    job = driver.register()
    driver.report(job, sequence=7, step=70, incarnation=2)
    for sequence in (7, 3):
        driver.report(job, sequence=sequence, step=1, incarnation=2)
        assert driver.books.job_pulses[job].step == 70
    with pytest.raises(Refusal) as refused:
        driver.report(job, sequence=9, incarnation=1)
    assert refused.value.code is ProblemCode.CONFLICT
    driver.report(job, sequence=1, step=80, incarnation=3)
    assert driver.books.job_pulses[job].step == 80


def test_reports_of_ended_and_unknown_jobs_are_told_apart(driver: Driver) -> None:
    job = driver.register()
    driver.end(job)
    driver.do(arbiter.end, job, EndJob(outcome=Outcome.FAILED))
    assert driver.books.jobs[job].outcome is Outcome.FINISHED, "said twice, it counts once"
    message = JobReport(incarnation=1, sequence=1, state=JobState.RUNNING)
    for name, code in ((job, ProblemCode.JOB_ENDED), ("job-99", ProblemCode.NOT_FOUND)):
        with pytest.raises(Refusal) as refused:
            arbiter.report(driver.books, driver.ctx, name, message)
        assert refused.value.code is code


def test_a_report_under_way_that_names_a_released_lease_is_no_loss(driver: Driver) -> None:
    job = _settled(driver)
    refs = _refs(driver, job)
    driver.control(job, "set_devices", min_devices=1, max_devices=1)
    driver.release(job)
    assert len(_refs(driver, job)) == 1
    driver.report(job, leases=refs)
    assert driver.held(job) == ["cpu0"]


def test_a_job_never_heard_of_again_is_lost_and_its_place_free(driver: Driver) -> None:
    job = driver.register()
    driver.live(700.0, jobs=False, step=10.0)
    assert driver.books.jobs[job].outcome is Outcome.LOST
    assert driver.books.accounts["ann"].used_device_seconds == pytest.approx(45.0, abs=10.0)
    assert {device.state.value for device in cluster_view(driver.books, driver.ctx).devices} == {"free"}


def test_a_lease_that_no_report_names_is_not_renewed(driver: Driver) -> None:
    job = _settled(driver)
    only = _refs(driver, job)[:1]
    for _ in range(10):
        driver.now += 5.0
        driver.report(job, leases=only)
    assert driver.held(job) == ["cpu0"]


def test_force_release_frees_nothing_that_is_not_proven_empty(driver: Driver) -> None:
    job = driver.register()
    lease = _refs(driver, job)[0].lease
    driver.do(arbiter.force_release, lease, by="root")
    assert driver.books.holding_of("n/cpu0").state == "quarantined"
    assert any(a.action == "force_release" and a.account == "root" for a in driver.books.audits.values())
    driver.node(cpu0="occupied")
    assert driver.books.holding_of("n/cpu0").state == "quarantined"
    with pytest.raises(Refusal):
        driver.do(arbiter.force_release, "lease-99", by="root")


def test_a_drained_device_is_left_and_not_given_out_until_it_is_back(driver: Driver) -> None:
    job = _settled(driver)
    driver.do(arbiter.drain_device, "n/cpu1", by="root")
    driver.live(20.0)
    assert driver.held(job) == ["cpu0"]
    assert device_state(driver.books, "n/cpu1").value == "drained"
    driver.do(arbiter.drain_device, "n/cpu1", drained=False, by="root")
    driver.live(20.0)
    assert driver.held(job) == ["cpu0", "cpu1"]
    with pytest.raises(Refusal):
        driver.do(arbiter.drain_device, "nothing", by="root")


def test_a_cluster_nobody_has_reported_refuses_jobs_for_now() -> None:
    with pytest.raises(Refusal) as refused:
        Driver().register()
    assert refused.value.code is ProblemCode.UNAVAILABLE


def test_what_has_ended_is_dropped_from_memory_beyond_its_bound() -> None:
    options = LeaseOptions(kept_ended_jobs=3, kept_auctions=4, kept_audits=2)
    driver = Driver(options=options, store=MemoryStore(MemoryDisk()))
    driver.node()
    for number in range(12):
        job = driver.register("ann", 1, 1)
        driver.report(job, step=number)
        driver.do(arbiter.drain_device, "n/cpu1", drained=False, by="root")
        driver.end(job)
        driver.now += 1.0
        driver.node()
    books = driver.books
    assert [job.number for job in books.jobs.values()] == [10, 11, 12]
    assert len(books.leases) == len(books.holdings) == 3
    assert len(books.auctions) <= 5
    assert len(books.audits) <= 3
    assert set(books.lease_pulses) == set(books.leases)
    again = MemoryStore(driver.store._disk, options).open()
    assert set(again.jobs) == set(books.jobs)
    assert len(driver.store._disk.rows[type(books.jobs["job-12"])]) == 12, "the store keeps its rows"
