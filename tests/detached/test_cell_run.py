"""A notebook's cell as a run of its own, `%%selfsched run`: whose script it is, and with whom it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from supervisor.runs import TINY_RANK, Run, Runs, wait_for

from selfsched.elastic.run_directory import RunDirectory
from selfsched.magics import cell_magic, line_magic

_KERNEL = "import sys; from selfsched.magics import cell_magic; cell_magic(*sys.argv[1:])"


def cell(runs: Runs, tmp_path: Path, line: str, steps: int) -> Run:
    """A cell that trains, in a process that stands for the kernel."""
    words = [str(TINY_RANK), str(tmp_path / "state"), str(steps)]
    text = f"import runpy, sys\nsys.argv = {words!r}\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
    kernel = subprocess.Popen(
        [sys.executable, "-c", _KERNEL, f"run --name cell {line}", text],
        env={**os.environ, "SELFSCHED_RUNS_DIR": str(tmp_path / "runs"), "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=_hears_stop,
    )  # fmt: skip
    return runs.of(kernel, "cell")


def _hears_stop() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def press_stop(run: Run) -> None:
    """A Stop, and another one where it seems not to have been heard."""
    for _ in range(3):
        run.client.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            run.client.wait(3.0)
            return


def wait_for_end(run: Run) -> str:
    """How the run ended, once it has."""
    directory = RunDirectory(run.directory)
    wait_for(lambda: not directory.is_held, what="the run to end")
    outcome = directory.read_outcome()
    assert outcome is not None
    return f"{outcome.outcome} at {outcome.step}: {outcome.message}"


@pytest.mark.slow
def test_a_detached_cell_that_was_left_moves_to_other_devices(runs: Runs, tmp_path: Path) -> None:
    run = cell(runs, tmp_path, "--detach --plan 1@0,2@900", 920)
    run.wait_for_event("progressed", step=2)
    press_stop(run)
    run.finish()
    assert "goes on without this process" in run.output()
    assert wait_for_end(run) == "finished at 920: "
    assert len(run.events("segment_began")) == 2
    assert not list(tmp_path.glob("selfsched-cell-*"))


@pytest.mark.slow
@pytest.mark.parametrize(("option", "ends"), [("", "stopped"), ("--detach", "finished")])
def test_a_cell_whose_kernel_is_killed_ends_with_a_checkpoint_unless_it_is_detached(
    runs: Runs, tmp_path: Path, option: str, ends: str
) -> None:
    run = cell(runs, tmp_path, f"--plan 1@0 {option}", 300 if option else 100_000)
    run.wait_for_event("progressed", step=2)
    run.client.kill()
    run.finish()
    told = wait_for_end(run)
    assert told.startswith(ends), told
    if not option:
        assert f"stopped at {(tmp_path / 'state').read_text()}: the user's process is gone" in told
    run.assert_nothing_left()


def test_a_cell_that_no_file_can_hold_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    cell_magic("run --plan 1@0", "print(1)\nprint('\udcff')\n")
    assert "line 2 of the cell has half a character ('\\udcff')" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["run --name \ud800", "run --name 'a\0b'", "run --name 'a"])
def test_words_that_no_command_can_be_given_are_one_line(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for told in (line_magic, lambda words: cell_magic(words, "print(1)")):
        told(line)
        assert "%selfsched is one of" in capsys.readouterr().err
