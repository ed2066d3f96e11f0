"""What-if: as now by the job's own bid, and ahead by the policy; nobody else's bid is told."""

from __future__ import annotations

import pytest
from broker.driver import Driver, bid

from selfsched.protocol import ControlJob, Forecast, ProblemCode, WhatIf, WhatIfAnswer, WhatIfLine
from selfsched_broker.core import arbiter
from selfsched_broker.core.leases import LeaseOptions, Refusal
from selfsched_broker.core.policies import policy_named
from selfsched_broker.identity import Caller
from selfsched_broker.what_if import put

ANN, BOB, ROOT = Caller(account="ann"), Caller(account="bob"), Caller(account="root", admin=True)


@pytest.fixture
def driver() -> Driver:
    """Two devices: ann's job on one, for 80 s more; bob's on the other, for 500 s."""
    driver = Driver(options=LeaseOptions(term_seconds=300.0), policy=policy_named("selfsched"))
    driver.node(devices=2)
    for account, seconds in (("bob", (500.0,)), ("ann", (80.0, 45.0))):
        job = driver.register(account, 1, len(seconds))
        driver.report(job)
        driver.live(2.0)
        held = driver.books.devices_of(job)
        driver.report(
            job, step=100, steady_steps=60, fraction_done=0.5, devices_in_use=tuple(held),
            bid=bid(*seconds, current=1),
            forecast=Forecast(
                p10_seconds=seconds[0], p50_seconds=seconds[0], p90_seconds=seconds[0], assumption="as_now"
            ),
        )  # fmt: skip
    return driver


def ask(driver: Driver, caller: Caller = ANN, **asked: object) -> WhatIfAnswer:
    return put(driver.books, driver.ctx, caller, WhatIf(**asked)).answer()  # type: ignore[arg-type]


def job_of(driver: Driver, account: str) -> str:
    return next(job.id for job in driver.books.live_jobs() if job.account == account)


def test_as_now_it_is_the_standing_bid(driver: Driver) -> None:
    by_count = dict(ask(driver, devices=(1, 2)).forecasts)
    assert by_count[1].p50_seconds == pytest.approx(80.0, abs=1.0)
    assert by_count[2].p50_seconds == pytest.approx(45.0, abs=3.0)
    assert by_count[1].assumption == "as_now"
    assert [count for count, _ in ask(driver).forecasts] == [1, 2]


def test_ahead_of_it_stand_the_others(driver: Driver) -> None:
    as_it_is, on_two = ask(driver, devices=(2,)).ahead
    assert as_it_is.devices is None
    assert as_it_is.ends is not None
    assert as_it_is.ends.p50_seconds == pytest.approx(80.0, abs=2.0)
    # Two devices there are only when bob's are done, or not at all before.
    assert on_two.devices == 2
    assert on_two.ends is not None
    assert on_two.ends.p50_seconds > as_it_is.ends.p50_seconds
    gone = ask(driver, devices=(2,), without=("bob",)).ahead[1]
    assert gone.ends is not None
    assert gone.ends.p50_seconds < on_two.ends.p50_seconds


def test_a_job_that_was_not_begun(driver: Driver) -> None:
    answer = ask(driver, seconds=((1, 1000.0), (2, 600.0)), devices=(1, 2))
    assert answer.forecasts == ()
    free, on_one, on_two = answer.ahead
    assert [line.devices for line in answer.ahead] == [None, 1, 2]
    for line in answer.ahead:
        assert line.starts is not None
        assert line.ends is not None
        assert line.starts.p50_seconds <= line.ends.p50_seconds
    assert on_one.ends is not None
    assert on_two.ends is not None
    assert free.ends is not None
    assert on_one.ends.p50_seconds >= 1000.0 * 0.99
    assert on_two.starts is not None
    assert on_two.starts.p50_seconds > 100.0
    assert answer.is_measured


def width(line: WhatIfLine) -> float:
    assert line.ends is not None
    return line.ends.p90_seconds / line.ends.p10_seconds


def test_what_is_in_doubt_of_a_count_is_in_its_interval(driver: Driver) -> None:
    times = ((1, 1000.0), (2, 600.0))
    gone = {"seconds": times, "devices": (1, 2), "without": ("ann", "bob")}
    _, sure_one, sure_two = ask(driver, **gone).ahead
    _, one, two = ask(driver, doubts_log=((2, 0.5),), **gone).ahead
    assert width(one) == pytest.approx(width(sure_one))
    assert width(two) > 2 * width(sure_two)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (((1, 10.0), (2, 5.0)), "takes what you said"),
        (((1, 10.0), (4, 5.0)), "the cluster has 2 devices in order, so that it could run on 1, not on 4"),
        (((4, 5.0),), "the cluster has 2 devices in order, so that it would not start before there are 4"),
    ],
)
def test_what_is_too_wide_for_the_cluster_is_said(
    driver: Driver, seconds: tuple[tuple[int, float], ...], words: str
) -> None:
    answer = ask(driver, seconds=seconds, devices=tuple(n for n, _ in seconds))
    assert answer.reason.endswith(words)
    for line in answer.ahead:
        fits = min(n for n, _ in seconds) <= 2 if line.devices is None else line.devices <= 2
        assert (line.starts is not None, line.ends is not None) == (fits, fits)


def test_the_same_question_has_the_same_answer(driver: Driver) -> None:
    assert ask(driver, devices=(1, 2)) == ask(driver, devices=(1, 2))


@pytest.mark.parametrize(
    ("caller", "asked", "code"),
    [
        (ANN, {"devices": (4,)}, ProblemCode.IMPOSSIBLE),
        (Caller(account="cy"), {}, ProblemCode.NOT_FOUND),
        (ANN, {"without": ("nobody",)}, ProblemCode.NOT_FOUND),
        (ANN, {"seconds": ((1, 10.0),), "devices": (2,)}, ProblemCode.INVALID),
        (ANN, {"seconds": ((1, 10.0), (1, 20.0))}, ProblemCode.INVALID),
        (ANN, {"seconds": ((1, 10.0),), "doubts_log": ((2, 0.1),)}, ProblemCode.INVALID),
    ],
)
def test_what_cannot_be_answered_is_refused(
    driver: Driver, caller: Caller, asked: dict[str, object], code: ProblemCode
) -> None:
    with pytest.raises(Refusal) as refused:
        ask(driver, caller, **asked)
    assert refused.value.code is code


def test_by_id_only_ones_own_jobs_can_be_left_out(driver: Driver) -> None:
    bobs = job_of(driver, "bob")
    with pytest.raises(Refusal) as refused:
        ask(driver, without=(bobs,))
    assert refused.value.code is ProblemCode.NOT_FOUND
    assert bobs not in refused.value.message
    assert ask(driver, ROOT, job=job_of(driver, "ann"), without=(bobs,)).ahead


def test_a_paused_job_is_answered_as_now_only(driver: Driver) -> None:
    job = job_of(driver, "ann")
    driver.do(arbiter.control, job, ControlJob(action="pause"))
    answer = ask(driver, job=job, devices=(1,))
    assert dict(answer.forecasts)[1].p50_seconds > 0
    assert answer.ahead == ()
