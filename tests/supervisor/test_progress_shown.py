"""The one bar over all segments: in a terminal, in a log file, and beside a bar of the script's own."""

from __future__ import annotations

import io
import os
import pty
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
from elastic.nasty import segment
from elastic.tiny import QUIET, as_rank
from supervisor.runs import Runs

from selfsched.core.events import FitStarted, Progressed
from selfsched.elastic import channel
from selfsched.elastic.views import TerminalView

PROGRAM = Path(__file__).with_name("raising_program.py")


def step(number: int) -> channel.EventSeen:
    return channel.EventSeen(event=Progressed(fit=1, step=number, epoch=0, samples=8 * number))


def begun() -> channel.EventSeen:
    event = FitStarted(fit=1, package="none", global_batch=8, reference_devices=1, step=0, planned_steps=4)
    return channel.EventSeen(event=event)


def test_a_log_file_gets_whole_lines_every_so_often() -> None:
    error = io.StringIO()
    view = TerminalView(io.StringIO(), error, line_seconds=0.0)
    view.refresh()
    assert error.getvalue() == "", "nothing is known yet"
    for message in (begun(), step(1), step(1), step(2)):
        view.show(message)
        view.refresh()
    view.close()
    lines = error.getvalue().splitlines()
    assert [line.split("step ")[1] for line in lines] == ["0/4", "1/4", "2/4"]
    assert "\r" not in error.getvalue()


def test_between_two_lines_in_a_log_file_there_is_time() -> None:
    error = io.StringIO()
    view = TerminalView(io.StringIO(), error)
    for message in (begun(), step(1)):
        view.show(message)
        view.refresh()
    assert error.getvalue() == ""


@pytest.mark.parametrize(("terminal", "drawn"), [("xterm", True), ("dumb", False)])
def test_a_line_is_drawn_again_only_where_the_terminal_can(
    monkeypatch: pytest.MonkeyPatch, terminal: str, drawn: bool
) -> None:
    monkeypatch.setenv("TERM", terminal)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as error, os.fdopen(ours, "rb") as seen:
        view = TerminalView(io.StringIO(), error)
        view.show(begun())
        view.refresh()
        error.write("end\n")
        error.flush()
        assert (b"\x1b[K" in seen.read1()) is drawn


def test_beside_an_unfinished_line_of_the_script_nothing_is_drawn() -> None:
    error = io.StringIO()
    view = TerminalView(io.StringIO(), error, line_seconds=0.0)
    view.show(begun())
    view.show(channel.OutputSeen(stream="stderr", text="\rEpoch 0: 50%"))
    view.refresh()
    assert error.getvalue() == "\rEpoch 0: 50%"


def test_lightnings_bar_is_left_out_unless_the_script_gave_one(tmp_path: Path) -> None:
    options = {name: value for name, value in QUIET.items() if name != "enable_progress_bar"}
    own = pl.callbacks.TQDMProgressBar()
    with as_rank(segment(tmp_path / "run", 0)):
        assert pl.Trainer(**options).progress_bar_callback is None
        assert pl.Trainer(callbacks=[own], **options).progress_bar_callback is own
        assert pl.Trainer(callbacks=own, **options).progress_bar_callback is own


@pytest.mark.slow
def test_a_script_shows_no_bar_of_lightnings_in_any_segment(runs: Runs) -> None:
    run = runs.start([sys.executable, str(PROGRAM), "fine"], plan="1@0,1@1")
    assert run.finish() == 0, run.output()
    assert len(run.events("segment_began")) == 2
    assert "Epoch 0" not in run.output()
    assert "\r" not in run.output()
