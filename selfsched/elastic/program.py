"""How a job's program is run as ranks: by the zygote where that gives the same, else verbatim.

`python train.py ...` and `python -m package ...` of *this* interpreter, without flags that
change it, can run in a fork of the zygote. Anything else (`bash -c`, `uv run`, another
interpreter, `-c`) is run as it stands, once for each rank.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from selfsched.elastic.job import JobDescription
from selfsched.launch.environment import threads_per_rank
from selfsched.launch.rank import RankRequest
from selfsched.protocol import LeasedDevice

_HARMLESS_FLAGS = ("-u",)
_PYTHON = re.compile(r"^python(3(\.\d+)?)?$")
Package = Literal["lightning.pytorch", "pytorch_lightning"]


@dataclass(frozen=True)
class Program:
    """What each rank runs, and whether a fork of the zygote may run it."""

    kind: Literal["script", "module", "payload", "command"]
    arguments: tuple[str, ...]
    flags: tuple[str, ...] = ()

    @property
    def can_fork(self) -> bool:
        return self.kind != "command"


def program_of(job: JobDescription) -> Program:
    """How the job's ranks are to be run."""
    if job.program == "payload":
        return Program("payload", ())
    if job.fixed or not _is_this_interpreter(job.command[0]):
        return Program("command", job.command)
    flags, rest = _split_flags(job.command[1:])
    if rest and rest[0] == "-m" and len(rest) > 1:
        return Program("module", rest[1:], flags)
    if rest and not rest[0].startswith("-") and (job.working_directory / rest[0]).is_file():
        return Program("script", rest, flags)
    return Program("command", job.command)


def _split_flags(arguments: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    count = 0
    while count < len(arguments) and arguments[count] in _HARMLESS_FLAGS:
        count += 1
    return tuple(arguments[:count]), tuple(arguments[count:])


def _is_this_interpreter(command: str) -> bool:
    found = shutil.which(command)
    if found is None or not _PYTHON.match(Path(found).name):
        return False
    # Every virtual environment's python links to one binary; the folder tells them apart.
    same_folder = os.path.realpath(Path(found).parent) == os.path.realpath(Path(sys.executable).parent)
    return same_folder and os.path.realpath(found) == os.path.realpath(sys.executable)


def requests_for(
    job: JobDescription,
    program: Program,
    devices: Sequence[LeasedDevice],
    environments: Sequence[Mapping[str, str | None]],
) -> list[RankRequest]:
    """One request for each rank; a fixed program is one process on all its devices."""
    threads = threads_per_rank(devices)
    return [
        RankRequest(
            rank=rank, program=program.kind, arguments=program.arguments, environment=environment,
            working_directory=job.working_directory, import_path=job.import_path, threads=threads,
            cores=_cores(job, devices, rank), python_flags=program.flags,
        )
        for rank, environment in enumerate(environments)
    ]


def _cores(job: JobDescription, devices: Sequence[LeasedDevice], rank: int) -> tuple[int, ...]:
    if job.fixed:
        return tuple(core for device in devices for core in device.cores)
    return devices[rank].cores


def package_in(command: Sequence[str], directory: Path) -> Package:
    """Which of Lightning's two packages the zygote should import for a command.

    The one that the script names; else the one that is installed. A wrong guess costs time
    in each rank, nothing else.
    """
    for argument in command[1:]:
        path = directory / argument
        if argument.endswith(".py") and path.is_file():
            text = path.read_text(errors="replace")
            if re.search(r"^\s*(import|from)\s+pytorch_lightning\b", text, re.MULTILINE):
                return "pytorch_lightning"
            break
    return installed_package()


def installed_package() -> Package:
    """`lightning.pytorch` if it is installed, else `pytorch_lightning`."""
    from importlib.util import find_spec

    return "lightning.pytorch" if find_spec("lightning") else "pytorch_lightning"
