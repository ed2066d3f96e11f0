"""`%load_ext selfsched`: the commands in a cell, and a cell of plain script as a run.

    %selfsched status
    %selfsched forecast train
    %selfsched stop night
    %%selfsched run --devices 1-4
    import lightning
    ...
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from typing import Any

from selfsched.errors import Refused, SelfschedError

QUICK = ("status", "forecast", "explain", "doctor", "runs", "stop")
"""Commands that do not train."""
_USAGE = f"%selfsched is one of {', '.join(QUICK)}, with its options; %%selfsched run [OPTIONS] runs a cell"


def line_magic(line: str) -> None:
    """`%selfsched COMMAND [OPTIONS]`: what the command of that name prints."""
    words = _words(line)
    if not words or words[0] not in QUICK:
        _say(_USAGE)
        return
    from selfsched.cli import app

    try:
        app(words, prog_name="selfsched")
    except SelfschedError as error:
        _say(str(error))
    except SystemExit:
        pass  # a command's end; of a wrong option typer has said what is wrong


def cell_magic(line: str, cell: str) -> None:
    """`%%selfsched run [OPTIONS]`: the cell as a script of its own, under `selfsched run`.

    It shares no variable with the notebook. Stop checkpoints it and ends it, as Ctrl-C does; so does the
    kernel's end, however it comes. With `--detach` both leave it.
    """
    words = _words(line)
    if words[:1] != ["run"] or "--" in words:
        _say(_USAGE)
        return
    try:
        script = cell.encode()
    except UnicodeEncodeError as error:
        row = cell.count("\n", 0, error.start) + 1
        _say(f"line {row} of the cell has half a character ({cell[error.start]!a}), which no script can hold")
        return
    # The kernel's own process id: the command ends with it.
    command = [sys.executable, "-m", "selfsched", "run", "--cell", str(os.getpid()), *words[1:]]
    try:
        code = _follow([*command, "--", sys.executable], script)
    except OSError as error:
        _say(f"the cell cannot be run: {error.strerror}")
        return
    if code:
        _say(f"it ended with code {code}")


def _follow(command: list[str], script: bytes) -> int:
    """Print what a command prints; a Stop is passed on, and its end awaited."""
    with tempfile.TemporaryFile() as handed_over:  # without a name: nothing to remove, whoever is killed
        handed_over.write(script)
        handed_over.seek(0)
        process = subprocess.Popen(
            command, stdin=handed_over, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as printed:
        while True:
            try:
                for line in printed:
                    print(line, end="", flush=True)
                return process.wait()
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)


def _words(line: str) -> list[str]:
    """The words of a magic's line; none where they are no words that a command can be given."""
    try:
        words = shlex.split(line)
        line.encode()
    except ValueError:  # quotes without an end; half a character
        return []
    return [] if "\0" in line else words


def _say(words: str) -> None:
    print(f"selfsched: {words}", file=sys.stderr)


def load(ipython: Any) -> None:
    """Make both known to a notebook.

    Raises:
        Refused: this is no IPython.
    """
    if not hasattr(ipython, "register_magic_function"):
        raise Refused("%load_ext selfsched is for IPython and notebooks")
    ipython.register_magic_function(line_magic, "line", "selfsched")
    ipython.register_magic_function(cell_magic, "cell", "selfsched")
