"""Killed at any moment: nothing is orphaned, no device stays held, the run goes on.

The ranks here are torch-free (`tiny_rank.py`) and cold; `test_training_faults.py` has the
real thing.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from supervisor.runs import TINY_RANK, Runs, is_alive, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_a_plan_is_played_and_each_segment_goes_on_where_the_last_one_left(runs: Runs, state: Path) -> None:
    run = runs.tiny(state, 30, plan="2@0,1@7,3@20", max_devices=3)
    assert run.finish() == 0, run.output()
    began = [len(event["devices"]) for event in run.events("segment_began")]
    assert began == [2, 1, 3]
    assert [event["step"] for event in run.events("fit_started")] == [0, 7, 20]
    assert "rank 0 of 1 goes on from 7" in run.output()
    assert "rank 1 of 3" not in run.output(), "only rank 0 is shown"
    assert "rank 1 of 3 goes on from 20" in (run.directory / "rank-1.log").read_text()
    run.assert_nothing_left()


def test_a_killed_rank_is_named_once_and_the_run_goes_on(runs: Runs, state: Path) -> None:
    run = runs.tiny(state, 300, plan="2@0,2@5", max_devices=2)
    run.wait_for_event("segment_began", ordinal=1)
    run.wait_for_event("progressed", step=10)
    victim = run.wait_for_ranks(2)[1]
    os.kill(victim, signal.SIGKILL)
    assert run.finish() == 0, run.output()
    assert run.output().count("rank 1 of 2 died without a word (signal 9)") == 1
    assert [event["step"] for event in run.events("fit_started")] == [0, 5, 5]
    run.assert_nothing_left()


def test_a_rank_that_always_dies_at_the_same_step_ends_the_run(runs: Runs, state: Path) -> None:
    run = runs.tiny(state, 10, "die:0", plan="1@0")
    assert run.finish() == 1
    assert "given up after 3 tries without progress" in run.output()
    assert len(run.events("segment_began")) == 3
    run.assert_nothing_left()


def test_a_killed_supervisor_takes_everything_with_it_and_the_same_name_goes_on(
    runs: Runs, state: Path
) -> None:
    run = runs.tiny(state, 400, "child", plan="2@0,2@5", max_devices=2)
    run.wait_for_event("progressed", step=10)
    os.kill(run.supervisor_pid, signal.SIGKILL)
    assert run.finish() == 1
    assert "supervisor died (signal 9)" in run.output()
    run.assert_nothing_left()
    again = runs.tiny(state, 50, plan="2@0,2@5", max_devices=2)
    assert again.finish() == 0, again.output()
    assert again.events("fit_started")[-1]["step"] == 5
    again.assert_nothing_left()


def test_below_a_shell_nothing_outlives_a_killed_supervisor(runs: Runs, state: Path) -> None:
    words = f"{sys.executable} {TINY_RANK} {state} 3000 child; true"
    run = runs.start(["bash", "-c", words], plan="1@0")
    run.wait_for_event("progressed", step=5)
    os.kill(run.supervisor_pid, signal.SIGKILL)
    assert run.finish() == 1
    run.assert_nothing_left()


def test_a_shell_that_swallows_the_exit_code_hides_no_yield(runs: Runs, state: Path) -> None:
    words = f"{sys.executable} {TINY_RANK} {state} 20; true"
    run = runs.start(["bash", "-c", words], plan="1@0,2@8", max_devices=2)
    assert run.finish() == 0, run.output()
    assert [event["step"] for event in run.events("fit_started")] == [0, 8]


def test_a_killed_client_makes_the_run_checkpoint_and_end(runs: Runs, state: Path) -> None:
    run = runs.tiny(state, 6000, plan="2@0", max_devices=2)
    run.wait_for_event("progressed", step=5)
    run.client.kill()
    wait_for((run.directory / "outcome.json").exists, what="the supervisor to end")
    run.assert_nothing_left()
    assert '"stopped"' in (run.directory / "outcome.json").read_text()
    assert run.events("left")
    assert int(state.read_text()) >= 5


def test_a_killed_warden_is_replaced(runs: Runs, state: Path) -> None:
    run = runs.tiny(state, 500, "child", plan="1@0,2@30", max_devices=2)
    run.wait_for_event("progressed", step=3)
    os.kill(run.events("supervisor_started")[0]["warden_pid"], signal.SIGKILL)
    run.wait_for_event("segment_began", ordinal=1)
    run.wait_for_event("progressed", step=35)
    os.kill(run.supervisor_pid, signal.SIGKILL)
    assert run.finish() == 1
    run.assert_nothing_left()


def test_what_a_dead_rank_started_is_ended_too(runs: Runs, state: Path) -> None:
    run = runs.tiny(state, 400, "child", plan="1@0")
    run.wait_for_event("progressed", step=5)
    child = int((run.directory / "child-0").read_text())
    os.kill(run.wait_for_ranks(1)[0], signal.SIGKILL)
    wait_for(lambda: not is_alive(child), what="the dead rank's child to be gone")
    assert run.finish() == 0, run.output()


@pytest.mark.parametrize("when", ["raise", "raise-first"])
def test_a_rank_that_raises_is_shown_once_and_not_tried_again(runs: Runs, state: Path, when: str) -> None:
    run = runs.tiny(state, 10, f"{when}:1", plan="2@0", max_devices=2)
    assert run.finish() == 1
    assert run.output().count("Traceback: here") == 1
    assert "Traceback: there" not in run.output(), "the other rank only lost it"
    assert "rank 1 of 2 raised ValueError: boom" in run.output()
    assert len(run.events("segment_began")) == 1
    run.assert_nothing_left()


def test_ranks_that_came_and_went_while_the_supervisor_slept_are_heard(
    runs: Runs, state: Path, tmp_path: Path
) -> None:
    start = f"echo $$ > {tmp_path}/rank-$RANK; until [ -e {tmp_path}/go ]; do sleep 0.01; done"
    words = f"{start}; exec {sys.executable} {TINY_RANK} {state} 10 raise:1"
    run = runs.start(["bash", "-c", words], plan="2@0", max_devices=2)
    files = [tmp_path / "rank-0", tmp_path / "rank-1"]
    wait_for(lambda: all(file.exists() and file.read_text() for file in files), what="both ranks to start")
    os.kill(run.supervisor_pid, signal.SIGSTOP)
    (tmp_path / "go").touch()
    wait_for(lambda: not any(is_alive(int(file.read_text())) for file in files), what="both ranks to end")
    os.kill(run.supervisor_pid, signal.SIGCONT)
    assert run.finish() == 1
    assert "rank 1 of 2 raised ValueError: boom" in run.output()
    assert len(run.events("segment_began")) == 1


def test_a_refusal_has_its_exit_code_and_its_words(runs: Runs, state: Path) -> None:
    run = runs.tiny(state, 10, "refuse", plan="1@0")
    assert run.finish() == 2
    assert "fsdp is not elastic yet" in run.output()


def test_an_exit_code_of_the_program_is_its_own(runs: Runs, state: Path) -> None:
    run = runs.tiny(state, 10, "exit:7", plan="1@0")
    assert run.finish() == 7
    assert run.output().count("something is wrong here") == 1


def test_a_taken_port_is_tried_again_without_a_word(runs: Runs, state: Path) -> None:
    run = runs.tiny(state, 10, "port", plan="1@0")
    assert run.finish() == 0, run.output()
    assert len(run.events("segment_began")) == 2
    assert "EADDRINUSE" not in run.output()


def test_ctrl_c_checkpoints_and_the_same_name_goes_on(runs: Runs, state: Path) -> None:
    run = runs.tiny(state, 6000, plan="2@0", max_devices=2)
    run.wait_for_event("progressed", step=5)
    run.client.send_signal(signal.SIGINT)
    assert run.finish() == 130
    assert f"checkpoint at step {state.read_text()}" in run.output()
    run.assert_nothing_left()
    steps = int(state.read_text()) + 5
    again = runs.tiny(state, steps, plan="1@0")
    assert again.finish() == 0, again.output()
    assert again.events("fit_started")[-1]["step"] == steps - 5


def test_a_second_ctrl_c_ends_a_rank_that_hangs(runs: Runs, state: Path) -> None:
    run = runs.tiny(state, 10, "hang", plan="1@0")
    run.wait_for_event("progressed", step=5)
    run.client.send_signal(signal.SIGINT)
    run.wait_for_event("stop_asked", times=1)
    run.client.send_signal(signal.SIGINT)
    assert run.finish() == 130
    run.assert_nothing_left()


@pytest.mark.parametrize("trap", ["exit 0", "", "echo goes on"])
def test_ctrl_c_ends_a_program_in_which_no_fit_is_under_way(runs: Runs, trap: str) -> None:
    words = f"trap '{trap}' TERM; echo begun; while true; do sleep 0.05; done"
    run = runs.start(["bash", "-c", words], plan="1@0")
    run.wait_for_event("segment_began")
    wait_for(lambda: "begun" in (run.directory / "output.log").read_text(), what="the program to begin")
    run.client.send_signal(signal.SIGINT)
    assert run.finish() == 130, run.output()
    run.assert_nothing_left()


def test_sigterm_checkpoints_and_leaves_to_be_resumed(runs: Runs, state: Path) -> None:
    run = runs.tiny(state, 6000, plan="1@0")
    run.wait_for_event("progressed", step=5)
    run.client.send_signal(signal.SIGTERM)
    assert run.finish() == 75
    assert int(state.read_text()) >= 5
    run.assert_nothing_left()


def test_a_live_run_keeps_its_name_to_itself(runs: Runs, state: Path) -> None:
    run = runs.tiny(state, 6000, plan="1@0")
    run.wait_for_event("progressed", step=1)
    second = runs.tiny(state, 10, plan="1@0")
    assert second.finish() == 2
    assert "is running already" in second.output()
    run.client.send_signal(signal.SIGINT)
    assert run.finish() == 130


def test_an_end_that_cannot_be_written_down_is_told_all_the_same(
    runs: Runs, tmp_path: Path, state: Path
) -> None:
    in_the_way = tmp_path / "runs" / "job" / ".outcome.json"
    in_the_way.mkdir(parents=True)
    in_the_way.parent.chmod(0o700)
    run = runs.tiny(state, 10, plan="1@0")
    assert run.finish() == 0, run.output()
    assert "how the run ended could not be written down" in run.output()


def test_a_command_that_cannot_be_started_says_so(runs: Runs, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o700)
    run = runs.start([str(program)], plan="1@0")
    assert run.finish() == 127
    assert f"{program} cannot be started" in run.output()


def test_a_fixed_program_is_run_once_on_all_its_devices_and_stopped_by_sigterm(runs: Runs) -> None:
    words = "echo one program; trap 'echo told to end; exit 0' TERM; while true; do sleep 0.05; done"
    run = runs.start(["bash", "-c", words], fixed=True, without_broker=True, max_devices=2, min_devices=2)
    run.wait_for_event("segment_began")
    wait_for(lambda: "one program" in (run.directory / "output.log").read_text(), what="the program to begin")
    run.client.send_signal(signal.SIGINT)
    assert run.finish() == 130
    assert run.output().count("one program") == 1
    assert "told to end" in run.output()
    run.assert_nothing_left()
