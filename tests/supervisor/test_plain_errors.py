"""Our errors where nobody catches them: one line and their own exit code; other errors as ever."""

from __future__ import annotations

import subprocess
import sys

import pytest

from selfsched.elastic.plain_errors import lines_of, plainly
from selfsched.errors import RankFailed, Refused

SCRIPT = """
from selfsched.elastic.plain_errors import plainly
from selfsched.errors import Refused, Yielded

@plainly
def fail(error):
    raise error

try:
    fail(Refused("caught: this changes nothing"))
except Refused:
    pass
fail({error})
"""


def end_of(error: str) -> tuple[int, str]:
    command = [sys.executable, "-c", SCRIPT.format(error=error)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        ("Refused('min_devices is 0')", 2, "Refused: min_devices is 0\n"),
        ("Yielded('its devices are gone')", 75, "Yielded: its devices are gone\n"),
    ],
    ids=["refused", "yielded"],
)
def test_an_error_of_ours_is_one_line_with_its_exit_code(error: str, code: int, shown: str) -> None:
    assert end_of(error) == (code, shown)


def test_an_error_of_the_script_is_shown_as_ever() -> None:
    code, shown = end_of("ValueError('boom')")
    assert code == 1
    assert shown.startswith("Traceback (most recent call last)")
    assert shown.endswith("ValueError: boom\n")


def test_the_traceback_of_a_rank_stands_before_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    error = RankFailed("rank 0 of 1 raised ValueError: boom")
    error.add_note("Traceback: there")

    @plainly
    def fail() -> None:
        raise error

    with pytest.raises(RankFailed):
        fail()
    expected = ["Traceback: there", "RankFailed: rank 0 of 1 raised ValueError: boom"]
    assert error._render_traceback_() == expected  # type: ignore[attr-defined]
    assert lines_of(Refused("no")) == ["Refused: no"]
