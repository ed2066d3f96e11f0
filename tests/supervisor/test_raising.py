"""What a program raises is told once, with its traceback, wherever it was raised and however it was run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from supervisor.runs import Run, Runs

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("raising_program.py")


def start(runs: Runs, where: str, **options: Any) -> Run:
    return runs.start([sys.executable, str(PROGRAM), where], plan="1@0", **options)


@pytest.mark.parametrize(
    ("where", "kind"), [("in", "out of memory: MemoryError"), ("after", "ValueError")], ids=["in", "after"]
)
def test_an_error_is_told_and_shown_once_from_the_scripts_first_line_on(
    runs: Runs, where: str, kind: str
) -> None:
    run = start(runs, where)
    assert run.finish() == 1
    words = f"boom {where} fit"
    assert [event["message"] for event in run.events("rank_raised")] == [words]
    shown = run.output()
    assert shown.count("Traceback (most recent call last)") == 1
    assert shown.count("main(sys.argv[1])") == 1, "from the script's first line on"
    assert "selfsched/elastic/worker.py" not in shown
    assert f"rank 0 of 1 raised {kind}: {words}" in shown


def test_an_interpreter_of_the_programs_own_shows_it_itself(runs: Runs) -> None:
    run = start(runs, "in", without_zygote=True)
    assert run.finish() == 1
    assert len(run.events("rank_raised")) == 1
    assert run.output().count("Traceback (most recent call last)") == 1
    assert run.output().count("rank 0 of 1 raised out of memory: MemoryError: boom in fit") == 1


def test_an_error_that_the_program_caught_ends_nothing(runs: Runs) -> None:
    run = start(runs, "catch")
    assert run.finish() == 0, run.output()
    assert "the end of the program" in run.output()
    assert "Traceback" not in run.output()
