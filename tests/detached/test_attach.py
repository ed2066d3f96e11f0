"""`selfsched.attach` and a detached `fit` where no other process is needed: what cannot be, and why."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from detached.made_up import MadeUpRun

import selfsched
from selfsched.elastic.payload import PYTHON_VERSION, Payload, write_payload
from selfsched.elastic.run_directory import RunOutcome
from selfsched.errors import CheckpointUnusable, RankFailed, Refused, Unsupported


@pytest.fixture
def runs_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SELFSCHED_RUNS_DIR", str(tmp_path))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    return tmp_path


def a_run(parent: Path, *, payload: bytes | None = None, **of_the_job: Any) -> MadeUpRun:
    run = MadeUpRun(parent, **{"python_version": PYTHON_VERSION, **of_the_job})
    run.trains(at=1.0, step=5)
    if payload is None:
        write_payload(Payload(torch.nn.Linear(2, 1)), run.directory.payload)
    elif payload:
        run.directory.payload.write_bytes(payload)
    return run


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"python_version": "2.7"}, r"started with Python 2.7, selfsched None, and here is Python 3\.\d+"),
        ({"payload": b"no pickle"}, "what the run night was given cannot be read: UnpicklingError"),
        ({"payload": b"cno_such_package\nModel\n."}, "cannot be read: ModuleNotFoundError: No module named"),
        ({"payload": b""}, "was not kept: newer runs have taken its place"),
        ({"payload": b"", "detached": False}, "was not kept, since it was not a detached run"),
        ({"program": "command"}, "is a command and has no module to bring back; `selfsched attach night`"),
    ],
)
def test_a_module_that_cannot_be_built_here_is_said_with_what_to_do(
    runs_dir: Path, made: dict[str, Any], words: str
) -> None:
    run = a_run(runs_dir, **made)
    run.end()
    with pytest.raises(Refused, match=words) as refused:
        selfsched.attach("night")
    if "program" not in made:
        assert "give a module of the same shape: selfsched.attach('night', model)" in str(refused.value)


def test_a_payload_that_others_could_have_changed_is_not_read(runs_dir: Path) -> None:
    run = a_run(runs_dir, payload=b"cos\nabort\n(tR.")
    run.end()
    run.directory.path.chmod(0o770)
    with pytest.raises(CheckpointUnusable, match="has mode 0770, so that others could have changed it"):
        selfsched.attach("night")


def test_it_is_said_before_the_end_is_waited_for(runs_dir: Path) -> None:
    run = a_run(runs_dir, python_version="2.7")
    with pytest.raises(Refused, match="and here is Python"):
        selfsched.attach("night")
    run.end()


@pytest.mark.parametrize(
    ("outcome", "error", "words"),
    [
        (RunOutcome("failed", 1, "rank 0 raised ValueError: boom", "Traceback\n  line"), RankFailed, "boom"),
        (RunOutcome("refused", 2, "no fsdp"), Unsupported, "no fsdp"),
        (RunOutcome("finished", 0, step=5), CheckpointUnusable, "finished and has left no result in "),
        (RunOutcome("stopped", 130), CheckpointUnusable, "has left no checkpoint yet"),
    ],
)
def test_a_run_that_left_nothing_raises_what_it_ended_with(
    runs_dir: Path, outcome: RunOutcome, error: type[Exception], words: str
) -> None:
    a_run(runs_dir).end(outcome)
    with pytest.raises(error, match=words) as raised:
        selfsched.attach()
    if outcome.traceback:
        assert raised.value.__notes__ == [outcome.traceback]


def test_why_it_failed_is_said_also_where_its_module_cannot_be_built(runs_dir: Path) -> None:
    a_run(runs_dir, python_version="2.7").end(RunOutcome("failed", 1, "rank 0 raised ValueError: boom"))
    with pytest.raises(RankFailed, match="boom"):
        selfsched.attach("night")
    with pytest.raises(Refused, match="and here is Python"):
        selfsched.attach("night", resume=True)


def test_a_run_that_was_just_begun_has_no_weights_yet(runs_dir: Path) -> None:
    run = a_run(runs_dir)
    with pytest.raises(CheckpointUnusable, match="the run night has left no checkpoint yet"):
        selfsched.attach(wait=False)
    run.end()


def test_what_cannot_go_on_is_refused_and_nothing_is_started(runs_dir: Path) -> None:
    run = a_run(runs_dir, payload=b"")
    run.end(RunOutcome("stopped", 130, step=5))
    with pytest.raises(Refused, match="was not kept: newer runs have taken its place, so it cannot go on"):
        selfsched.attach("night", torch.nn.Linear(2, 1), resume=True)
    assert run.directory.read_outcome() is not None, "the run is as it was"


def test_who_trains_here_cannot_outlive_this_process(runs_dir: Path) -> None:
    with pytest.raises(Refused, match="choose one"):
        selfsched.Trainer(elastic=False, detach=True)
    with pytest.raises(Refused, match="choose one"):
        selfsched.Trainer(elastic=False).fit(torch.nn.Linear(2, 1), detach=True)


def test_a_module_that_did_not_travel_once_may_travel_the_next_time(runs_dir: Path) -> None:
    """The run's directory is let go of when nothing was started in it."""
    trainer = selfsched.Trainer(1, 1, plan="1@0", detach=True, logger=False, enable_checkpointing=False)
    model = torch.nn.Linear(2, 1)
    model.guard = threading.Lock()  # type: ignore[assignment]
    for _ in range(2):
        with pytest.raises(Refused, match=r"module.guard \(a _thread.lock\) cannot travel"):
            trainer.fit(model)
    assert list(runs_dir.glob("*/payload.pkl")) == []
