"""What a restart says again is left out of a cell; what is new, or of the training, never."""

from __future__ import annotations

from pathlib import Path

import pytest
from widget.told import Shown, a_job, began, seen

from selfsched.cell.repeats import MOST_KEPT, Repeats
from selfsched.cell.view import CellView
from selfsched.core.events import Progressed
from selfsched.elastic import channel

GREETING = "GPU available: False\n[rank0]:[W1203 07:41:02 reducer.cpp:1430] Warning: unused\n"


def test_a_segment_s_greeting_is_said_once_and_what_is_new_always() -> None:
    repeats = Repeats()
    repeats.segment_began()
    assert repeats.without(GREETING) == GREETING
    assert repeats.without(GREETING) == GREETING, "within one segment nothing is left out"
    repeats.segment_began()
    again = GREETING.replace("07:41:02", "08:00:11") + "another\n"
    assert repeats.without(again) == "another\n"


def test_what_the_training_says_is_never_left_out() -> None:
    repeats = Repeats()
    for _ in range(3):
        repeats.segment_began()
        repeats.stepped()
        assert repeats.without("loss is high\n") == "loss is high\n"


def test_a_line_in_pieces_is_never_cut() -> None:
    repeats = Repeats()
    for _ in range(2):
        repeats.segment_began()
        assert "".join(map(repeats.without, ("half a", " line\n", "whole\n"))).startswith("half a line\n")


def test_what_is_remembered_is_bounded() -> None:
    repeats = Repeats()
    repeats.segment_began()
    repeats.without("".join(f"{'x' * number}\n" for number in range(1, 2 * MOST_KEPT)))
    repeats.segment_began()
    assert repeats.without("x\n") == ""
    late = "x" * (2 * MOST_KEPT - 1) + "\n"
    assert repeats.without(late) == late


def test_a_cell_has_a_greeting_once_and_all_of_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    view = CellView(a_job(tmp_path), display=Shown(), now=lambda: 1.0)
    for ordinal in range(2):
        view.show(began(ordinal, 1, float(ordinal)))
        view.show(channel.OutputSeen(stream="stderr", text=GREETING))
        view.show(channel.OutputSeen(stream="stdout", text="hello\n"))
        view.show(seen(Progressed(fit=1, step=1, epoch=0, samples=8, metrics={}, at=1.0)))
        view.show(channel.OutputSeen(stream="stderr", text="mine\n"))
    printed = capsys.readouterr()
    assert printed.err == f"{GREETING}mine\nmine\n"
    assert printed.out.count("hello") == 2
