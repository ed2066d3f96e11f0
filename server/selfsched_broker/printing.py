"""How the commands print: tables for people, JSON for programs. Text is never taken for markup."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from selfsched.core.columns import column_widths
from selfsched.protocol import Message

_CONTROLS = dict.fromkeys((*range(10), *range(11, 32), *range(127, 160)), "·")

_GAP = 2
"""Characters between two columns."""
_UNBOUNDED = 10_000


def say(words: object) -> None:
    """A line for people."""
    Console(markup=False, highlight=False, soft_wrap=True).print(_plain(words))


def show_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    names: Collection[str] = (),
    words: str | None = None,
) -> None:
    """A table for people; an empty one says so.

    Args:
        title: above it.
        headings: of its columns.
        rows: a cell for each column.
        names: headings of columns that are cut where the terminal is narrow, with an ellipsis.
        words: heading of the column of sentences, which wrap.
    """
    listed = [tuple(map(_plain, row)) for row in rows]
    if not listed:
        say(f"{title}: none")
        return
    console = _console()
    contents = [max(cell.cell_len for cell in column) for column in zip(*listed, strict=True)]
    room = console.width - _GAP * (len(headings) - 1)
    widths = column_widths(headings, contents, room, names=names, words=words)
    table = Table(
        title=title, title_justify="left", header_style="bold",
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for heading, width in zip(headings, widths, strict=True):
        table.add_column(heading, width=width, overflow="fold")
    for row in listed:
        for heading, cell, width in zip(headings, row, widths, strict=True):
            if heading in names:
                cell.truncate(width, overflow="ellipsis")
        table.add_row(*row)
    console.print(table)


def _console() -> Console:
    """Standard output; where it is no terminal and no width is set, lines are as long as they need be."""
    console = Console(markup=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNBOUNDED
    return console


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
