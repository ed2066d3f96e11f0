"""Which processes live on this machine, read from /proc.

A process is known by (pid, start time): a reused pid is another process. Zombies do not count:
they hold nothing. Where /proc hides other users' processes from us (`hidepid`) nothing can be
proven about those, and what cannot be told is never "gone".
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from selfsched.protocol import ProcessOnNode

_DEAD = (b"Z", b"X")
_MOST_PARENTS = 16
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Stat:
    """What `/proc/<pid>/stat` says of a process."""

    pid: int
    state: bytes
    parent: int
    session: int
    started: int
    """Clock ticks since boot."""

    @property
    def alive(self) -> bool:
        return self.state not in _DEAD


class Processes:
    """The processes of this machine.

    Args:
        proc: where the process file system is mounted.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def stat(self, pid: int) -> Stat | None:
        """A process, zombies included; None when there is none of that pid that we can see."""
        try:
            content = (self._proc / str(pid) / "stat").read_bytes()
        except OSError:
            return None
        # The name in brackets may hold anything, brackets included.
        fields = content.rpartition(b")")[2].split()
        if len(fields) < 20:
            return None
        return Stat(
            pid=pid,
            state=fields[0],
            parent=int(fields[1]),
            session=int(fields[3]),
            started=int(fields[19]),
        )

    def command_of(self, pid: int) -> str:
        """Name of a process's program, at most 15 bytes of it; empty when it cannot be told."""
        try:
            name = (self._proc / str(pid) / "comm").read_bytes()
        except OSError:
            return ""
        return "".join(letter for letter in name.decode(errors="replace") if letter.isprintable())

    def parents_of(self, stat: Stat) -> tuple[int, ...]:
        """Pids of the processes that one descends from, the nearest first, without the first of all."""
        found: list[int] = []
        above: Stat | None = stat
        while above is not None and above.parent > 1 and len(found) < _MOST_PARENTS:
            found.append(above.parent)
            above = self.stat(above.parent)
        return tuple(found)

    def account_of(self, pid: int) -> str | None:
        """Name of a process's owner, as a `protocol.Name`; None when it cannot be told."""
        try:
            uid = (self._proc / str(pid)).stat().st_uid
        except OSError:
            return None
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = f"uid-{uid}"
        return _NO_NAME.sub("-", name).lstrip("-._")[:64] or f"uid-{uid}"

    def is_gone(self, process: ProcessOnNode) -> bool | None:
        """Whether a job's process, and everything in a session of its own, has ended.

        A process that shares its session with others (a shell's, a kernel's) answers for
        itself alone; one that leads a session answers for all in it.

        Returns:
            None when it cannot be told.
        """
        found = self.stat(process.pid)
        if found is not None and found.alive and found.started == process.started:
            return False
        leads = process.session == process.pid
        if leads and any(stat.session == process.session and stat.alive for stat in self._all()):
            return False
        return None if self.are_hidden() else True

    def are_hidden(self) -> bool:
        """Whether /proc keeps other users' processes from us."""
        if os.geteuid() == 0:
            return False
        try:
            lines = (self._proc / "mounts").read_text().splitlines()
        except OSError:
            return True
        for line in lines:
            _, point, kind, options, *_ = line.split()
            if kind == "proc" and Path(point) == self._proc:
                value = re.search(r"hidepid=(\w+)", options)
                return value is not None and value.group(1) not in ("0", "off")
        return False

    def _all(self) -> Iterator[Stat]:
        for name in os.listdir(self._proc):
            if name.isdigit() and (stat := self.stat(int(name))) is not None:
                yield stat
