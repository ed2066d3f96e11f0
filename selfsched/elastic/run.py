"""`selfsched run`: a command as an elastic job, its terminal as the client."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from selfsched import settings
from selfsched.elastic import channel
from selfsched.elastic.attach import AttachedRun, View, detached_words
from selfsched.elastic.job import JobDescription, installed_version, working_directory
from selfsched.elastic.private_files import writing_private
from selfsched.elastic.run_directory import RunDirectory, RunOutcome, open_run, released_on_failure
from selfsched.errors import EXIT_FINE, Refused

_NOT_EXECUTABLE, _NOT_FOUND = 126, 127


@dataclass(frozen=True)
class RunOptions:
    """How a command is to be run. All checked by `run_command`."""

    min_devices: int = 1
    max_devices: int = 1
    name: str | None = None
    """The same name is the same job: an unfinished run of it goes on from its checkpoint."""
    plan: str | None = None
    """`2@0,1@7`: a fixed list of allocations, with no broker."""
    profile: bool = False
    """Visit each device count for a moment, with no broker, and end."""
    fixed: bool = False
    """Any program at all, once, on `max_devices` that are never taken before its stated time."""
    stated_seconds: float | None = None
    """For `fixed`: how long the program needs."""
    wait_seconds: float | None = None
    """How long to wait for the first devices; 0: not at all; None: as long as it takes."""
    batch_devices: int | None = None
    """Devices that the global batch refers to; None: those the script names."""
    validation: Literal["whole", "sharded"] = "whole"
    broker: str | None = None
    without_broker: bool = False
    """Run on `max_devices` of this machine, unarbitrated."""
    without_zygote: bool = False
    """Start every rank as a fresh process."""
    priority: float = 1.0
    script: bytes | None = None
    """Text of a script that has no file of its own: it is kept in the run's directory, as long as the run,
    and is the command's last word."""
    detach: bool = False
    """It goes on when its terminal is gone; Ctrl-C leaves it."""
    runs_directory: Path | None = None
    """Where the run's own directory is made; None: as the setting `runs_dir` says."""


def run_command(command: list[str], options: RunOptions, *, view: View | None = None) -> int:
    """Run a command as an elastic job, to its end.

    Ctrl-C stops it with a checkpoint, twice ends it; SIGTERM checkpoints and leaves. Of a
    detached run both end its client alone.

    Args:
        command: The command, verbatim; it is run once for each rank.
        options: On how many devices, under whose name, decided by whom.
        view: What shows the run; None: the terminal.

    Returns:
        The exit code: 0 finished, 1 failed (or the program's own), 2 wrong use,
        75 yielded (it goes on when run again under the same name), 130 stopped.

    Raises:
        Refused: options that contradict each other, a name that is taken, a command that
            does not exist (its `exit_code` is 127, as a shell's).
    """
    outcome, directory = follow_command(command, options, view=view)
    _say_how_it_ended(outcome, directory, options.name)
    return outcome.exit_code


def follow_command(
    command: list[str], options: RunOptions, *, view: View | None = None
) -> tuple[RunOutcome, RunDirectory]:
    """As `run_command`; says nothing of how it ended, and returns that and the run's directory."""
    from selfsched.elastic.views import TerminalView

    check_devices(options.min_devices, options.max_devices)
    if not command:
        raise Refused("there is no command to run: selfsched run -- python train.py")
    _check_program(command[0])
    _check_plan(options)
    runs = options.runs_directory or settings.load(unknown="ignore").runs_dir
    directory, lock = open_run(options.name, parent=runs)
    with released_on_failure(lock):
        if options.script is not None:
            with writing_private(directory.cell) as file:
                file.write(options.script)
            command = [*command, str(directory.cell)]
        job = _describe(command, options, directory)
        view = view or TerminalView()
        if options.detach:
            view.show(channel.Said(text=detached_words(job)))
    return AttachedRun(job, lock).follow(view), directory


def _describe(command: list[str], options: RunOptions, directory: RunDirectory) -> JobDescription:
    from selfsched.elastic.program import package_in

    here = working_directory()
    return JobDescription(
        run_directory=directory.path, name=options.name, program="command", command=tuple(command),
        package=package_in(command, here), working_directory=here,
        min_devices=options.min_devices, max_devices=options.max_devices,
        batch_devices=options.batch_devices, validation=options.validation,
        plan=options.plan, profile=options.profile,
        broker=options.broker, without_broker=options.without_broker,
        without_zygote=options.without_zygote, fixed=options.fixed,
        stated_seconds=options.stated_seconds, wait_seconds=options.wait_seconds, priority=options.priority,
        detached=options.detach, started_at_unix=time.time(), selfsched_version=installed_version(),
    )


def check_devices(min_devices: int, max_devices: int) -> None:
    """Refuse a range of devices that holds none.

    Raises:
        Refused: less than one, or the least is more than the most.
    """
    if min_devices < 1:
        raise Refused(f"min_devices is {min_devices}: a job needs at least 1")
    if min_devices > max_devices:
        raise Refused(f"min_devices ({min_devices}) is more than max_devices ({max_devices})")


class _NotStartable(Refused):
    """The command is no program that can be started; the exit code is a shell's."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def _check_program(name: str) -> None:
    """Refuse what no shell would find, before devices are asked for."""
    if shutil.which(name) is not None:
        return
    if os.sep in name and Path(name).exists():
        words = f"{name} is no program that may be run: chmod +x {name}, or name its interpreter"
        raise _NotStartable(words, _NOT_EXECUTABLE)
    raise _NotStartable(f"{name} was not found" + ("" if os.sep in name else " on PATH"), _NOT_FOUND)


def _check_plan(options: RunOptions) -> None:
    from selfsched.elastic.plan import parse_plan

    if options.plan is not None:
        parse_plan(options.plan)
        if options.fixed:
            raise Refused("--plan changes the devices, --fixed never does: choose one")


def _say_how_it_ended(outcome: RunOutcome, directory: RunDirectory, name: str | None) -> None:
    if outcome.exit_code == EXIT_FINE:
        return
    if outcome.traceback:
        sys.stderr.write(outcome.traceback.rstrip("\n") + "\n")
    # The broker says it in the protocol's word, its user has typed an option.
    words = (outcome.message or outcome.outcome).replace("min_devices", "--devices")
    if outcome.outcome in ("stopped", "yielded") and outcome.step:
        words += f"; checkpoint at step {outcome.step}"
        words += f", the same command goes on from there (--name {name})" if name else \
            "; give a run a --name to go on from there"
    print(f"selfsched: {words}", file=sys.stderr)
    if outcome.outcome == "failed":
        print(f"selfsched: more in {os.fspath(directory.path)}", file=sys.stderr)
