"""Columns that share a narrow line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.core.columns import column_widths

HEADINGS = ("job", "name", "account", "held after", "why")


def widths(room: int, *contents: int) -> list[int]:
    return column_widths(HEADINGS, contents, room, names=("name", "account"), words="why")


def test_where_there_is_room_everything_is_whole() -> None:
    assert widths(100, 5, 20, 7, 1, 50) == [5, 20, 7, 10, 50]


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (90, [5, 20, 7, 5, 50]),  # a heading of two words takes two lines first
        (61, [5, 20, 7, 5, 24]),  # then sentences wrap
        (53, [5, 12, 7, 5, 24]),  # then the longest name is cut
        (45, [5, 8, 7, 5, 20]),  # and at last sentences get very narrow
    ],
)
def test_what_gives_way_in_which_order(room: int, expected: list[int]) -> None:
    assert widths(room, 5, 20, 7, 1, 50) == expected


@given(room=st.integers(40, 200), contents=st.tuples(*[st.integers(0, 60)] * 5))
def test_it_fits_whenever_it_can_and_short_columns_are_never_cut(
    room: int, contents: tuple[int, ...]
) -> None:
    found = widths(room, *contents)
    assert found[0] >= max(3, contents[0])
    assert found[3] >= max(5, contents[3])
    least = found[0] + found[3] + 8 + 8 + 12
    assert sum(found) <= max(room, least)
