"""What it takes to start one rank, and what is known of it afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class RankRequest:
    """One rank's process: the same for a fork of the zygote and for a cold process."""

    rank: int
    program: Literal["script", "module", "payload", "command"]
    """A script or module for the zygote's `runpy`, our own worker, or any command."""
    arguments: tuple[str, ...]
    """Script, module or executable, then its arguments; empty for a payload."""
    environment: Mapping[str, str | None]
    """On top of the supervisor's own; None: unset."""
    working_directory: Path
    import_path: tuple[str, ...] = ()
    """`sys.path` for a payload."""
    threads: int = 1
    cores: tuple[int, ...] = ()
    """Cores to run on; empty: where the supervisor may."""
    python_flags: tuple[str, ...] = ()
    """Flags of the interpreter, for a cold script or module."""

    def cold_command(self) -> tuple[str, ...]:
        """The command that does the same in a fresh process."""
        match self.program:
            case "script":
                return (sys.executable, *self.python_flags, *self.arguments)
            case "module":
                return (sys.executable, *self.python_flags, "-m", *self.arguments)
            case "payload":
                return (sys.executable, "-P", "-m", "selfsched.elastic.worker")
            case "command":
                return self.arguments

    def cold_environment(self) -> dict[str, str]:
        """The whole environment of a fresh process."""
        merged = {**os.environ, **self.environment}
        return {name: value for name, value in merged.items() if value is not None}


@dataclass
class RankProcess:
    """A rank that was started. `status` is as `subprocess`'s: a code, or minus a signal."""

    rank: int
    pid: int | None = None
    """Also its session; None while the zygote has not forked it yet."""
    status: int | None = None
    """None while it lives."""
    was_ended_by_us: bool = False
    is_cold: bool = False
    descriptors: list[int] = field(default_factory=list)
    """Our ends of its output pipes."""
