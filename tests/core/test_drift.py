"""A change of level is told with its reason."""

from __future__ import annotations

import json

import pytest

from selfsched.core.drift import MAX_CHUNKS, PartHistory, drift_of, held_back_words
from selfsched.core.events import DeviceObserved, DevicesObserved
from selfsched.core.wander import Shift

USUAL = {
    "data": 0.01, "forward": 0.03, "backward": 0.05, "optimiser": 0.01, "communication": 0.0, "other": 0.0,
}  # fmt: skip
"""Communication lies within the backward pass."""


def history(after: dict[str, float], *, steps: int = 200) -> PartHistory:
    parts = PartHistory()
    for at in range(10, steps + 1, 10):
        parts.add(at, 10, USUAL if at <= steps / 2 else USUAL | after)
    return parts


def words(after: dict[str, float], devices: DevicesObserved | None = None, changes: int = 1) -> str:
    parts = history(after)
    seconds = sum(part for name, part in (USUAL | after).items() if name != "communication")
    shift = Shift(after_steps=100, before_seconds=0.1, after_seconds=seconds)
    return drift_of(parts, shift, steady=200, changes=changes).words(devices)


def observed(**facts: object) -> DevicesObserved:
    device = DeviceObserved.model_validate({"device": "GPU-1", "looks": 10} | facts)
    return DevicesObserved(devices=(device,), seconds=10.0)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ({"data": 0.08}, "the loader, or the disk"),
        ({"communication": 0.06, "backward": 0.11}, "the network is shared"),
        ({"forward": 0.05, "backward": 0.09}, "another program shares the device"),
        ({"other": 0.07}, "a callback, a logger"),
        ({"data": 0.04, "forward": 0.05, "other": 0.03}, "all its parts changed"),
    ],
)
def test_the_part_that_grew_is_the_reason(after: dict[str, float], reason: str) -> None:
    said = words(after)
    assert said.startswith("For the last 100 steps a step has taken")
    assert "longer" in said
    assert reason in said


def test_a_device_that_is_held_back_is_said_to_be() -> None:
    said = words({"forward": 0.09, "backward": 0.15}, observed(held_back={"heat": 0.9}, clock_ratio=0.71))
    assert "held back to 71% of its clock because it is too hot" in said
    assert held_back_words(observed(held_back={})) == ""
    assert held_back_words(observed(held_back={"power": 0.05})) == ""
    assert "its driver says so" in held_back_words(observed(held_back={"something": 1.0}))


def test_a_step_that_has_become_faster_is_told_too() -> None:
    assert "what slowed that down is gone" in words({"backward": 0.02})


def test_many_changes_are_a_neighbour() -> None:
    assert "others come and go" in words({"data": 0.08}, changes=4)


def test_without_parts_there_is_a_change_and_no_reason() -> None:
    shift = Shift(after_steps=100, before_seconds=0.1, after_seconds=0.2)
    drift = drift_of(PartHistory(), shift, steady=200, changes=1)
    assert drift.part is None
    assert "100% longer" in drift.words()


def test_the_history_is_bounded_and_survives_a_restart() -> None:
    parts = history({"data": 0.08}, steps=40_000)
    assert len(parts.chunks) <= MAX_CHUNKS
    assert parts.means(0, 20_000)["data"] == pytest.approx(0.01, rel=0.1)
    assert parts.means(20_000, 40_000)["data"] == pytest.approx(0.08, rel=0.1)
    assert PartHistory.from_state(json.loads(json.dumps(parts.to_state()))) == parts
    assert PartHistory().means(0, 10) == {}
