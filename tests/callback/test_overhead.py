"""The bench of the callback keeps its contract; how much it costs is for `make bench` to say."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench._callback_memory import _resident_bytes
from bench.overhead import Overhead, measure


def test_the_interval_contains_the_ratio() -> None:
    result = measure(2, 40, 0.0005, memory_pairs=0)
    assert isinstance(result, Overhead)
    assert result.ratio_low <= result.ratio <= result.ratio_high
    assert result.step_ms >= 0.5


@pytest.mark.slow
def test_json_is_one_object_and_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.overhead", "--json", "--quick"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert set(result) == {
        "step_ms", "ratio", "ratio_low", "ratio_high", "memory_mb", "picture", "picture_core",
    }  # fmt: skip
    assert set(result["picture"]) == {"ratio", "low", "high"}
    assert 0 < result["picture_core"] < 1, "a picture was drawn"


@pytest.mark.slow
def test_memory_is_read_from_a_process_that_trained_and_took_over_more_steps() -> None:
    assert _resident_bytes("with", 20, 500) > 1e7
