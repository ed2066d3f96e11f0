"""A detached run of a terminal: `selfsched run --detach`, then `attach`, `runs` and `stop`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from detached.made_up import leave_checkpoint
from supervisor.runs import Run, Runs, wait_for

from selfsched.elastic.run_directory import RunDirectory

pytestmark = pytest.mark.slow


def command(runs: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "selfsched", *words], env={**os.environ, "SELFSCHED_RUNS_DIR": str(runs)},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def is_held(run: Run) -> bool:
    return RunDirectory(run.directory).is_held


def test_a_hang_up_ends_the_client_alone_and_the_rest_is_seen_later(runs: Runs, tmp_path: Path) -> None:
    run = runs.tiny(tmp_path / "state", 150, plan="1@0", detach=True)
    run.wait_for_event("progressed", step=2)
    run.client.send_signal(signal.SIGHUP)
    assert run.finish() == -signal.SIGHUP
    assert is_held(run)
    follower = command(run.runs, "attach")
    out, error = follower.communicate(timeout=60)
    assert follower.returncode == 0, error
    assert "rank 0 of 1 goes on from 0" in out, "what was printed before is shown too"
    assert "training on 1 device (as planned)" in error
    assert "selfsched: finished at step 150" in error
    assert not run.events("stop_asked")
    run.assert_nothing_left()


def test_ctrl_c_leaves_the_run_again_and_again_and_stop_ends_it(runs: Runs, tmp_path: Path) -> None:
    run = runs.tiny(tmp_path / "state", 100_000, plan="1@0", detach=True)
    run.wait_for_event("progressed", step=2)
    run.client.send_signal(signal.SIGINT)
    assert run.finish() == 130
    assert "the run job goes on without this process; `selfsched attach job` follows it again" in run.output()
    follower = command(run.runs, "attach", "job")
    assert follower.stdout is not None
    assert "goes on from 0" in follower.stdout.readline()
    follower.send_signal(signal.SIGINT)
    _, error = follower.communicate(timeout=60)
    assert (follower.returncode, "`selfsched stop job` ends it" in error) == (130, True), error
    assert is_held(run)
    assert not run.events("stop_asked")
    listed, _ = command(run.runs, "runs", "--json").communicate(timeout=60)
    (told,) = json.loads(listed)
    assert (told["name"], told["state"], told["detached"]) == ("job", "running", True)
    assert told["planned_steps"] == 100_000
    stopper = command(run.runs, "stop", "job")
    _, error = stopper.communicate(timeout=60)
    assert stopper.returncode == 0, error
    assert f"stopped; checkpoint at step {(tmp_path / 'state').read_text()}" in error
    run.assert_nothing_left()


def test_a_life_that_made_no_checkpoint_ends_at_the_one_before_it(runs: Runs, tmp_path: Path) -> None:
    leave_checkpoint(tmp_path / "runs" / "job", 20)
    (tmp_path / "runs" / "job").chmod(0o700)
    run = runs.tiny(tmp_path / "state", 100_000, plan="1@0", detach=True)
    run.wait_for_event("progressed", step=2)
    _, error = command(run.runs, "stop", "--now", "job").communicate(timeout=60)
    assert "checkpoint at step 20" in error
    outcome = RunDirectory(run.directory).read_outcome()
    assert outcome is not None
    assert (outcome.outcome, outcome.step) == ("stopped", 20)


def test_stop_now_ends_what_hangs_also_while_its_user_looks_on(runs: Runs, tmp_path: Path) -> None:
    run = runs.tiny(tmp_path / "state", 10, "hang", plan="1@0")
    run.wait_for_event("progressed", step=5)
    stopper = command(run.runs, "stop", "--now", "job")
    _, error = stopper.communicate(timeout=60)
    assert stopper.returncode == 0, error
    assert "is told to end at once" in error
    assert run.finish() == 130, run.output()
    wait_for(lambda: not is_held(run), what="the supervisor to be gone")
    run.assert_nothing_left()
