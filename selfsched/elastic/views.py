"""A run as its user sees it: in a terminal, or in a notebook's cell."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, TextIO

from selfsched.elastic import channel
from selfsched.elastic.attach import View
from selfsched.elastic.progress_text import ProgressText

_CLEAR_LINE = "\r\x1b[K"
_TERMINAL_SECONDS = 0.2
_NOTEBOOK_SECONDS = 0.5
_LINE_SECONDS = 60.0
"""Between two lines where a line cannot be drawn again."""


def view_for_here(*, bar: bool = True) -> View:
    """A notebook's view in a kernel, else a terminal's; `bar`: whether it shows progress."""
    return NotebookView(bar=bar) if _in_notebook() else TerminalView(bar=bar)


def _in_notebook() -> bool:
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
        self._say(_stopping(times))

    def close(self) -> None:
        if self._drawn:
            self._drawn_at = 0.0
            self._error.write(_CLEAR_LINE + self._text.line() + "\n")
            self._error.flush()
            self._drawn = ""


class NotebookView:
    """The same in a cell: the bar is one display that is updated, at most twice a second."""

    def __init__(self, *, bar: bool = True) -> None:
        from IPython.display import display

        self._display = display
        self._handle: Any = None
        self._text = ProgressText()
        self._drawn = ""
        self._drawn_at = 0.0
        self._has_bar = bar

    def show(self, message: Any) -> None:
        self._text.take(message)
        if isinstance(message, channel.OutputSeen):
            stream = sys.stdout if message.stream == "stdout" else sys.stderr
            stream.write(message.text)
        elif isinstance(message, channel.Said):
            print(f"selfsched: {message.text}")

    def refresh(self) -> None:
        if time.monotonic() - self._drawn_at >= _NOTEBOOK_SECONDS:
            self._draw()

    def _draw(self) -> None:
        line = self._text.line()
        if not self._has_bar or line == self._drawn or not line:
            return
        self._drawn, self._drawn_at = line, time.monotonic()
        data = {"text/plain": line}
        if self._handle is None:
            self._handle = self._display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def stopping(self, times: int) -> None:
        print(f"selfsched: {_stopping(times)}")

    def close(self) -> None:
        self._draw()


def _began(message: channel.SegmentBegan) -> str:
    count = len(message.devices)
    reason = f" ({message.reason})" if message.reason else ""
    return f"training on {count} device{'s' if count > 1 else ''}{reason}"


def _stopping(times: int) -> str:
    if times > 1:
        return "ending it at once"
    return "stopping at the end of this step, with a checkpoint; once more ends it at once"
