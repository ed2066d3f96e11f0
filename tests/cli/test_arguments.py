"""Device counts and durations as people write them."""

from __future__ import annotations

import pytest

from selfsched.commands.arguments import parse_counts, parse_devices, parse_duration
from selfsched.errors import Refused


@pytest.mark.parametrize(
    ("text", "expected"), [("1", (1, 1)), ("2", (2, 2)), ("1-4", (1, 4)), (" 3-3 ", (3, 3))]
)
def test_device_counts(text: str, expected: tuple[int, int]) -> None:
    assert parse_devices(text) == expected


@pytest.mark.parametrize("text", ["0", "-1", "4-1", "0-2", "", "two", "1-", "1.5", "1-2-3", "9999999", "1e3"])
def test_what_is_no_device_count_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_devices(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [([], ()), (["1,2"], (1, 2)), (["1-3"], (1, 2, 3)), (["4", "1-2", "2, 4"], (4, 1, 2))],
)
def test_several_device_counts(texts: list[str], expected: tuple[int, ...]) -> None:
    assert parse_counts(texts) == expected


@pytest.mark.parametrize("texts", [["1,,2"], ["1,x"], ["1-9"], ["1-900000"], ["1-5", "6-9"]])
def test_what_are_no_device_counts_or_too_many_is_refused(texts: list[str]) -> None:
    with pytest.raises(Refused, match="--devices"):
        parse_counts(texts)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("2d", 172_800), ("45", 45), ("1.5h", 5400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text, "--time") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["0", "0s", "-5", "nan", "inf", "1e999", "", "soon", "5x", "99999999999d", "m"]
)
def test_what_is_no_duration_is_refused_by_its_option(text: str) -> None:
    with pytest.raises(Refused, match="--wait"):
        parse_duration(text, "--wait")
