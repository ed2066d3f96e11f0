"""What a move costs: by its bytes, learned from each restart, known better after many."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.core.restart_cost import RestartCost

GIGABYTE = 10**9


def cost(restart: RestartCost, gradient_bytes: int = 0, *, start: bool = False) -> float:
    return restart.seconds(from_devices=0 if start else 1, to_devices=2, gradient_bytes=gradient_bytes)


def test_staying_costs_nothing_and_a_start_saves_and_loads_nothing() -> None:
    restart = RestartCost()
    assert restart.seconds(from_devices=2, to_devices=2, gradient_bytes=GIGABYTE) == 0.0
    parts = restart.parts(GIGABYTE)
    assert cost(restart, GIGABYTE) == pytest.approx(sum(parts.values()))
    restart.started(parts["start"])
    assert cost(restart, GIGABYTE, start=True) == pytest.approx(parts["start"] + parts["warm_up"])


def test_the_very_first_start_says_nothing_of_later_ones() -> None:
    restart = RestartCost()
    unseen = cost(restart)
    restart.started(60.0, first=True)
    assert cost(restart) == unseen
    assert cost(restart, start=True) > 40.0


def test_before_the_first_restart_a_bigger_model_is_expected_to_cost_more() -> None:
    assert cost(RestartCost(), GIGABYTE) > cost(RestartCost(), 10**6) + 20


def test_a_seen_restart_replaces_the_expected_one() -> None:
    restart = RestartCost()
    for _ in range(12):
        restart.started(0.2)
        restart.saved(0.1, 0)
        restart.loaded(0.05, 0)
        restart.warmed_up(0.0)
    assert cost(restart) == pytest.approx(0.35, abs=0.15)
    assert RestartCost.from_state(json.loads(json.dumps(restart.to_state()))) == restart


def test_ten_times_the_bytes_take_ten_times_what_bytes_took_here() -> None:
    restart = RestartCost()
    for _ in range(20):  # a disk four times as slow as expected
        restart.saved(20.0, GIGABYTE)
        restart.loaded(20.0, GIGABYTE)
    before = restart.parts(0)
    restart.saved(200.0, 10 * GIGABYTE)
    after = restart.parts(0)
    for part in ("save", "load"):
        assert before[part] == pytest.approx(20.0, rel=0.1)
        assert after[part] == pytest.approx(200.0, rel=0.15)
    assert after["start"] == before["start"]


def test_what_was_seen_often_is_known_better() -> None:
    restart = RestartCost()
    unseen = restart.sigma_log
    restart.started(2.0)
    once = restart.sigma_log
    for _ in range(50):
        restart.started(2.0)
    assert unseen > once > restart.sigma_log > 0.1


def test_the_longest_save_is_no_mean() -> None:
    restart = RestartCost()
    for seconds in [0.1] * 18 + [3.0] * 2:
        restart.saved(seconds, 1000)
    assert restart.longest_save_seconds(0) == pytest.approx(3.0, rel=0.1)


@given(st.lists(st.tuples(st.floats(), st.integers(0, 10**13)), max_size=20))
def test_whatever_comes_a_restart_costs_something_finite(seen: list[tuple[float, int]]) -> None:
    restart = RestartCost()
    for seconds, size in seen:
        restart.saved(seconds, size)
        restart.loaded(seconds, size)
        restart.started(seconds)
        restart.warmed_up(seconds)
    assert math.isfinite(cost(restart, 10**9))
    assert cost(restart, 10**9) >= 0.0
    assert 0.0 < restart.sigma_log < 1.0
