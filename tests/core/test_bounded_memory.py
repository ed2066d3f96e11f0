"""A month of training takes no more memory than an hour of it."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from bench._callback_memory import feed
from selfsched.core.job_model import JobModel
from selfsched.core.measurement import Sketch, Spans
from selfsched.measure.warm_up import WarmUp

LIMIT_BYTES = 20e6


def model() -> JobModel:
    return JobModel(hardware="cpu", min_devices=1, max_devices=8)


def entries(value: Any) -> int:
    """Numbers and words in a nest of lists and dictionaries."""
    if isinstance(value, dict):
        return sum(map(entries, value.values()))
    return sum(map(entries, value)) if isinstance(value, list | tuple) else 1


@pytest.mark.slow
def test_the_state_of_a_model_stops_growing() -> None:
    job = model()
    sizes = []
    for steps in (50_000, 150_000):
        feed(job, steps)
        sizes.append(entries(job.to_state()))
    early, late = sizes
    # The log of forecasts is thinned when it is full, so that its length goes up and down.
    assert late <= 1.3 * early
    assert len(json.dumps(job.to_state())) < 200_000


def test_a_model_and_what_it_knows_of_many_steps_are_far_below_the_limit() -> None:
    tracemalloc.start()
    try:
        job = model()
        feed(job, 5000)
        used, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert job.progress().step == 5000
    assert used < LIMIT_BYTES / 10
    assert peak < LIMIT_BYTES / 2


def test_a_sketch_has_a_bounded_number_of_bins_whatever_it_is_given() -> None:
    sketch = Sketch()
    for exponent in range(-1000, 1000):
        sketch.update(min(max(1.02**exponent, 1e-7), 1e8))
    assert len(sketch.bins) <= 720


def test_spans_and_warm_up_keep_no_stream() -> None:
    spans, warm_up = Spans(), WarmUp()
    for number in range(20_000):
        spans.update(1.0 + (number % 100) / 100)
        warm_up.judge(0.01, 0.01 * number)
    assert entries(spans.to_state()) < 200
    assert len(warm_up._cycles) <= 8
