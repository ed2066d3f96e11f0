"""A run as its user sees it in a terminal; a notebook's cell is `selfsched.cell`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from selfsched.elastic import channel
from selfsched.elastic.attach import View
from selfsched.elastic.job import JobDescription
from selfsched.elastic.progress_text import ProgressText

if TYPE_CHECKING:
    from selfsched.elastic.following import RunClock

_CLEAR_LINE = "\r\x1b[K"
_TERMINAL_SECONDS = 0.2
_LINE_SECONDS = 60.0
"""Between two lines where a line cannot be drawn again."""


def view_for_here(job: JobDescription, *, bar: bool = True, clock: RunClock | None = None) -> View:
    """A notebook's view of a run in a kernel, else a terminal's.

    Args:
        job: the run.
        bar: whether progress is shown.
        clock: of a run that is caught up with; None: all it tells is new.
    """
    if in_notebook():
        from selfsched.cell.view import CellView

        if clock is None:
            return CellView(job, bar=bar)
        return CellView(job, bar=bar, now=clock, unix_minus_boottime=clock.unix_minus_boottime)
    return TerminalView(bar=bar)


def shows_bar(trainer_arguments: Mapping[str, Any]) -> bool:
    """Whether a Trainer with these arguments leaves progress to us."""
    from selfsched.elastic.survey import has_own_bar

    own_bar = has_own_bar(trainer_arguments.get("callbacks"))
    return bool(trainer_arguments.get("enable_progress_bar", True)) and not own_bar


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class TerminalView:
    """Rank 0's output as it comes; below it one line that is drawn again and again.

    Where standard error is no terminal that can do this (a log file, `TERM=dumb`) there is
    a whole line every minute; what changes the run is said at once, a line each.
    """

    def __init__(
        self,
        output: TextIO | None = None,
        error: TextIO | None = None,
        *,
        bar: bool = True,
        line_seconds: float = _LINE_SECONDS,
    ) -> None:
        self._output = output or sys.stdout
        self._error = error or sys.stderr
        self._text = ProgressText()
        self._shows_progress = bar
        self._can_redraw = self._error.isatty() and os.environ.get("TERM") != "dumb"
        self._line_seconds = line_seconds
        self._line_at = time.monotonic()
        self._drawn = ""
        self._drawn_at = 0.0
        self._printed = ""
        self._at_line_start = True

    def show(self, message: Any) -> None:
        waited_for = self._text.status if self._text.is_waiting else ""
        self._text.take(message)
        if isinstance(message, channel.OutputSeen):
            self._write(message)
        elif isinstance(message, channel.Said):
            self._say(message.text)
        elif isinstance(message, channel.SegmentBegan):
            self._say(_began(message))
        elif self._text.is_waiting and self._text.status not in ("", waited_for):
            self._say(self._text.status)

    def _write(self, message: channel.OutputSeen) -> None:
        self._erase()
        stream = self._output if message.stream == "stdout" else self._error
        stream.write(message.text)
        stream.flush()
        self._at_line_start = message.text.endswith("\n")

    def _say(self, text: str) -> None:
        self._erase()
        start = "" if self._at_line_start else "\n"
        self._error.write(f"{start}selfsched: {text}\n")
        self._error.flush()
        self._at_line_start = True

    def refresh(self) -> None:
        now = time.monotonic()
        line = self._text.line()
        if not self._shows_progress or not self._at_line_start:
            return  # a bar of the script's own stands on an unfinished line
        if not self._can_redraw:
            self._print_line(line, now)
        elif line != self._drawn and now - self._drawn_at >= _TERMINAL_SECONDS:
            self._error.write(_CLEAR_LINE + line)
            self._error.flush()
            self._drawn, self._drawn_at = line, now

    def _print_line(self, line: str, now: float) -> None:
        if self._text.is_known and line != self._printed and now - self._line_at >= self._line_seconds:
            self._printed, self._line_at = line, now
            self._say(line)

    def _erase(self) -> None:
        if self._drawn:
            self._error.write(_CLEAR_LINE)
            self._error.flush()
            self._drawn = ""

    def stopping(self, times: int) -> None:
        self._say(stopping_words(times))

    def close(self) -> None:
        if self._drawn:
            self._drawn_at = 0.0
            self._error.write(_CLEAR_LINE + self._text.line() + "\n")
            self._error.flush()
            self._drawn = ""


def _began(message: channel.SegmentBegan) -> str:
    count = len(message.devices)
    reason = f" ({message.reason})" if message.reason else ""
    return f"training on {count} device{'s' if count > 1 else ''}{reason}"


def stopping_words(times: int) -> str:
    """What a Stop, or a second one, brings about."""
    if times > 1:
        return "ending it at once"
    return "stopping at the end of this step, with a checkpoint; once more ends it at once"
