"""Memory as part of the model (T19)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.core.memory import HEADROOM, MemoryModel

GB = 10**9


def test_t19_one_reading_tells_which_smaller_counts_would_run_out_of_memory() -> None:
    memory = MemoryModel()
    memory.observe(4, peak=30 * GB, resident=10 * GB, device=80 * GB)
    assert memory.peak_bytes(2) == 50 * GB
    assert memory.peak_bytes(1) == 90 * GB
    assert [memory.fits(n) for n in (1, 2, 4, 8)] == [False, True, True, True]


def test_two_readings_are_believed_more_than_the_parts() -> None:
    memory = MemoryModel()
    memory.observe(4, peak=30 * GB, resident=1 * GB, device=80 * GB)
    memory.observe(2, peak=40 * GB)
    assert memory.peak_bytes(1) == 60 * GB
    assert memory.fits(1)


def test_nothing_is_ruled_out_by_what_is_not_known() -> None:
    memory = MemoryModel()
    assert memory.peak_bytes(1) is None
    assert memory.fits(1)
    memory.observe(2, peak=70 * GB)
    assert memory.fits(1), "how much the device has is not known"
    memory.observe(0, peak=1, device=1)
    memory.observe(2, peak=None, resident=-5, device=0)
    assert memory.device_bytes is None


def test_what_has_run_is_not_ruled_out_by_its_headroom() -> None:
    memory = MemoryModel()
    memory.observe(2, peak=int((1 - HEADROOM / 2) * 80 * GB), device=80 * GB)
    assert memory.fits(2)
    assert not memory.fits(1)


def test_a_count_that_ran_out_of_memory_is_ruled_out_with_all_below() -> None:
    memory = MemoryModel()
    memory.observe(4, peak=1 * GB, device=80 * GB)
    memory.ran_out(2)
    assert [memory.fits(n) for n in (1, 2, 3, 4)] == [False, False, True, True]


@given(
    resident=st.integers(1, 10**12), activations=st.integers(0, 10**12),
    seen=st.sets(st.integers(1, 64), min_size=2, max_size=4), asked=st.integers(1, 64),
)  # fmt: skip
def test_the_line_is_recovered_and_survives_being_stored(
    resident: int, activations: int, seen: set[int], asked: int
) -> None:
    memory = MemoryModel()
    for devices in seen:
        memory.observe(devices, peak=round(resident + activations / devices), resident=resident)
    memory = MemoryModel.from_state(json.loads(json.dumps(memory.to_state())))
    peak = memory.peak_bytes(asked)
    assert peak == pytest.approx(resident + activations / asked, rel=1e-6, abs=64.0 * 64)


def test_why_a_count_is_not_bid_for_is_said() -> None:
    memory = MemoryModel()
    memory.observe(4, peak=30 * 2**30, resident=10 * 2**30, device=80 * 2**30)
    (words,) = memory.words((1, 2, 4))
    assert words == "1 device would run out of memory: 90.0 GiB for each, which has 80.0 GiB."
    memory.ran_out(2)
    assert memory.words((1, 2, 4)) == ("1 device: out of memory.", "2 devices: out of memory.")
