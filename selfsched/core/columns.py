"""How wide the columns of a table are, so that it can be read in a narrow terminal.

Three kinds of columns: *names* are cut with an ellipsis when there is no room, *words* (one
column at most) wrap at spaces, all others are short and shown whole. A heading of several words
takes several lines before anything is cut.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

_LEAST_NAME = 8
_WANTED_WORDS = 24
"""For which names are cut ..."""
_LEAST_WORDS = 12
"""... and what is left of a sentence's column when they cannot be cut further."""


def column_widths(
    headings: Sequence[str],
    contents: Sequence[int],
    room: int,
    *,
    names: Collection[str] = (),
    words: str | None = None,
) -> list[int]:
    """Widths of the columns of a table, in characters.

    Args:
        headings: one for each column.
        contents: each column's widest cell.
        room: characters of a line that are left for cells.
        names: headings of the columns that may be cut.
        words: heading of the column that may wrap.
    """
    widths = [max(len(heading), content) for heading, content in zip(headings, contents, strict=True)]
    if sum(widths) <= room:
        return widths
    widths = [max(_longest_word(h), content) for h, content in zip(headings, contents, strict=True)]
    wrapping = [i for i, heading in enumerate(headings) if heading == words]
    cut = [i for i, heading in enumerate(headings) if heading in names]
    kept = sum(width for i, width in enumerate(widths) if i not in (*wrapping, *cut))
    reserved = sum(min(widths[i], _WANTED_WORDS) for i in wrapping)
    for i, width in _level(cut, widths, room - kept - reserved).items():
        widths[i] = width
    for i in wrapping:
        widths[i] = min(widths[i], max(_LEAST_WORDS, room - sum(widths) + widths[i]))
    return widths


def _longest_word(heading: str) -> int:
    return max((len(word) for word in heading.split()), default=0)


def _level(cut: Sequence[int], widths: Sequence[int], room: int) -> dict[int, int]:
    """The largest widths under one common bound that fit; the shortest columns first."""
    given: dict[int, int] = {}
    for n, i in enumerate(sorted(cut, key=lambda i: widths[i])):
        bound = max(_LEAST_NAME, (room - sum(given.values())) // (len(cut) - n))
        given[i] = min(widths[i], bound)
    return given
