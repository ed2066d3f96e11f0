"""A job's life under the arbiter: visit, bid, share, leave, claim, end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from broker.driver import Driver, bid

from selfsched.protocol import (
    Forecast,
    JobState,
    Outcome,
    ProblemCode,
    RegisterJob,
    ReleaseDevices,
    Resume,
    SetAccount,
)
from selfsched_broker.core import arbiter
from selfsched_broker.core.leases import LeaseOptions, Refusal
from selfsched_broker.core.policies.themis import Themis
from selfsched_broker.core.views import job_view


@pytest.fixture
def driver() -> Driver:
    driver = Driver(options=LeaseOptions(term_seconds=60.0))
    driver.node(devices=2)
    return driver


def test_a_first_job_visits_the_smallest_placement_then_wins_all(driver: Driver) -> None:
    job = driver.register()
    assert driver.held(job) == ["cpu0"]
    assert arbiter.instructions(driver.books, driver.ctx, job).visit
    driver.report(job, step=5, steady_steps=5, bid=bid(100.0, 60.0))
    assert driver.held(job) == ["cpu0", "cpu1"]
    assert not arbiter.instructions(driver.books, driver.ctx, job).visit
    fences = [lease.fence for lease in arbiter.instructions(driver.books, driver.ctx, job).leases]
    assert fences == sorted(set(fences))


def _settled_alone(driver: Driver) -> str:
    job = driver.register("ann")
    driver.report(job, step=5, steady_steps=5, bid=bid(1000.0, 600.0))
    driver.live(40.0)
    return job


def test_an_arrival_gets_a_device_from_who_has_more_than_a_share_once_that_is_repaid(driver: Driver) -> None:
    first = _settled_alone(driver)
    second = driver.register("bob", 1, 1)
    leaving = arbiter.instructions(driver.books, driver.ctx, first)
    assert [lease.leave for lease in leaving.leases if lease.leave] == [("n/cpu1",)]
    assert driver.books.claim_on("n/cpu1").job == second
    driver.release(first)
    assert driver.held(first) == ["cpu0"]
    assert driver.held(second) == [], "not before the node has said that the device is empty"
    driver.now += 1.0
    driver.node()
    assert driver.held(second) == ["cpu1"]
    assert not driver.books.claims_of(second)


def test_nothing_is_taken_before_the_last_move_is_repaid(driver: Driver) -> None:
    first = driver.register("ann")
    driver.report(first, step=5, steady_steps=5, bid=bid(1000.0, 600.0))
    second = driver.register("bob", 1, 1)
    assert not driver.books.claims_of(second)
    driver.live(10.0)
    assert driver.held(first) == ["cpu0", "cpu1"]
    driver.live(40.0)
    assert driver.held(second) == ["cpu1"]


def test_a_winner_at_a_tick_is_renewed_without_a_new_fence(driver: Driver) -> None:
    job = _settled_alone(driver)
    before = arbiter.instructions(driver.books, driver.ctx, job)
    driver.live(30.0)
    after = arbiter.instructions(driver.books, driver.ctx, job)
    assert [lease.fence for lease in after.leases] == [lease.fence for lease in before.leases]
    assert after.version == before.version
    assert all(lease.term_seconds > 30.0 for lease in after.leases)


def test_the_holder_grows_back_when_the_other_ends(driver: Driver) -> None:
    first = _settled_alone(driver)
    second = driver.register("bob", 1, 1)
    driver.live(60.0)
    assert (driver.held(first), driver.held(second)) == (["cpu0"], ["cpu1"])
    driver.end(second)
    driver.live(10.0)
    assert driver.held(first) == ["cpu0", "cpu1"]


def test_a_device_that_became_free_too_early_is_had_as_soon_as_the_move_is_repaid() -> None:
    """Not at the next tick: here that is an hour away."""
    driver = Driver(policy=Themis(), options=LeaseOptions(term_seconds=3600.0))
    driver.node(devices=2)
    first = _settled_alone(driver)
    second = driver.register("bob", 1, 1)
    driver.release(first)
    driver.now += 1.0
    driver.node()
    assert len(driver.held(first)) == len(driver.held(second)) == 1
    driver.end(second, Outcome.CANCELLED)
    driver.live(10.0)
    assert len(driver.held(first)) == 1, "its shrinking is not repaid"
    driver.live(15.0)
    assert len(driver.held(first)) == 2


def test_a_device_awarded_while_held_goes_to_nobody_else(driver: Driver) -> None:
    first = _settled_alone(driver)
    second = driver.register("bob", 1, 1)
    third = driver.register("cis", 1, 1)
    driver.release(first)
    driver.now += 1.0
    driver.node()
    assert driver.held(second) == ["cpu1"]
    assert driver.held(third) == []
    reason = driver.books.jobs[second].reasons[-1]
    assert "; the devices it was awarded have become free" in reason, "with why they were awarded"


def test_a_claim_dies_with_its_job(driver: Driver) -> None:
    first = _settled_alone(driver)
    second = driver.register("bob", 1, 1)
    driver.end(second, Outcome.CANCELLED)
    assert driver.books.claim_on("n/cpu1") is None
    driver.live(10.0)
    assert driver.held(first) == ["cpu0", "cpu1"]


def test_a_job_that_keeps_its_devices_beyond_the_notice_loses_them(driver: Driver) -> None:
    first = _settled_alone(driver)
    second = driver.register("bob", 1, 1)
    limit = driver.options.max_notice_seconds + driver.options.report_seconds + driver.options.grace_seconds
    until = driver.now + limit
    while driver.now < until:
        driver.now += 5.0
        driver.report(first, step=driver.books.job_pulses[first].step + 1)
        driver.report(second)
        driver.node()
    assert driver.held(first) == ["cpu0"]
    assert any(audit.action == "overdue" for audit in driver.books.audits.values())


def test_a_paused_job_releases_keeps_its_place_and_its_time_stands_still(driver: Driver) -> None:
    job = _settled_alone(driver)
    driver.report(job, forecast=Forecast(p10_seconds=1, p50_seconds=2, p90_seconds=3, assumption="as_now"))
    assert job_view(driver.books, driver.ctx, job).forecast is not None
    driver.control(job, "pause")
    assert job_view(driver.books, driver.ctx, job).forecast is None, "what it foresaw holds no more"
    driver.live(10.0)
    assert driver.books.jobs[job].state is JobState.PAUSED
    assert driver.held(job) == []
    age = arbiter_age(driver, job)
    driver.live(100.0)
    assert arbiter_age(driver, job) == age
    driver.control(job, "resume")
    driver.live(5.0)
    assert len(driver.held(job)) == 2
    assert driver.books.jobs[job].visited


def test_devices_given_back_stay_free_over_a_term_and_the_limits_stay(driver: Driver) -> None:
    job = _settled_alone(driver)
    limits = (driver.books.jobs[job].min_devices, driver.books.jobs[job].max_devices)
    driver.control(job, "give_back")
    driver.live(60.0)
    assert driver.held(job) == []
    assert driver.books.jobs[job].state is JobState.WAITING
    assert "its owner gave its devices back" in driver.books.jobs[job].reasons[-1]
    driver.live(70.0)
    assert len(driver.held(job)) == 2, "after a term it bids as before"
    assert (driver.books.jobs[job].min_devices, driver.books.jobs[job].max_devices) == limits


def test_another_job_has_at_once_what_was_given_back(driver: Driver) -> None:
    job = _settled_alone(driver)
    other = driver.register("bob")
    driver.report(other, state=JobState.WAITING)
    driver.control(job, "give_back")
    driver.live(20.0)
    assert driver.held(job) == []
    assert driver.held(other)


def test_only_what_is_held_and_can_go_on_is_given_back(driver: Driver) -> None:
    job = _settled_alone(driver)
    driver.control(job, "pause")
    with pytest.raises(Refusal, match="already"):
        driver.control(job, "give_back")
    driver.live(10.0)
    driver.control(job, "resume")
    driver.live(5.0)
    driver.control(job, "give_back")
    driver.live(20.0)
    with pytest.raises(Refusal, match="holds no device"):
        driver.control(job, "give_back")
    once = driver.register("bob", 1, 1, resume=Resume.NEVER, stated_seconds=600.0)
    driver.report(once)
    assert driver.held(once)
    with pytest.raises(Refusal, match="stop it instead"):
        driver.control(once, "give_back")


def test_resuming_ends_the_standing_back(driver: Driver) -> None:
    job = _settled_alone(driver)
    driver.control(job, "give_back")
    driver.live(10.0)
    driver.control(job, "pause")
    driver.control(job, "resume")
    driver.live(5.0)
    assert len(driver.held(job)) == 2


def test_it_is_told_how_long_ago_each_reason_was_given(driver: Driver) -> None:
    job = _settled_alone(driver)
    driver.control(job, "set_devices", min_devices=1, max_devices=2)
    driver.now += 30.0
    driver.control(job, "set_devices", min_devices=1, max_devices=1)
    view = job_view(driver.books, driver.ctx, job)
    assert len(view.reason_ages_seconds) == len(view.reasons)
    ages = dict(zip(view.reasons, view.reason_ages_seconds, strict=True))
    assert ages["its owner wants 1 device"] == 0.0
    assert ages["its owner wants 1 to 2 devices"] == 30.0


def arbiter_age(driver: Driver, job: str) -> float:
    return job_view(driver.books, driver.ctx, job).age_seconds


def test_a_stopped_job_is_told_and_its_devices_come_free(driver: Driver) -> None:
    job = _settled_alone(driver)
    driver.control(job, "stop")
    assert arbiter.instructions(driver.books, driver.ctx, job).order == "stop"
    driver.live(10.0)
    assert driver.books.jobs[job].outcome is Outcome.CANCELLED
    assert {view.value for view in _states(driver)} == {"free"}


def _states(driver: Driver) -> set[object]:
    from selfsched_broker.core.views import cluster_view

    return {device.state for device in cluster_view(driver.books, driver.ctx).devices}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"min_devices": 3, "max_devices": 3}, ProblemCode.IMPOSSIBLE),
        ({"wanted_devices": ("n/cpu9",)}, ProblemCode.IMPOSSIBLE),
        ({"wanted_devices": ("n/cpu0", "n/cpu0")}, ProblemCode.INVALID),
    ],
)
def test_what_can_never_be_served_is_refused_and_nothing_stored(
    driver: Driver, fields: dict[str, object], code: ProblemCode
) -> None:
    with pytest.raises(Refusal) as refused:
        driver.do(arbiter.register, "ann", RegisterJob(name="job", **fields))  # type: ignore[arg-type]
    assert refused.value.code is code
    assert not driver.books.jobs
    assert not driver.books.accounts


def test_wanted_devices_are_given_exactly_or_not_at_all(driver: Driver) -> None:
    other = driver.register("bob", 1, 1)
    assert driver.held(other) == ["cpu0"]
    job = driver.register("ann", wanted_devices=("n/cpu0",), resume=Resume.NEVER, stated_seconds=100.0)
    assert driver.held(job) == []
    driver.end(other)
    driver.live(15.0)
    assert driver.held(job) == ["cpu0"]


def test_a_program_that_cannot_resume_is_not_auctioned_before_its_stated_time(driver: Driver) -> None:
    fixed = driver.register("ann", 2, 2, resume=Resume.NEVER, stated_seconds=1e9)
    assert len(driver.held(fixed)) == 2
    other = driver.register("bob", 1, 1)
    driver.live(300.0)
    assert driver.held(other) == []
    lease = driver.books.leases_of(fixed)[0]
    assert lease.term_ends_at - lease.granted_at == driver.options.max_stated_seconds, "the time is capped"


def test_its_end_is_announced_and_then_those_who_wait_have_its_devices() -> None:
    options = LeaseOptions(term_seconds=60.0, max_stated_seconds=120.0, end_warned_seconds=(60.0,))
    driver = Driver(options=options)
    driver.node(devices=1)
    fixed = driver.register("ann", 1, 1, resume=Resume.NEVER, stated_seconds=500.0)
    other = driver.register("bob", 1, 1)
    driver.live(100.0)
    assert any("stated time ends" in reason for reason in driver.books.jobs[fixed].reasons)
    assert driver.held(other) == []
    driver.live(30.0)
    assert driver.held(fixed) == []
    assert driver.held(other) == ["cpu0"]


def test_it_goes_on_beyond_its_stated_time_while_nobody_waits() -> None:
    driver = Driver(options=LeaseOptions(term_seconds=60.0, max_stated_seconds=120.0))
    driver.node(devices=1)
    fixed = driver.register("ann", 1, 1, resume=Resume.NEVER, stated_seconds=500.0)
    driver.live(300.0)
    assert driver.held(fixed) == ["cpu0"]
    other = driver.register("bob", 1, 1)
    driver.live(90.0)
    assert driver.held(other) == ["cpu0"]
    assert driver.books.accounts["ann"].debt_device_seconds > 0


def test_u13_an_account_cannot_hold_more_than_its_limit(driver: Driver) -> None:
    driver.do(arbiter.set_account, "ann", SetAccount(max_devices=1), by="root")
    job = driver.register("ann", 1, 2)
    driver.report(job, step=5, steady_steps=5, bid=bid(100.0, 60.0))
    driver.live(30.0)
    assert len(driver.held(job)) == 1
    second = driver.register("ann", 1, 1)
    driver.live(100.0)
    assert sum(len(driver.held(j)) for j in (job, second)) == 1
    with pytest.raises(Refusal, match="may hold 1"):
        driver.register("ann", 2, 2)


def test_u1_u8_a_job_that_stops_making_steps_is_warned_and_then_paused(driver: Driver) -> None:
    job = _settled_alone(driver)
    step = driver.books.job_pulses[job].step
    for idle in range(0, 700, 10):
        driver.now += 10.0
        driver.report(job, step=step, idle_seconds=float(idle))
        driver.node()
    assert any("made no step" in reason for reason in driver.books.jobs[job].reasons)
    assert len(driver.held(job)) == 2
    for idle in range(700, 910, 10):
        driver.now += 10.0
        driver.report(job, step=step, idle_seconds=float(idle))
        driver.node()
    driver.release(job)
    assert driver.books.jobs[job].state is JobState.PAUSED
    assert any(audit.action == "idle_lost" for audit in driver.books.audits.values())


def test_u8_claiming_to_be_busy_without_steps_does_not_help_for_ever(driver: Driver) -> None:
    job = _settled_alone(driver)
    step = driver.books.job_pulses[job].step
    for _ in range(200):
        driver.now += 10.0
        driver.report(job, step=step, idle_seconds=0.0)
        driver.release(job)
        driver.node()
    assert driver.books.jobs[job].state is JobState.PAUSED


def test_a_ruling_that_breaks_its_contract_changes_nothing_and_is_audited(driver: Driver) -> None:
    job = _settled_alone(driver)
    before = driver.held(job)

    class Greedy(type(driver.policy)):  # type: ignore[misc]
        def rule(self, market, rng):  # type: ignore[no-untyped-def]
            ruling = super().rule(market, rng)
            first = market.contenders[0].job
            bad = replace(ruling.awards[first], devices=("n/cpu0", "n/cpu0", "elsewhere"))
            return replace(ruling, awards={**ruling.awards, first: bad})

    driver.policy = Greedy()
    driver.live(60.0)
    assert driver.held(job) == before
    assert any(audit.action == "ruling_refused" for audit in driver.books.audits.values())


def test_the_broken_clauses_of_a_ruling_are_named(driver: Driver) -> None:
    from selfsched_broker.core.market import Award, Contender, Market, Ruling, Seat
    from selfsched_broker.core.rulings import find_faults

    def contender(**fields: object) -> Contender:
        basics = {
            "job": "a", "number": 1, "account": "ann", "account_weight": 1.0, "priority": 1.0,
            "min_devices": 1, "max_devices": 2, "allowed_devices": (1, 2), "resume": Resume.ELASTIC,
            "bid": None, "age_seconds": 0.0, "fraction_done": 0.0, "share": 1.0,
        }  # fmt: skip
        return Contender(**{**basics, **fields})  # type: ignore[arg-type]

    def faults(devices: tuple[str, ...], **fields: object) -> str:
        seats = tuple(Seat(device=d, node="n", model="m", holder=None) for d in ("x", "y", "z"))
        market = Market(
            number=1, trigger="tick", seats=seats, contenders=(contender(**fields),), total_devices=3
        )
        return "; ".join(
            find_faults(market, Ruling(awards={"a": Award(job="a", devices=devices, reason="")}))
        )

    assert faults(("x",)) == ""
    assert faults(()) == ""
    assert "awarded 2 times" in faults(("x", "x"))
    assert "no seat" in faults(("q",))
    assert "cannot run on 3" in faults(("x", "y", "z"))
    assert "not at stake" in faults((), kept=("k",))
    assert "not repaid" in faults(("x",), at_stake=("y",), may_move=False)
    assert "exceed its limit" in faults(("x",), quota_left=0)
    assert "wants other devices" in faults(("x",), wanted_devices=("y",))
    market = Market(number=1, trigger="tick", seats=(), contenders=(contender(),), total_devices=3)
    assert find_faults(market, Ruling(awards={})) == ["a has no award"]


def test_releasing_twice_counts_once_and_a_wrong_fence_nothing(driver: Driver) -> None:
    job = driver.register()
    lease = arbiter.instructions(driver.books, driver.ctx, job).leases[0]
    wrong = ReleaseDevices(fence=lease.fence + 1, devices=("n/cpu0",))
    with pytest.raises(Refusal) as refused:
        driver.do(arbiter.release, lease.lease, wrong)
    assert refused.value.code is ProblemCode.LEASE_LOST
    right = ReleaseDevices(fence=lease.fence, devices=("n/cpu0",))
    driver.do(arbiter.release, lease.lease, right)
    driver.do(arbiter.release, lease.lease, right)
    assert driver.last is not None
    assert not driver.last.changes
    with pytest.raises(Refusal):
        driver.do(arbiter.release, lease.lease, ReleaseDevices(fence=lease.fence, devices=("n/cpu1",)))


def test_a_limit_that_is_lowered_is_enforced_at_once(driver: Driver) -> None:
    job = _settled_alone(driver)
    driver.do(arbiter.set_account, "ann", SetAccount(max_devices=1), by="root")
    driver.live(20.0)
    assert len(driver.held(job)) == 1
    driver.do(arbiter.set_account, "ann", SetAccount(lift_max_devices=True), by="root")
    driver.live(70.0)
    assert len(driver.held(job)) == 2


def test_a_job_that_learns_that_its_batch_needs_other_counts_leaves_and_comes_again(driver: Driver) -> None:
    job = driver.register("ann", 1, 2)
    assert driver.held(job) == ["cpu0"]
    driver.report(job, allowed_devices=(2,))
    driver.live(15.0)
    assert driver.held(job) == ["cpu0", "cpu1"]
    with pytest.raises(Refusal, match="no allowed device count"):
        driver.report(job, allowed_devices=(3,))


def test_a_gang_that_loses_a_device_leaves_the_rest_to_others(driver: Driver) -> None:
    gang = driver.register("ann", 2, 2)
    assert len(driver.held(gang)) == 2
    driver.live(5.0)
    other = driver.register("bob", 1, 1)
    driver.node(cpu1="sick")
    for _ in range(4):
        driver.now += 5.0
        driver.obey(gang)
        driver.report(other)
        driver.node(cpu1="sick")
    assert driver.held(gang) == []
    assert driver.held(other) == ["cpu0"]


def _four() -> tuple[Driver, str]:
    driver = Driver(options=LeaseOptions(term_seconds=60.0))
    driver.node(devices=4)
    first = driver.register("ann", 1, 4)
    driver.report(first, step=5, steady_steps=5, bid=bid(1000.0, 600.0, 400.0, 300.0))
    driver.live(50.0)
    assert len(driver.held(first)) == 4
    return driver, first


def test_the_claims_of_a_job_are_granted_together(driver: Driver) -> None:
    driver, first = _four()
    second = driver.register("bob", 2, 2)
    leaving = arbiter.instructions(driver.books, driver.ctx, first).leases
    for lease in leaving:
        for device in lease.leave:
            release = ReleaseDevices(fence=lease.fence, devices=(device,))
            driver.do(arbiter.release, lease.lease, release)
            driver.settle()
            driver.now += 1.0
            assert driver.held(second) == []
            driver.node(devices=4)
    assert len(driver.held(second)) == 2
    assert len(driver.books.leases_of(second)) == 1, "one lease, one start"


def test_when_some_claims_are_stuck_the_rest_is_granted_after_a_while() -> None:
    driver, first = _four()
    second = driver.do(arbiter.register, "bob", RegisterJob(name="job", max_devices=2)).job
    driver.report(second, bid=bid(500.0, 300.0))
    claims = driver.books.claims_of(second)
    assert len(claims) == 2
    stuck = claims[0].device.rpartition("/")[2]
    waited = 0.0
    while not driver.held(second) and waited < 400.0:
        waited += 5.0
        driver.now += 5.0
        driver.settle()
        driver.obey(first)
        driver.obey(second)
        driver.node(devices=4, **{stuck: "occupied"})
    assert driver.held(second) == [claims[1].device.rpartition("/")[2]]
    assert waited >= driver.options.max_notice_seconds
    assert [claim.device for claim in driver.books.claims_of(second)] == [claims[0].device]


def test_u14_a_wide_job_is_served_in_spite_of_a_stream_of_narrow_ones() -> None:
    driver = Driver(options=LeaseOptions(term_seconds=60.0), policy=Themis())
    driver.node(devices=4)
    narrow = [driver.register(f"user-{n}", 1, 1) for n in range(4)]
    for job in narrow:
        driver.report(job, step=30, steady_steps=30, bid=bid(5000.0))
    driver.live(60.0)
    wide = driver.register("wide", 4, 4)
    for _ in range(12):
        driver.live(30.0)
        if driver.held(wide):
            break
        oldest = next(iter(driver.books.live_jobs()))
        if oldest.id != wide:
            driver.end(oldest.id)
        job = driver.register("stream", 1, 1)
        driver.report(job, bid=bid(5000.0))
    assert len(driver.held(wide)) == 4


def test_u12_no_holder_is_moved_before_it_has_repaid_its_last_move() -> None:
    driver = Driver(options=LeaseOptions(term_seconds=30.0), policy=Themis())
    driver.node(devices=4)
    jobs: list[str] = []
    orders = 0
    for moment in range(120):
        if moment % 12 == 0 and len(jobs) < 5:
            jobs.append(driver.register(f"user-{moment}", 1, 4))
            driver.report(jobs[-1], bid=bid(2000.0, 1200.0, 900.0, 800.0, restart=5.0))
        before = {job: _unrepaid(driver, job) for job in jobs}
        yielding = {h.key for h in driver.books.holdings.values() if h.state == "yielding"}
        driver.now += 5.0
        driver.settle()
        for holding in driver.books.holdings.values():
            if holding.state == "yielding" and holding.key not in yielding:
                orders += 1
                assert not before[driver.books.leases[holding.lease].job]
        driver.live(0.001)
    assert orders > 3


def _unrepaid(driver: Driver, job: str) -> bool:
    found, pulse = driver.books.jobs[job], driver.books.job_pulses[job]
    needed = max(10 * found.move_cost_seconds, driver.fairness.repay_min_seconds)
    return found.moved_at is not None and pulse.steady_seconds < needed
