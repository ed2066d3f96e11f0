"""The finish in words, and in bars that are not ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from selfsched.measure.progress_bar import finish_words, show_in, tell_position
from selfsched.protocol import Forecast


def forecast(seconds: float, spread: float) -> Forecast:
    return Forecast(
        p10_seconds=seconds - spread, p50_seconds=seconds, p90_seconds=seconds + spread, assumption="as_now"
    )


@pytest.mark.parametrize(
    ("seconds", "spread", "end"),
    [
        (42.0, 5.0, "±5 s, 42 s left"),
        (7500.0, 600.0, "±10 min 00 s, 2 h 05 min left"),
        (400_000.0, 9_000.0, "±2 h 30 min, 4 d 15 h left"),
    ],
)
def test_the_finish_has_a_time_a_width_and_what_is_left(seconds: float, spread: float, end: str) -> None:
    words = finish_words(forecast(seconds, spread), 1.7e9)
    assert words.endswith(end)
    assert ":" in words.split(" ±")[0]


class Bar:
    def get_metrics(self, trainer: Any, module: Any) -> dict[str, Any]:
        return {"v_num": 3}


def test_the_bar_shows_the_finish_once_it_is_known_and_is_left_as_it_was() -> None:
    bar, words = Bar(), [None, "soon"]
    take_out = show_in(bar, lambda: words[-1])
    assert bar.get_metrics(None, None) == {"v_num": 3, "finish": "soon"}
    words.append(None)
    assert bar.get_metrics(None, None) == {"v_num": 3}
    take_out()
    assert vars(bar) == {}


def test_no_bar_and_a_bar_with_a_word_of_its_own_are_left_alone() -> None:
    show_in(None, lambda: "soon")()
    bar = Bar()
    bar.get_metrics = lambda *_: {"mine": 1}  # type: ignore[method-assign]
    show_in(bar, lambda: "soon")()
    assert bar.get_metrics(None, None) == {"mine": 1}


def test_a_bar_that_is_not_tqdms_is_told_nothing() -> None:
    tell_position(SimpleNamespace(), SimpleNamespace(), 5)
