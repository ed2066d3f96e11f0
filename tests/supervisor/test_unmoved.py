"""A command in which no SelfScheduler is: it runs, its exit code is its own, one line says what it lacks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from supervisor.runs import Runs

from selfsched.core.events import RankStarted
from selfsched.elastic.progress_made import ProgressMade

PROGRAM = Path(__file__).with_name("raising_program.py")
HINT = "no SelfScheduler was made in this program"


def test_what_has_no_scheduler_is_named_with_how_often_it_ran() -> None:
    made = ProgressMade()
    assert "ran once on each of 2 devices" in (made.nothing_moved(2) or "")
    made.saw(RankStarted(rank=0, pid=1))
    assert made.nothing_moved(2) is None


@pytest.mark.slow
def test_a_trainer_without_the_callback_trains_and_is_told_what_it_lacks(runs: Runs) -> None:
    run = runs.start([sys.executable, str(PROGRAM), "trainer"], plan="1@0")
    assert run.finish() == 0, run.output()
    assert "the end of the program" in run.output()
    assert run.output().count(HINT) == 1
    run.assert_nothing_left()


@pytest.mark.slow
def test_a_program_that_trains_nothing_keeps_its_exit_code(runs: Runs) -> None:
    run = runs.start([sys.executable, "-c", "import sys; print('no training here'); sys.exit(3)"], plan="1@0")
    assert run.finish() == 3
    assert "no training here" in run.output()
    assert "rank 0 of 1 ended with exit code 3" in run.output()
    run.assert_nothing_left()
    fine = runs.start([sys.executable, "-c", "pass"], plan="2@0", max_devices=2, name="fine")
    assert fine.finish() == 0
    assert fine.output().count(f"{HINT}, so it ran once on each of 2 devices") == 1
    fine.assert_nothing_left()
