"""One place where the commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_CONTROLS = dict.fromkeys((*range(10), *range(11, 32), *range(127, 160)), "·")
"""All but the line feed."""


def console() -> Console:
    """Standard output; text is never taken for markup."""
    return Console(markup=False, highlight=False)


def plain(text: object) -> Text:
    """Words from elsewhere as text: control characters shown as dots, no markup."""
    return Text(str(text).translate(_CONTROLS))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table, its cells as plain text."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(plain(cell) for cell in row))
    console().print(table)


def print_json(value: Any) -> None:
    """One JSON value on standard output, and nothing else there."""
    print(json.dumps(value, indent=2, allow_nan=False))
