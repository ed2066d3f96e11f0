"""The demo's own processes: each with a log, in a session of its own, and none left behind.

Every process that the demo starts, and whatever that starts in turn, carries a mark in its
environment. At the end, what still carries it is ended: nothing else is ever signalled.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK_VARIABLE = "_SELFSCHED_DEMO"
_LEAVE_SECONDS = 10.0
_TAIL_LINES = 25
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Child:
    """A process of the demo and its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.poll()

    def tail(self) -> str:
        """The last lines of its log, as they would have stood on a terminal."""
        text = _COLOURS.sub("", self.log.read_text(errors="replace")).replace("\r", "\n")
        return "\n".join([line for line in text.splitlines() if line.strip()][-_TAIL_LINES:])


class Processes:
    """Starts processes and, on leaving, ends all that came of them."""

    def __init__(self, mark: str, logs: Path) -> None:
        self._mark = mark
        self._logs = logs
        self._children: list[Child] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end_all()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Start a process whose output goes to `NAME.log`."""
        log = self._logs / f"{name}.log"
        with open(log, "wb") as file:
            process = subprocess.Popen(
                command,
                env={**environment, MARK_VARIABLE: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def end_all(self) -> None:
        """Ask everything that carries the mark to leave, newest first; then make it."""
        for child in reversed(self._children):
            _end(child.process)
        for sign, seconds in ((signal.SIGTERM, _LEAVE_SECONDS), (signal.SIGKILL, _LEAVE_SECONDS)):
            for pid in marked(self._mark):
                with suppress(ProcessLookupError):
                    os.kill(pid, sign)
            give_up_at = time.monotonic() + seconds
            while any(True for _ in marked(self._mark)) and time.monotonic() < give_up_at:
                time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def marked(mark: str) -> Iterator[int]:
    """Pids of live processes of ours that carry the mark, this one left out."""
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0") and _is_alive(entry):
                yield int(entry.name)


def _is_alive(entry: Path) -> bool:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
