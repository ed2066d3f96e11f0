"""`profile`: each device count for a moment, and what was learned, without training to the end."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from selfsched.commands.arguments import parse_devices
from selfsched.commands.explain import print_model
from selfsched.commands.picture import check_picture, draw
from selfsched.commands.printing import print_json
from selfsched.core.bidding import Explanation
from selfsched.errors import EXIT_FINE, Refused, SelfschedError
from selfsched.job_record import read_model


class ProfileFailed(SelfschedError):
    """The program ended before a step was measured."""


def show_profile(
    command: tuple[str, ...], devices: str | None, *, as_json: bool, picture: Path | None = None
) -> int:
    """Run the command on each device count for a moment and print what its steps cost.

    Args:
        command: as for `selfsched run`; what it logs and saves meanwhile stays.
        devices: `N` or `N-M`; None: all that this machine has.
        as_json: print one JSON object instead of tables.
        picture: file to draw the parts of a step and the scaling curve to.

    Returns:
        The exit code: that of the program where it failed.

    Raises:
        Refused: options that are wrong, or no command.
        ProfileFailed: no step was measured.
    """
    check_picture(picture)
    from selfsched.elastic.run import RunOptions, follow_command
    from selfsched.elastic.views import TerminalView

    low, high = parse_devices(devices) if devices is not None else (1, _devices_here())
    with tempfile.TemporaryDirectory(prefix="selfsched-profile-") as runs:
        options = RunOptions(min_devices=low, max_devices=high, profile=True, runs_directory=Path(runs))
        # What the program prints is not what was asked for: standard output is the table's alone.
        outcome, directory = follow_command(list(command), options, view=TerminalView(output=sys.stderr))
        model = read_model(directory.path)
    if outcome.outcome == "refused":
        raise Refused(outcome.message or "this program cannot be profiled")
    if outcome.outcome not in ("finished", "yielded"):
        raise ProfileFailed(outcome.traceback or outcome.message or outcome.outcome)
    told = model.explanation() if model is not None else None
    if told is None or not told.measured:
        raise ProfileFailed(
            "no training step was measured: is there a Trainer with selfsched.SelfScheduler() in it, "
            "and does its fit make more than a few steps?"
        )
    if picture is not None:
        draw(told, picture)
    _show(told, as_json=as_json)
    return EXIT_FINE


def _show(told: Explanation, *, as_json: bool) -> None:
    if as_json:
        print_json(told.as_json())
    else:
        print_model(told)


def _devices_here() -> int:
    from selfsched.launch import local_devices

    return len(local_devices.gpus()) or len(os.sched_getaffinity(0))
