"""One place where the commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from selfsched.core.columns import column_widths

_CONTROLS = dict.fromkeys((*range(10), *range(11, 32), *range(127, 160)), "·")
"""All but the line feed."""
_GAP = 2
"""Characters between two columns."""
_UNBOUNDED = 10_000
_NOTEBOOK_WIDTH = 80
"""What a cell has room for beside a panel."""


def console() -> Console:
    """Standard output; text is never taken for markup."""
    shown = Console(markup=False, highlight=False, force_jupyter=False)
    if _is_in_notebook() and "COLUMNS" not in os.environ:
        shown.width = _NOTEBOOK_WIDTH
    return shown


def _is_in_notebook() -> bool:
    """Whether a cell shows what is printed: as lines of text then, not an output for each."""
    return Console().is_jupyter


def plain(text: object) -> Text:
    """Words from elsewhere as text: control characters shown as dots, no markup."""
    return Text(str(text).translate(_CONTROLS))


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    names: Collection[str] = (),
    words: str | None = None,
) -> None:
    """A table, its cells as plain text.

    Args:
        title: above it.
        columns: their headings.
        rows: a cell for each column.
        names: headings of columns that are cut where the terminal is narrow, with an ellipsis.
        words: heading of the column of sentences, which wrap.
    """
    cells = [[plain(cell) for cell in row] for row in rows]
    to = console()
    if not (to.is_terminal or _is_in_notebook()) and "COLUMNS" not in os.environ:
        to.width = _UNBOUNDED  # a program that reads it gets all of it
    contents = [max((row[i].cell_len for row in cells), default=0) for i in range(len(columns))]
    room = to.width - _GAP * (len(columns) - 1)
    widths = column_widths(columns, contents, room, names=names, words=words)
    table = Table(
        title=title, title_justify="left", header_style="bold",
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for column, width in zip(columns, widths, strict=True):
        table.add_column(column, width=width, overflow="fold")
    for row in cells:
        for column, cell, width in zip(columns, row, widths, strict=True):
            if column in names:
                cell.truncate(width, overflow="ellipsis")
        table.add_row(*row)
    to.print(table)


def print_json(value: Any) -> None:
    """One JSON value on standard output, and nothing else there."""
    print(json.dumps(value, indent=2, allow_nan=False))
