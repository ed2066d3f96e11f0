"""Faults of real training: zygote, loader workers, the kernel's end. Each killed by its pid."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from supervisor.runs import Run, Runs, is_alive, wait_for

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent.parent / "end_to_end" / "plan_program.py"


def start(runs: Runs, result: Path, *arguments: str, plan: str = "2@0,2@5", name: str = "job") -> Run:
    command = [sys.executable, str(PROGRAM), "--result", str(result), "--epochs", "1", *arguments]
    return runs.start(command, plan=plan, max_devices=2, name=name)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def result(tmp_path: Path) -> Path:
    return tmp_path / "result.json"


def test_a_killed_zygote_takes_its_ranks_and_another_one_goes_on(runs: Runs, result: Path) -> None:
    run = start(runs, result, "--step-seconds", "0.1")
    run.wait_for_event("segment_began", ordinal=1)
    run.wait_for_event("progressed", step=7)
    ranks = run.wait_for_ranks(2)
    os.kill(run.events("zygote_started")[0]["pid"], signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, ranks)), what="the ranks to die with the zygote")
    assert run.finish() == 0, run.output()
    assert len(run.events("zygote_started")) == 2
    assert run.events("fit_started")[2]["step"] == 5
    assert json.loads(result.read_text())["step"] == 15
    run.assert_nothing_left()


def test_loader_workers_die_with_a_killed_supervisor_and_the_name_goes_on(runs: Runs, result: Path) -> None:
    run = start(runs, result, "--step-seconds", "0.1", "--workers", "1")
    run.wait_for_event("segment_began", ordinal=1)
    run.wait_for_event("progressed", step=7)
    ranks = run.wait_for_ranks(2)
    workers = [worker for rank in ranks for worker in children_of(rank)]
    assert len(workers) >= 2
    os.kill(run.supervisor_pid, signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, [*ranks, *workers])), what="ranks and workers to die")
    assert run.finish() == 1
    run.assert_nothing_left()
    again = start(runs, result)
    assert again.finish() == 0, again.output()
    assert min(event["step"] for event in again.events("fit_started")[2:]) == 5
    assert json.loads(result.read_text())["step"] == 15


def test_a_killed_loader_worker_is_a_fault_and_the_run_goes_on(runs: Runs, result: Path) -> None:
    run = start(runs, result, "--step-seconds", "0.1", "--workers", "1")
    run.wait_for_event("segment_began", ordinal=1)
    run.wait_for_event("progressed", step=7)
    os.kill(children_of(run.wait_for_ranks(1)[0])[0], signal.SIGKILL)
    assert run.finish() == 0, run.output()
    assert run.output().count("a loader's worker died: rank 0 of 2 raised") == 1, run.output()
    assert run.events("fit_started")[-1]["step"] == 5
    run.assert_nothing_left()


def test_a_script_that_raises_on_one_rank_shows_its_traceback_once(runs: Runs, result: Path) -> None:
    run = start(runs, result, "--raise-at", "3", "--raise-rank", "1", plan="2@0")
    assert run.finish() == 1
    assert run.output().count('raise ValueError("boom")') == 1
    assert "rank 1 of 2 raised ValueError: boom" in run.output()
    assert len(run.events("segment_began")) == 1
    run.assert_nothing_left()
