"""A plain Trainer with a broker: it holds leases while it fits, and nothing of that hurts it."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from callback.fits import PACKAGES, loader, module, spy, trainer
from callback.scripted_lease import Lab, lab, slot
from negotiator.scripted_broker import until

from selfsched import SelfScheduler
from selfsched.errors import InvalidSettings, Refused
from selfsched.launch.locks import MachineLocks
from selfsched.protocol import DeviceState, JobState, Outcome, Resume

LIGHTNING = PACKAGES[0]


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made = lab(tmp_path, monkeypatch)
    yield made
    made.broker.close()


def at_step(step: int, action: Any) -> Any:
    """A callback that does something once, after so many steps."""
    return spy(LIGHTNING, "on_train_batch_end", lambda t: action(t) if t.global_step == step else None)


def callback(**arguments: Any) -> SelfScheduler:
    return SelfScheduler(explain=False, log=False, **arguments)


def run(held: Lab, *callbacks: Any, steps: int = 12, batches: int = 10, step_seconds: float = 0.0,
        **arguments: Any) -> Any:  # fmt: skip
    fit = trainer(LIGHTNING, held.root, *callbacks, **({"max_steps": steps, "max_epochs": -1} | arguments))
    held.fit(lambda: fit.fit(module(step_seconds=step_seconds), loader(batches), loader(2)))
    return fit


def is_free(number: int) -> bool:
    return MachineLocks().is_free(slot(number))


# --- holding ---------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PACKAGES)
def test_a_fit_holds_its_devices_from_before_its_first_step_to_its_end(
    package: str, held: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    free: list[bool] = []
    look = spy(package, "on_train_batch_end", lambda t: free.append(is_free(0)))
    fit = trainer(package, held.root, callback(time="2h"), look, max_steps=3)
    held.fit(lambda: fit.fit(module(package), loader()))
    assert free == [False] * 3
    assert is_free(0)
    (asked,) = held.broker.registrations
    assert (asked.resume, asked.stated_seconds) == (Resume.NEVER, 7200.0)
    assert (asked.min_devices, asked.max_devices, asked.wanted_devices) == (1, 1, ())
    assert [device for _, _, release in held.broker.releases for device in release.devices] == [slot(0)]
    assert [end.outcome for end in held.broker.ends] == [Outcome.FINISHED]
    assert held.warned == []
    assert f"holds {slot(0)} for 5 min" in capsys.readouterr().out.replace("4 min 59 s", "5 min")


def test_reports_carry_progress_a_bid_and_the_devices_in_use(held: Lab) -> None:
    def told(t: Any) -> None:
        until(lambda: held.broker.reports and held.broker.reports[-1].state is JobState.RUNNING)

    run(held, callback(), at_step(60, told), steps=80, step_seconds=0.005)
    newest = held.broker.reports[-1]
    assert newest.devices_in_use == (slot(0),)
    assert newest.planned_steps == 80
    assert 0 < newest.step <= 80
    assert [row.placement.devices for report in held.broker.reports if report.bid for row in report.bid.rows]
    assert newest.notice_seconds > 5.0


def test_a_second_fit_is_a_second_job(held: Lab) -> None:
    ours = callback()
    run(held, ours, steps=2)
    run(held, ours, steps=2)
    assert [end.outcome for end in held.broker.ends] == [Outcome.FINISHED] * 2
    assert held.broker.jobs == 2


def test_validating_asks_for_nothing(held: Lab) -> None:
    fit = trainer(LIGHTNING, held.root, callback())
    fit.validate(module(), loader(2), verbose=False)
    assert held.broker.calls == []


@pytest.mark.parametrize(
    ("error", "outcome"), [(ZeroDivisionError("mine"), Outcome.FAILED), (SystemExit(3), Outcome.CANCELLED)]
)
def test_an_exception_gives_everything_back(held: Lab, error: BaseException, outcome: Outcome) -> None:
    def fail(t: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        run(held, callback(), at_step(2, fail))
    assert [end.outcome for end in held.broker.ends] == [outcome]
    assert is_free(0)


def test_a_copy_made_by_pickling_holds_leases_of_its_own(held: Lab) -> None:
    ours = callback(time=60)
    copy, states = pickle.loads(pickle.dumps(ours)), []
    run(held, ours, at_step(1, lambda t: states.append(ours.__getstate__())), steps=2)
    assert (states[0]["_held"], states[0]["_settings"]) == (None, None)
    run(held, copy, steps=2)
    assert [asked.stated_seconds for asked in held.broker.registrations] == [60.0, 60.0]


@pytest.mark.parametrize(
    "arguments", [{"time": "soon"}, {"time": True}, {"time": 0}, {"when_taken": "fight"}]
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match=next(iter(arguments))):
        SelfScheduler(**arguments)


# --- the end of a lease -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "arguments"),
    [(7, {}), (10, {}), (4, {"accumulate_grad_batches": 2}), (7, {"min_epochs": 5, "min_steps": 30})],
)
def test_a_lease_that_ends_ends_the_fit_with_a_checkpoint_to_go_on_from(
    held: Lab, capsys: pytest.CaptureFixture[str], step: int, arguments: dict[str, Any]
) -> None:
    ours = callback()

    def order(t: Any) -> None:
        held.broker.want_back(1, slot(0))
        until(lambda: ours._held is not None and ours._held._holder.leave)  # type: ignore[union-attr]

    fit = run(held, ours, at_step(step, order), steps=40, **arguments)
    assert fit.global_step == step
    assert fit.should_stop
    path = held.root / "selfsched-job-1.ckpt"
    assert str(path) in (said := capsys.readouterr().out)
    assert "because the test says so" in said
    assert "ckpt_path=" in said
    assert [path.name for path in held.root.glob("*ckpt*")] == [path.name]
    assert [end.outcome for end in held.broker.ends] == [Outcome.CANCELLED]
    assert held.broker.releases[-1][2].checkpoint_step == step
    assert is_free(0)
    assert fit.fit_loop.min_epochs == arguments.get("min_epochs", fit.fit_loop.min_epochs)

    seen: list[tuple[int, int]] = []
    validated: list[int] = []
    look = spy(
        LIGHTNING, "on_train_batch_end", lambda t: seen.append((t.current_epoch, t.fit_loop.batch_idx))
    )
    count = spy(LIGHTNING, "on_validation_end", lambda t: validated.append(t.global_step))
    resumed = trainer(
        LIGHTNING, held.root, callback(), look, count, max_steps=40, max_epochs=-1, num_sanity_val_steps=0,
        **arguments,
    )  # fmt: skip
    held.fit(lambda: resumed.fit(module(), loader(10), loader(2), ckpt_path=path))
    per_step = arguments.get("accumulate_grad_batches", 1)
    done = step * per_step
    batches = [(n // 10, n % 10) for n in range(done, 40 * per_step)]
    assert seen == batches
    assert resumed.global_step == 40
    # One validation an epoch, none twice.
    assert validated == [at for at in range(10 // per_step, 41, 10 // per_step) if at > step]


def test_a_stop_by_its_owner_ends_the_fit_with_a_checkpoint(held: Lab) -> None:
    ours = callback()

    def stop(t: Any) -> None:
        held.broker.say("stop")
        until(lambda: ours._held is not None and ours._held._holder.leave)  # type: ignore[union-attr]

    fit = run(held, ours, at_step(3, stop), steps=40)
    assert fit.global_step == 3
    assert (held.root / "selfsched-job-1.ckpt").exists()


@pytest.mark.parametrize(("term_seconds", "words"), [(60.3, "ends in 1 min 00 s"), (600.3, "ends in 10 min")])
def test_the_end_is_announced(held: Lab, term_seconds: float, words: str) -> None:
    held.broker.term_seconds = term_seconds
    ours = callback()

    def announced(t: Any) -> None:
        until(lambda: any("lease ends" in n.words for n in ours._held._holder.news))  # type: ignore[union-attr]

    run(held, ours, at_step(3, announced), steps=5)
    (warned,) = held.warned
    assert words in warned


# --- a broker that is away, slow or mad ----------------------------------------------------------


def away(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


def html(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content="<html>It works!</html>", headers={"content-type": "text/html"})


def truncated(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content='{"job": "job-1", "inc', headers={"content-type": "application/json"})


@pytest.mark.parametrize("call", ["cluster", "jobs"])
@pytest.mark.parametrize("fault", [away, html, truncated])
def test_at_the_start_it_trains_at_once_and_says_so_once(held: Lab, call: str, fault: Any) -> None:
    held.broker.fault[call] = fault
    fit = run(held, callback(), steps=5)
    assert fit.global_step == 5
    (warned,) = held.warned
    assert "holds no lease" in warned
    assert held.broker.ends == []


def test_one_that_comes_back_later_gives_the_lease_then(held: Lab) -> None:
    held.broker.fault["cluster"] = away

    def back(t: Any) -> None:
        held.broker.fault.clear()
        until(lambda: not is_free(0), "the slot is locked")

    run(held, callback(), at_step(3, back), steps=6)
    assert len(held.warned) == 1
    assert [end.outcome for end in held.broker.ends] == [Outcome.FINISHED]


def test_one_that_answers_slowly_is_not_waited_for(held: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfsched.held_fit.ANSWER_SECONDS", 0.2)
    go_on = threading.Event()

    def slow(request: httpx.Request) -> None:
        go_on.wait(20)

    held.broker.fault["jobs"] = slow  # type: ignore[assignment]
    fit = run(held, callback(), at_step(3, lambda t: go_on.set()), steps=5)
    assert fit.global_step == 5
    assert "has not answered" in held.warned[0]


@pytest.mark.parametrize("fault", [away, html, truncated])
def test_while_it_trains_it_is_said_once_and_again_when_it_is_back(
    held: Lab, fault: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = callback()

    def holder() -> Any:
        assert ours._held is not None
        return ours._held._holder

    def lose(t: Any) -> None:
        held.broker.fault["report"] = fault
        held.broker.grant()  # wakes the report that is held back
        until(lambda: holder().news and holder().news[-1].is_warning)

    def back(t: Any) -> None:
        held.broker.fault.clear()
        until(lambda: any("answers again" in n.words for n in holder().news))
        assert not is_free(0)

    fit = run(held, ours, at_step(3, lose), at_step(5, back), steps=7)
    assert fit.global_step == 7
    assert len(held.warned) == 1, held.warned
    warned = held.warned[0]
    assert "keeps its devices' locks" in warned
    assert "the broker answers again" in capsys.readouterr().out
    assert [end.outcome for end in held.broker.ends] == [Outcome.FINISHED]


def test_a_lease_that_was_lost_ends_no_training(held: Lab) -> None:
    ours = callback()

    def lose(t: Any) -> None:
        held.broker.lose(1)
        assert ours._held is not None
        until(lambda: any("lease is over" in n.words for n in ours._held._holder.news))  # type: ignore[union-attr]

    fit = run(held, ours, at_step(3, lose), steps=6)
    assert fit.global_step == 6
    (warned,) = held.warned
    assert "goes on without one" in warned


def test_a_broker_that_forgot_the_job_is_asked_for_the_very_same_devices(held: Lab) -> None:
    def forget(t: Any) -> None:
        held.broker.forgets_job = True
        held.broker.leases.clear()
        held.broker.grant()
        until(lambda: held.broker.jobs == 2)

    fit = run(held, callback(), at_step(3, forget), steps=6)
    assert fit.global_step == 6
    assert held.broker.registrations[1].wanted_devices == (slot(0),)


# --- devices that others hold -----------------------------------------------------------------


@pytest.fixture
def full(held: Lab) -> Lab:
    held.broker.grants = False
    held.broker.held_by = {slot(0): "anna", slot(1): "ben"}
    held.broker.reasons = ("anna and ben hold everything",)
    return held


def test_it_waits_before_the_first_step_and_says_why_once(
    full: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def serve() -> None:
        def waits() -> bool:
            said.append(capsys.readouterr().out)
            return "anna and ben hold everything" in "".join(said)

        until(waits)
        full.broker.grant(slot(1))

    serving = threading.Thread(target=serve)
    serving.start()
    fit = run(full, callback(), steps=2)
    serving.join()
    assert fit.global_step == 2
    assert "".join(said).count("waiting: anna and ben hold everything") == 1
    assert f"{slot(0)} by anna" in "".join(said)
    assert [end.outcome for end in full.broker.ends] == [Outcome.FINISHED]


def test_ctrl_c_ends_the_waiting(full: Lab) -> None:
    def interrupt() -> None:
        until(lambda: full.broker.reports, "it waits")
        signal.raise_signal(signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run(full, callback(), steps=2)
    interrupting.join()
    assert [end.outcome for end in full.broker.ends] == [Outcome.CANCELLED]


def test_warn_trains_and_names_who_holds_them(full: Lab) -> None:
    fit = run(full, callback(when_taken="warn"), steps=2)
    assert fit.global_step == 2
    (warned,) = full.warned
    assert f"{slot(0)} by anna, {slot(1)} by ben" in warned


def test_error_refuses_and_says_what_to_do(full: Lab) -> None:
    with pytest.raises(Refused, match=r'by anna.*when_taken="wait"'):
        run(full, callback(when_taken="error"), steps=2)
    assert [end.outcome for end in full.broker.ends] == [Outcome.CANCELLED]


def test_its_own_process_on_the_device_is_not_waited_for(full: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker had its time to give the device to whose process it is."""
    monkeypatch.setattr("selfsched.held_fit.GRANT_SECONDS", 0.3)
    full.broker.held_by = {}
    full.broker.state = DeviceState.QUARANTINED
    full.broker.detail = f"in use without a lease by anna (process {os.getpid()})"
    fit = run(full, callback(), steps=2)
    assert fit.global_step == 2
    (warned,) = full.warned
    assert "own process" in warned


def test_processes_of_strangers_are_waited_for_a_while(full: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfsched.held_fit.GIVE_UP_SECONDS", 1.5)
    full.broker.held_by = {}
    full.broker.state = DeviceState.QUARANTINED
    full.broker.detail = "in use without a lease by anna (process 1)"
    fit = run(full, callback(), steps=2)
    assert fit.global_step == 2
    (warned,) = full.warned
    assert "by anna" in warned


def test_what_can_never_be_given_is_refused(held: Lab) -> None:
    problem = '{"status": 422, "code": "impossible_request", "title": "No", "detail": "there are 0"}'
    held.broker.fault["jobs"] = lambda request: httpx.Response(
        422, content=problem, headers={"content-type": "application/problem+json"}
    )
    with pytest.raises(Refused, match="there are 0"):
        run(held, callback(), steps=2)
    fit = run(held, callback(when_taken="warn"), steps=2)
    assert fit.global_step == 2
    assert "there are 0" in held.warned[0]
