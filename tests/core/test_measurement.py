"""Statistics merge exactly, count explicitly and take no nonsense."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.core.measurement import Running, Sketch, Spans, usable_seconds

positive = st.floats(1e-6, 1e6)


@pytest.mark.parametrize("nonsense", [None, math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_a_duration_that_cannot_be_is_not_counted(nonsense: float | None) -> None:
    assert usable_seconds(nonsense) is None


def test_a_duration_is_clipped_to_a_sane_range() -> None:
    assert usable_seconds(1e-12) == 1e-7
    assert usable_seconds(1e300) == 1e8


@given(st.lists(positive), st.lists(positive))
def test_merged_moments_equal_those_of_the_joined_stream(a: list[float], b: list[float]) -> None:
    left, right, whole = Running(), Running(), Running()
    for value in a:
        left.update(value)
        whole.update(value)
    for value in b:
        right.update(value)
        whole.update(value)
    left.merge(right)
    assert left.count == whole.count == len(a) + len(b)
    assert left.mean == pytest.approx(whole.mean)
    assert left.m2 == pytest.approx(whole.m2, rel=1e-6, abs=1e-6)


def test_no_value_is_no_variance_and_a_count_of_zero() -> None:
    assert Running().variance is None
    assert Running().moments().count == 0
    running = Running()
    for value in (1.0, 3.0):
        running.update(value)
    assert running.variance == pytest.approx(2.0)
    assert running.moments().mean == pytest.approx(2.0)


@given(st.lists(positive, min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_a_quantile_of_the_sketch_is_right_to_its_bin(values: list[float], fraction: float) -> None:
    sketch = Sketch()
    for value in values:
        sketch.update(value)
    exact = float(np.quantile(values, fraction, method="inverted_cdf"))
    assert sketch.quantile(fraction) == pytest.approx(exact, rel=0.03)


def test_sketches_merge_exactly_and_an_empty_one_knows_nothing() -> None:
    a, b, whole = Sketch(), Sketch(), Sketch()
    for value in (0.1, 0.2, 5.0):
        a.update(value)
        whole.update(value)
    for value in (0.1, 7.0):
        b.update(value)
        whole.update(value)
    a.merge(b)
    assert a == whole
    assert Sketch().quantile(0.5) is None


def test_spans_are_drawn_to_their_prior_and_drop_nonsense() -> None:
    spans = Spans()
    assert spans.mean() == 0.0
    assert spans.mean(prior_seconds=2.0, prior_count=1.0) == 2.0
    for seconds in (4.0, math.nan, -1.0, math.inf):
        spans.update(seconds)
    assert spans.count == 1
    assert spans.mean(prior_seconds=2.0, prior_count=1.0) == pytest.approx(3.0)
    assert Spans.from_state(json.loads(json.dumps(spans.to_state()))) == spans


def test_two_spans_far_beyond_the_usual_are_accidents_and_the_third_is_how_it_is() -> None:
    spans = Spans()
    for seconds in (1.0, 1.1, 0.9, 1.0, 61.0, 1.0, 62.0):
        spans.update(seconds)
    assert (spans.count, spans.aside) == (5, [61.0, 62.0])
    assert spans.mean() == pytest.approx(1.0)
    assert Spans.from_state(json.loads(json.dumps(spans.to_state()))) == spans
    spans.update(63.0)
    assert (spans.count, spans.aside) == (8, [])
    assert spans.mean() == pytest.approx((5.0 + 61.0 + 62.0 + 63.0) / 8)


def test_before_the_usual_is_known_and_where_it_is_short_nothing_is_an_accident() -> None:
    early, short = Spans(), Spans()
    for seconds in (1.0, 3600.0, 1.0):
        early.update(seconds)
    for seconds in (0.01, 0.01, 0.01, 0.01, 4.9):
        short.update(seconds)
    assert (early.count, short.count) == (3, 5)


def test_a_state_that_was_written_before_accidents_were_kept_is_read() -> None:
    state = Spans().to_state()
    del state["aside"]
    assert Spans.from_state(state) == Spans()
