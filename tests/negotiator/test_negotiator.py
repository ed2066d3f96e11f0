"""The negotiator with real threads and a real client, against a scripted broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from negotiator.scripted_broker import Bench, ScriptedBroker, until

from selfsched.core.events import FitFinished, FitStarted, StepsTimed, StepTiming
from selfsched.elastic.segment import boottime
from selfsched.errors import NotAllowed, Refused
from selfsched.protocol import HardwarePrior, JobState, Outcome, Problem, Resume


@pytest.fixture
def broker() -> ScriptedBroker:
    return ScriptedBroker()


@pytest.fixture
def bench(broker: ScriptedBroker, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, broker)
    yield bench
    bench.close()


def refusing(status: int, code: str) -> object:
    problem = Problem(status=status, code=code, title="No", detail="4 devices wanted, there are 2")
    headers = {"content-type": "application/problem+json"}
    return lambda request: httpx.Response(status, content=problem.to_json(), headers=headers)


def away(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


def html(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content="<html>It works!</html>", headers={"content-type": "text/html"})


def truncated(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content='{"job": "job-1", "inc', headers={"content-type": "application/json"})


def not_a_number(request: httpx.Request) -> httpx.Response:
    content = '{"job":"job-1","incarnation":1,"version":9,"state":"running","next_report_seconds":NaN}'
    return httpx.Response(200, content=content, headers={"content-type": "application/json"})


def bad_gateway(request: httpx.Request) -> httpx.Response:
    return httpx.Response(502, content="<html>Bad Gateway</html>", headers={"content-type": "text/html"})


def steps(bench: Bench, first: int, last: int, seconds: float = 0.01) -> None:
    timings = tuple(
        StepTiming(step=step, seconds=seconds, local_samples=8, warm_up=False)
        for step in range(first + 1, last + 1)
    )
    bench.negotiator.handle(StepsTimed(timings=timings))


def fit_started(bench: Bench, *, planned: int = 1000, allowed: tuple[int, ...] = (1, 2)) -> None:
    bench.negotiator.handle(
        FitStarted(
            fit=1, package="lightning.pytorch", global_batch=8, reference_devices=1, step=0,
            planned_steps=planned, allowed_devices=allowed, at=boottime(),
        )
    )  # fmt: skip


def test_a_job_runs_on_what_it_is_granted_and_says_goodbye(bench: Bench, broker: ScriptedBroker) -> None:
    bench.start()
    assert bench.wanted_ids == ()
    assert bench.wanted.reason == "because the test says so"
    broker.grant("a")
    bench.run("a")
    assert bench.wanted.lease_ends_at < boottime() + 25.5
    until(lambda: broker.reports[-1].state is JobState.STARTING, "reported as starting")
    assert broker.reports[-1].devices_in_use == ("a",)
    bench.leave(reason="finished")
    bench.close()
    assert [end.outcome for end in broker.ends] == [Outcome.FINISHED]


def test_a_job_asks_for_time_to_leave_from_its_first_report_on(bench: Bench, broker: ScriptedBroker) -> None:
    bench.start()
    until(lambda: broker.reports)
    assert broker.reports[0].notice_seconds >= 5.0


def test_the_supervisor_is_woken_when_something_changes(bench: Bench, broker: ScriptedBroker) -> None:
    bench.start()
    bench.woken.clear()
    broker.grant("a")
    assert bench.woken.wait(10)
    until(lambda: bench.wanted_ids == ("a",))


def test_what_can_never_run_is_refused_at_the_start(bench: Bench, broker: ScriptedBroker) -> None:
    broker.fault["jobs"] = refusing(422, "impossible_request")
    with pytest.raises(Refused, match="there are 2"):
        bench.start()
    broker.fault["jobs"] = refusing(401, "not_authenticated")
    with pytest.raises(NotAllowed):
        bench.start()
    bench.negotiator.end(Outcome.FAILED, "never began")  # of a source that did not start


def test_min_devices_above_max_devices_is_refused(broker: ScriptedBroker, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="min_devices"):
        Bench(tmp_path, broker, min_devices=4, max_devices=2).start()
    assert broker.jobs == 0


@pytest.mark.parametrize("fault", [away, bad_gateway])
def test_a_broker_that_is_away_at_the_start_is_waited_for(
    bench: Bench, broker: ScriptedBroker, fault: object
) -> None:
    broker.fault["jobs"] = fault
    bench.start()
    until(lambda: "waiting for it" in bench.wanted.reason)
    assert bench.wanted.ends_because is None
    broker.fault.clear()
    broker.grant("a")
    bench.run("a")
    assert broker.jobs == 1


@pytest.mark.parametrize("fault", [html, truncated, not_a_number])
def test_an_address_that_is_no_broker_is_refused_at_the_start(
    bench: Bench, broker: ScriptedBroker, fault: object
) -> None:
    broker.fault["jobs"] = fault
    with pytest.raises(Refused, match="check SELFSCHED_BROKER"):
        bench.start()


def test_a_registration_whose_reply_got_lost_makes_no_second_job(
    bench: Bench, broker: ScriptedBroker
) -> None:
    broker.lost_replies = {"jobs"}
    bench.start()
    until(lambda: broker.jobs == 1)
    broker.lost_replies = set()
    until(lambda: broker.reports)
    assert broker.jobs == 1


@pytest.mark.parametrize("fault", [away, truncated])
def test_a_broker_that_fails_in_the_middle_stops_nothing_and_is_asked_again(
    bench: Bench, broker: ScriptedBroker, fault: object
) -> None:
    bench.start()
    broker.grant("a")
    bench.run("a")
    fit_started(bench)
    steps(bench, 0, 40)
    until(lambda: any(report.bid and report.bid.rows[0].remaining_seconds for report in broker.reports))
    broker.fault["report"] = fault
    broker.restart()  # answers the open poll
    until(lambda: "the broker does not answer" in (bench.negotiator.status_line() or ""))
    assert bench.wanted_ids == ("a",)
    count = len(broker.reports)
    broker.fault.clear()
    until(lambda: len(broker.reports) > count)
    assert broker.reports[count].bid is not None  # everything is told again
    until(lambda: "does not answer" not in (bench.negotiator.status_line() or ""))
    assert bench.wanted_ids == ("a",)
    assert broker.jobs == 1


def test_a_broker_away_beyond_the_lease_makes_the_job_leave_and_come_back(tmp_path: Path) -> None:
    broker = ScriptedBroker(ttl_seconds=2.0)
    bench = Bench(tmp_path, broker)
    bench.start()
    broker.grant("a")
    bench.run("a")
    broker.fault["report"] = away
    broker.restart()
    until(lambda: bench.wanted_ids == ())
    assert bench.wanted.leave_by <= boottime() + 2.0
    bench.leave()
    until(lambda: "its lease has run out" in bench.wanted.reason)
    assert not broker.releases
    broker.fault.clear()
    bench.run("a")
    bench.close()


def test_a_lost_lease_is_left_and_the_job_goes_on_with_what_remains(
    bench: Bench, broker: ScriptedBroker
) -> None:
    first = broker.grant("a")
    bench.start()
    bench.run("a")
    until(lambda: any(report.leases for report in broker.reports))
    broker.lose(first)
    until(lambda: bench.wanted_ids == ())
    bench.leave()
    broker.grant("b")
    bench.run("b")
    assert not broker.releases


def test_reports_of_a_lease_that_the_broker_gave_away_are_refused_and_taken_to_heart(
    bench: Bench, broker: ScriptedBroker
) -> None:
    first = broker.grant("a")
    bench.start()
    bench.run("a")
    until(lambda: broker.reports[-1].leases)
    with broker.changed:
        del broker.leases[first]  # without a word: the next report finds out
        broker.version -= 1
        broker.changed.notify_all()
    broker.restart()
    until(lambda: bench.wanted_ids == ())
    until(lambda: broker.reports[-1].leases == ())


def test_a_shrink_releases_only_what_was_left_once_and_with_one_key(
    bench: Bench, broker: ScriptedBroker
) -> None:
    fence = broker.grant("a", "b")
    bench.start()
    bench.run("a", "b")
    broker.lost_replies = {"release"}
    broker.want_back(fence, "b")
    until(lambda: bench.wanted_ids == ("a",))
    assert boottime() < bench.wanted.leave_by <= boottime() + 25.5  # the lease ends before the notice
    bench.leave(step=7)
    bench.run("a")
    until(lambda: [last for last, _ in broker.calls].count("release") >= 3, "the release again")
    broker.lost_replies = set()
    assert len({key for last, key in broker.calls if last == "release"}) == 1
    ((_, _, message),) = broker.releases
    assert (message.devices, message.fence, message.checkpoint_step) == (("b",), fence, 7)


def test_a_grow_waits_for_the_further_devices_lock(bench: Bench, broker: ScriptedBroker) -> None:
    bench.start()
    broker.grant("a")
    bench.run("a")
    bench.locks.busy = {"b"}
    broker.grant("b")
    until(lambda: any(len(report.leases) == 2 for report in broker.reports))
    assert bench.wanted_ids == ("a",)
    bench.locks.busy = set()
    until(lambda: set(bench.wanted_ids) == {"a", "b"})
    end = bench.leave()
    assert end.left == ()
    bench.run("a", "b")
    assert not broker.releases


def test_the_bid_is_told_at_once_after_the_visit(bench: Bench, broker: ScriptedBroker) -> None:
    bench.start()
    broker.grant("a")
    bench.run("a")
    fit_started(bench, allowed=(1, 2))
    steps(bench, 0, 10)
    until(lambda: any(report.allowed_devices == (1, 2) for report in broker.reports))
    measured = [r for r in broker.reports if r.bid and r.bid.rows[0].remaining_seconds is not None]
    assert not measured
    steps(bench, 10, 40)
    asked_at = boottime()
    until(lambda: [r for r in broker.reports if r.bid and r.bid.rows[0].remaining_seconds is not None])
    assert boottime() - asked_at < 5.0  # less than the wait of a long poll
    assert broker.reports[-1].steady_steps >= 30
    assert broker.reports[-1].step == 40


def test_pause_resume_and_stop_are_followed(bench: Bench, broker: ScriptedBroker) -> None:
    bench.start()
    broker.grant("a")
    bench.run("a")
    broker.say("pause")
    until(lambda: bench.wanted_ids == ())
    bench.leave()
    until(lambda: broker.releases)
    until(lambda: broker.reports[-1].state is JobState.PAUSED)
    broker.say("go_on")
    broker.grant("a")
    bench.run("a")
    broker.say("stop")
    until(lambda: bench.wanted.ends_because is not None)
    assert bench.wanted.outcome is Outcome.CANCELLED


def test_a_broker_that_lost_its_books_gets_the_job_again(bench: Bench, broker: ScriptedBroker) -> None:
    bench.start()
    broker.grant("a")
    bench.run("a")
    broker.forgets_job = True
    broker.leases.clear()
    broker.restart()
    until(lambda: broker.jobs == 2)
    until(lambda: bench.wanted_ids == ())
    bench.leave()
    broker.grant("a")
    bench.run("a")


def test_a_broker_that_is_silent_delays_neither_the_supervisor_nor_the_end(
    bench: Bench, broker: ScriptedBroker
) -> None:
    bench.start()
    broker.grant("a")
    bench.run("a")
    def held(request: httpx.Request) -> httpx.Response | None:
        with broker.changed:
            broker.changed.wait_for(lambda: broker.is_closed, timeout=30)
        raise httpx.ReadTimeout("")

    broker.fault["report"] = held
    broker.restart()
    began = boottime()
    for _ in range(100):
        bench.negotiator.handle(StepsTimed(timings=()))
        assert bench.wanted_ids == ("a",)
    assert boottime() - began < 1.0


def test_the_history_tells_segments_allocations_and_forecasts(bench: Bench, broker: ScriptedBroker) -> None:
    bench.start()
    fence = broker.grant("a", "b")
    bench.run("a", "b")
    fit_started(bench, planned=100)
    for done in (5, 12, 27, 40):
        steps(bench, max(0, done - 10), done)
        until(lambda done=done: bench.negotiator._record.facts(boottime()).step >= done)
    broker.want_back(fence, "b")
    until(lambda: bench.wanted_ids == ("a",))
    bench.leave(step=40)
    bench.run("a")
    fit_started(bench, planned=100)
    for done in (55, 78, 100):
        steps(bench, done - 10, done)
        until(lambda done=done: bench.negotiator._record.facts(boottime()).step >= done)
    bench.negotiator.handle(FitFinished(fit=1, step=100, epoch=1, metrics={}))
    bench.leave(reason="finished", step=100)
    bench.close()
    history = bench.history()
    assert [(span["devices"], span["last_step"], span["ended_by"]) for span in history["segments"]] == [
        (["a", "b"], 40, "yielded"), (["a"], 100, "finished")
    ]  # fmt: skip
    assert [change["devices"] for change in history["allocations"]] == [["a", "b"], ["a"]]
    assert [forecast["at"] for forecast in history["forecasts"]] == [0.1, 0.25, 0.5, 0.75]
    assert [forecast["devices"] for forecast in history["forecasts"]] == [2, 2, 1, 1]
    assert [forecast["allocation_held"] for forecast in history["forecasts"]] == [False, False, True, True]
    for forecast in history["forecasts"]:
        assert forecast["low_s"] <= forecast["predicted_finish_s"] <= forecast["high_s"]
        assert forecast["actual_finish_s"] == history["finish_s"]
    assert history["outcome"] == "finished"
    assert (tmp := bench.job.run_directory / "history.json").stat().st_mode & 0o077 == 0, tmp


def test_what_was_learned_is_kept_for_the_next_start_of_the_job(
    broker: ScriptedBroker, tmp_path: Path
) -> None:
    first = Bench(tmp_path, broker)
    first.start()
    broker.grant("a")
    first.run("a")
    fit_started(first)
    steps(first, 0, 60)
    until(lambda: broker.reports[-1].bid or broker.reports[-1].steady_steps >= 60)
    first.leave(step=60)
    first.close(Outcome.CANCELLED)
    again = ScriptedBroker()
    second = Bench(tmp_path, again)
    second.start()
    until(lambda: any(r.bid and r.bid.rows[0].remaining_seconds is not None for r in again.reports))
    second.close(Outcome.CANCELLED)


def test_a_damaged_model_of_an_earlier_life_is_no_obstacle(broker: ScriptedBroker, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text('{"version": 1, "hardware": 5}')
    bench = Bench(tmp_path, broker)
    bench.start()
    until(lambda: broker.reports)
    bench.close()


def test_a_job_that_the_broker_ended_asks_for_its_outcome_and_ends(
    bench: Bench, broker: ScriptedBroker
) -> None:
    bench.start()
    broker.grant("a")
    bench.run("a")
    broker.fault["report"] = refusing(409, "job_ended")
    broker.fault["job-1"] = away  # even when that cannot be told
    broker.restart()
    until(lambda: bench.wanted.ends_because is not None)
    assert bench.wanted.outcome is Outcome.CANCELLED
    assert ("job-1", None) in broker.calls


def test_what_the_broker_knows_of_the_hardware_is_asked_for_once_it_is_known(
    bench: Bench, broker: ScriptedBroker
) -> None:
    prior = HardwarePrior(hardware="cpu", jobs=3, latency_seconds=1e-3, bandwidth_bytes_per_second=1e9)
    headers = {"content-type": "application/json"}
    broker.fault["prior"] = lambda request: httpx.Response(200, content=prior.to_json(), headers=headers)
    bench.start()
    broker.grant("a")
    bench.run("a")
    until(lambda: bench.negotiator._record.prior("cpu") == prior)


def test_a_broker_that_is_gone_at_the_end_does_not_hold_the_run_up(
    bench: Bench, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selfsched.negotiator._END_SECONDS", 0.1)
    bench.start()
    broker.fault["end"] = away
    began = boottime()
    bench.close()
    assert boottime() - began < 5.0
    assert bench.history()["outcome"] == "finished"


def test_an_end_that_the_broker_refuses_is_not_repeated(bench: Bench, broker: ScriptedBroker) -> None:
    bench.start()
    broker.fault["end"] = refusing(404, "not_found")
    bench.close()
    assert [last for last, _ in broker.calls].count("end") == 1


def test_a_mistake_of_ours_costs_no_lease(
    bench: Bench, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.start()
    broker.grant("a")
    bench.run("a")

    def stumble(now: float) -> None:
        raise ZeroDivisionError("in the model")

    monkeypatch.setattr(bench.negotiator._record, "facts", stumble)
    until(lambda: "stumbled" in caplog.text)
    count = len(broker.reports)
    broker.restart()
    until(lambda: len(broker.reports) > count, "reports go on")

    def explode(request: httpx.Request) -> httpx.Response:
        raise ZeroDivisionError("in the client")

    broker.fault["report"] = explode
    broker.restart()
    until(lambda: "a call to the broker went wrong" in caplog.text)
    broker.fault.clear()
    count = len(broker.reports)
    until(lambda: len(broker.reports) > count, "reports go on")
    assert bench.wanted_ids == ("a",)


def test_without_usable_locks_no_device_is_started_on(
    bench: Bench, broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(device_id: str) -> bool:
        raise Refused("the directory of the device locks is a file")

    bench.locks.is_free = refuse
    bench.start()
    broker.grant("a")
    until(lambda: "is a file" in caplog.text)
    assert bench.wanted_ids == ()


def test_a_fixed_program_states_its_time_and_counts_as_running(tmp_path: Path) -> None:
    broker = ScriptedBroker()
    bench = Bench(tmp_path, broker, max_devices=1, fixed=True, stated_seconds=60.0)
    bench.start()
    assert broker.registrations[0].stated_seconds == 60.0
    assert broker.registrations[0].resume is Resume.NEVER
    broker.grant("a")
    bench.run("a")
    until(lambda: broker.reports[-1].state is JobState.RUNNING)
    bench.close()


def test_a_training_that_keeps_its_size_allows_only_that(bench: Bench, broker: ScriptedBroker) -> None:
    bench.start()
    broker.grant("a", "b")
    bench.run("a", "b")
    bench.negotiator.handle(
        FitStarted(
            fit=1, package="lightning.pytorch", global_batch=8, reference_devices=1, step=0,
            planned_steps=100, allowed_devices=(1, 2), resume="same_size", at=boottime(),
        )
    )  # fmt: skip
    until(lambda: any(report.allowed_devices == (2,) for report in broker.reports))


def test_how_the_broker_was_found_is_said_once(bench: Bench, broker: ScriptedBroker) -> None:
    bench.access.introduction = "a private broker of yours"
    bench.start()
    assert bench.wanted.reason == "because the test says so (a private broker of yours)"
    broker.reasons = ("another reason",)
    broker.grant("a")
    bench.run("a")
    assert bench.wanted.reason == "another reason"
