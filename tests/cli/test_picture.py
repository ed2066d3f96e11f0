"""The picture of explain and profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfsched.commands.picture import check_picture, draw
from selfsched.core.bidding import Explanation
from selfsched.core.performance import StepTime
from selfsched.errors import Refused


def point(devices: int, seconds: float, *, measured: bool) -> StepTime:
    return StepTime(devices=devices, seconds=seconds, sigma_log=0.05, measured=measured)


TOLD = Explanation(
    devices=2,
    parts={"forward": 0.02, "backward": 0.04, "communication": 0.01},
    measured=(point(1, 0.12, measured=True), point(2, 0.07, measured=True)),
    curve=(point(1, 0.12, measured=True), point(2, 0.07, measured=True), point(4, 0.045, measured=False)),
    steps={1: 30, 2: 30},
    restart_parts={},
    words=(),
)


@pytest.mark.parametrize(("name", "begins"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG"), ("a.PDF", b"%PDF")])
def test_it_is_drawn_in_the_format_of_its_name(tmp_path: Path, name: str, begins: bytes) -> None:
    check_picture(tmp_path / name)
    draw(TOLD, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_it_shows_the_parts_and_the_curve_by_name(tmp_path: Path) -> None:
    draw(TOLD, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    for words in (
        "communication",
        "perfect scaling",
        "measured",
        "10 to 90 %",
        "steps per second",
        "2 devices",
    ):
        assert words in text
    draw(TOLD, tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_text() == text


@pytest.mark.parametrize(
    ("name", "words"), [("a.txt", "must end with .svg"), ("nowhere/a.svg", "no directory"), ("a", "must end")]
)
def test_what_cannot_be_drawn_is_refused_before(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        check_picture(tmp_path / name)


def test_a_directory_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(Refused, match="could not be written"):
        draw(TOLD, tmp_path / "a.svg")
