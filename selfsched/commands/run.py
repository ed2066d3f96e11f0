"""`run`: options checked and turned into those of the launcher."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from selfsched import settings
from selfsched.commands.arguments import parse_devices, parse_duration
from selfsched.errors import Refused

MAX_PRIORITY = 100.0


@dataclass(frozen=True)
class RunRequest:
    """The options of `selfsched run` as they were typed."""

    command: tuple[str, ...]
    devices: str
    plan: str | None = None
    fixed: bool = False
    time: str | None = None
    wait: str | None = None
    no_wait: bool = False
    name: str | None = None
    priority: float = 1.0
    batch_devices: int | None = None
    broker: str | None = None
    detach: bool = False
    cell: int | None = None
    """Process id of the kernel whose cell comes on standard input, and is the command's last word."""


def run_job(request: RunRequest) -> int:
    """Run the command to its end and return its exit code.

    Raises:
        Refused: options that are wrong or contradict each other.
    """
    script = None if request.cell is None else _cell_of(request.cell)
    low, high = parse_devices(request.devices)
    check(request)
    stated = parse_duration(request.time, "--time") if request.time is not None else None
    wait = 0.0 if request.no_wait else None
    if request.wait is not None:
        wait = parse_duration(request.wait, "--wait")
    from selfsched.elastic.run import RunOptions, run_command

    options = RunOptions(
        min_devices=low,
        max_devices=high,
        name=request.name,
        plan=request.plan,
        fixed=request.fixed,
        stated_seconds=stated,
        wait_seconds=wait,
        batch_devices=request.batch_devices,
        broker=request.broker,
        priority=request.priority,
        detach=request.detach or settings.load().detach,
        script=script,
    )
    return run_command(list(request.command), options)


def _cell_of(kernel: int) -> bytes:
    """The cell that a kernel hands over. This process ends with it; what then becomes of the run is as
    with any terminal: it ends with a checkpoint, and a detached one goes on."""
    from selfsched.launch.parenthood import die_with_parent

    die_with_parent(kernel)
    return sys.stdin.buffer.read()


def check(request: RunRequest) -> None:
    """Refuse what contradicts itself.

    Raises:
        Refused: naming the options.
    """
    if request.fixed and request.time is None:
        raise Refused("--fixed needs --time, how long the program will hold its devices: --time 2h")
    if request.time is not None and not request.fixed:
        raise Refused("--time belongs to --fixed; a training that can be moved predicts its own end")
    if request.no_wait and request.wait is not None:
        raise Refused("--wait and --no-wait contradict each other")
    if not (math.isfinite(request.priority) and 0 < request.priority <= MAX_PRIORITY):
        raise Refused(f"--priority {request.priority:g} must be more than 0 and at most {MAX_PRIORITY:g}")
    if request.batch_devices is not None and request.batch_devices < 1:
        raise Refused(f"--batch-devices {request.batch_devices} must be at least 1")
