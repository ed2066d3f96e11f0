"""How the commands print: tables for people, JSON for programs. Text is never taken for markup."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from selfsched.protocol import Message

_CONTROLS = dict.fromkeys((*range(10), *range(11, 32), *range(127, 160)), "·")


def say(words: object) -> None:
    """A line for people."""
    Console(markup=False, highlight=False, soft_wrap=True).print(_plain(words))


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for people; an empty one says so."""
    listed = [tuple(map(_plain, row)) for row in rows]
    if not listed:
        say(f"{title}: none")
        return
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in listed:
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)


def show_json(value: Message | Sequence[Message] | dict[str, object]) -> None:
    """One JSON value, and nothing else, on standard output."""
    if isinstance(value, Message):
        print(value.model_dump_json(indent=2))
    elif isinstance(value, dict):
        print(json.dumps(value, indent=2))
    else:
        print(json.dumps([message.model_dump(mode="json") for message in value], indent=2))


def duration(seconds: float | None) -> str:
    """A duration for people."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _plain(value: object) -> Text:
    return Text("-" if value is None else str(value).translate(_CONTROLS))
