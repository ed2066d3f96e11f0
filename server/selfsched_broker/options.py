"""What all administrators' commands share: their options, and the broker that they mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from selfsched.protocol import Accepted
from selfsched_broker import settings
from selfsched_broker.office import Office, open_office
from selfsched_broker.printing import say, show_json

StateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="The broker's state directory.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, and nothing else.")]


def find_settings(state_dir: Path | None) -> settings.BrokerSettings:
    """The settings of the broker that a command means: the lab's, else this user's private one."""
    found = settings.load(state_dir=state_dir)
    if state_dir is None and found.state_dir == settings.DEFAULT_STATE_DIR and not found.state_dir.exists():
        from selfsched_broker.private import private_arguments

        return settings.load(state_dir=private_arguments()["state_dir"])
    return found


@contextmanager
def office(state_dir: Path | None, as_json: bool) -> Iterator[Office]:
    """The broker that a command means; a person who named none is told which one it is."""
    with open_office(find_settings(state_dir)) as found:
        if state_dir is None and not as_json:
            say_place(found.place)
        yield found


def say_place(place: str) -> None:
    """Tell a person, on standard error, what a command took by default."""
    typer.echo(f"{place}; --state-dir names another", err=True)


def show_accepted(answer: Accepted, as_json: bool) -> None:
    """What the broker said to an order."""
    if as_json:
        show_json(answer)
    else:
        say(answer.detail or "done")
