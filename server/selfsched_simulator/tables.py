"""CSV files of numbers, read with a word for whatever is wrong in them."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from selfsched.errors import Refused

_LARGEST = 1e9
Row = Mapping[str, str | None]


def read_rows(path: Path, columns: Sequence[str], what: str) -> list[Row]:
    """The rows of a CSV file; line 2 is the first.

    Args:
        path: the file.
        columns: those it must have; others are left as they are.
        what: what the file is, for the message.

    Raises:
        Refused: it cannot be read, lacks a column, or has no rows.
    """
    header, rows = read_any(path, what)
    missing = [name for name in columns if name not in header]
    if missing:
        raise Refused(
            f"{what} {path} lacks the columns {', '.join(missing)};"
            f" it has {', '.join(header)[:200] or 'none'}"
        )
    if not rows:
        raise Refused(f"{what} {path} has no rows: it needs a line for each below the header")
    return rows


def read_any(path: Path, what: str) -> tuple[Sequence[str], list[Row]]:
    """The header and the rows of a CSV file, whatever its columns are.

    Raises:
        Refused: it cannot be read.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            return reader.fieldnames or (), list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Refused(f"cannot read {what} {path}: {error}") from None


def number(row: Row, column: str, line: int) -> float:
    """A finite number.

    Raises:
        Refused: it is none, or out of range.
    """
    text = row.get(column)
    try:
        value = float(text or "")
    except ValueError:
        raise Refused(f"line {line}: {column} is {(text or '')[:40]!r}, not a number") from None
    if not math.isfinite(value) or abs(value) > _LARGEST:
        raise Refused(f"line {line}: {column} is {(text or '')[:40]!r}, out of range")
    return value


def whole(row: Row, column: str, line: int, *, least: int = 1) -> int:
    """A whole number of at least so much.

    Raises:
        Refused: it is none.
    """
    value = number(row, column, line)
    if value != int(value) or value < least:
        raise Refused(f"line {line}: {column} is {value:g}, it must be a whole number of at least {least}")
    return int(value)


def positive(row: Row, column: str, line: int) -> float:
    """A number above 0.

    Raises:
        Refused: it is not.
    """
    value = number(row, column, line)
    if value <= 0:
        raise Refused(f"line {line}: {column} is {value:g}, it must be above 0")
    return value
