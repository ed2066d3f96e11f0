"""The bench of heartbeats runs, and what it must never see it does not see."""

from __future__ import annotations

import pytest

from bench.broker import measure


@pytest.mark.slow
def test_no_lease_is_lost_under_load() -> None:
    run = measure("sqlite", jobs=6, devices=2, seconds=0.5)
    assert (run.errors, run.false_expiries) == (0, 0)
    assert run.heartbeats_per_s > 0
    assert run.p50_ms <= run.p99_ms
