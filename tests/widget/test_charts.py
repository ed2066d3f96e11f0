"""Drawings from numbers: what they say, and numbers that would break them."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from widget.told import began, left

from selfsched.cell import charts
from selfsched.cell.charts import Predicted, Span
from selfsched.cell.scales import Scale, round_counts, round_durations, round_values, short_duration
from selfsched.cell.story import MOST_SPANS, RunStory
from selfsched.core.performance import StepTime


def told(markup: str) -> str:
    return ElementTree.fromstring(markup).get("aria-label") or ""


def test_nothing_to_draw_draws_nothing() -> None:
    assert charts.allocation((), 5.0) == ""
    assert charts.finish((Predicted(0, 1, 2, 3),), 5.0) == ""
    assert charts.step_parts({"forward": 0.0}, 1) == ""
    assert charts.scaling((), ()) == ""


def test_devices_over_time_are_told_in_words() -> None:
    spans = [Span(1, 0, 10, 0, 90), Span(4, 12, 20, 90, 400)]
    assert told(charts.allocation(spans, 20)) == "Devices over 20 s: 2 stretches, at most 4, now 4 devices."
    assert "none now" in told(charts.allocation(spans, 30))


def test_a_wild_first_guess_does_not_flatten_what_came_after() -> None:
    made = [Predicted(0, 10, 1e4, 1e6), *(Predicted(t, 90, 100, 110) for t in range(1, 50))]
    place = ElementTree.fromstring(charts.finish(made, 50.0))
    drawn = [part for part in place.iter() if part.tag.endswith("polyline")]
    lines = [part.get("points") for part in drawn if "line" in part.get("style", "")]
    heights = {float(pair.split(",")[1]) for pair in lines[0].split()[1:]}  # type: ignore[union-attr]
    assert min(heights) < 110, "the later forecasts stand well above the bottom"


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6)),
        min_size=2, max_size=6,
    ),
    st.floats(0, 1e7),
)  # fmt: skip
def test_every_finish_stays_within_its_drawing(values: list[tuple[float, ...]], now: float) -> None:
    made = [Predicted(m, *sorted((m + a, m + b, m + c))) for m, a, b, c in sorted(values)]
    root = ElementTree.fromstring(charts.finish(made, now))
    for element in root.iter():
        for pair in element.get("points", "").split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= 320
            assert 0 <= y <= 150


def test_scaling_shows_the_model_its_band_and_the_measured_points() -> None:
    curve = [StepTime(devices=n, seconds=0.1 / n**0.8, sigma_log=0.1 * n, measured=n == 1) for n in (1, 2, 4)]
    markup = charts.scaling(curve, curve[:1])
    assert told(markup) == "Steps a second by devices: 10 on 1, 17.4 on 2, 30.3 on 4. Measured on: 1."
    assert markup.count("<circle") == 1
    assert markup.count("<polygon") == 1


def test_a_step_says_the_share_of_each_part() -> None:
    assert "communication 10 ms, 25%" in told(charts.step_parts({"forward": 0.03, "communication": 0.01}, 2))


def test_a_step_on_other_devices_than_now_is_past() -> None:
    parts = {"forward": 0.03}
    assert "A step on 2 devices takes" in told(charts.step_parts(parts, 2, held=2))
    assert "A step on 2 devices took" in (words := told(charts.step_parts(parts, 2, held=1)))
    assert "on 1 none is measured yet" in words


def labels(markup: str) -> dict[str, tuple[float, float, str]]:
    """Place and anchor of each label of a drawing."""
    drawn = [part for part in ElementTree.fromstring(markup).iter() if part.tag.endswith("text")]
    return {
        part.text or "": (float(part.get("x", "")), float(part.get("y", "")), part.get("text-anchor", ""))
        for part in drawn
    }


def test_an_axis_s_words_stand_above_its_ticks_and_none_is_cut() -> None:
    found = labels(charts.allocation([Span(2, 0, 90)], 90.0))
    assert found["devices"][1] + 10 <= found["2"][1], "a line of text lies between"
    assert found["1.5 min"][0] + 20 <= 320


def test_a_finish_says_what_its_axis_and_lines_are() -> None:
    made = [Predicted(1, 50, 60, 70), Predicted(9, 50, 60, 400)]
    found = labels(charts.finish(made, 10.0))
    assert {"done after", "10 to 90 %; dashed: time so far"} <= set(found)
    assert "10 to 90 %; dashed: time so far; level: the end" in labels(charts.finish(made, 60.0, ended=60.0))
    newest = charts.finish(made, 10.0).split('<polygon points="')[1].split('"')[0].split()
    assert min(float(pair.split(",")[1]) for pair in newest) >= 22, "the newest range is within the chart"


@pytest.mark.parametrize(
    ("high", "values"), [(0.0, [0.0]), (4.0, [0, 1, 2, 3, 4]), (7.0, [0, 2, 4, 6]), (math.inf, [0.0])]
)
def test_values_on_an_axis_are_round(high: float, values: list[float]) -> None:
    assert round_values(high) == values


@pytest.mark.parametrize(
    ("high", "words"),
    [(0.5, ["0"]), (60, ["0", "15 s", "30 s", "45 s", "60 s"]), (36_000, ["0", "3 h", "6 h", "9 h"])],
)
def test_times_on_an_axis_are_round(high: float, words: list[str]) -> None:
    named = [short_duration(value).replace("1 min", "60 s") for value in round_durations(high)]
    assert named == words
    assert len(round_durations(1e9)) <= 6


def test_many_device_counts_are_named_by_a_few() -> None:
    assert round_counts([1, 2, 4]) == [1, 2, 4]
    chosen = round_counts(list(range(1, 65)))
    assert len(chosen) == 8
    assert chosen[0] == 1
    assert chosen[-1] == 64


def test_a_scale_of_one_value_and_a_value_outside_stay_within() -> None:
    assert Scale(3, 3, 0, 10)(3) == 0
    assert Scale(0, 1, 0, 10)(5) == 10


def test_a_thousand_stretches_are_merged_and_keep_whole_time_and_steps() -> None:
    story = RunStory()
    for index in range(1000):
        story.take(began(index, 1 + index % 3, 10.0 * index), 10.0 * index)
        story.text.step = 5 * (index + 1)
        story.take(left(index, 5 * (index + 1), 10.0 * index + 9), 10.0 * index + 9)
    spans = story.spans(10_000.0)
    assert len(spans) <= MOST_SPANS
    assert spans[0].begin == 0
    assert spans[-1].end == 9999
    assert spans[-1].last_step == 5000
    assert all(one.end <= other.begin for one, other in pairwise(spans))
