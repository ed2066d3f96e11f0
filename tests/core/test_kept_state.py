"""A state that a checkpoint brings back: what is sound is used, the rest is learned anew."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from selfsched.core.events import FitStarted, Progressed, StepsTimed, StepTiming, StretchTimed
from selfsched.core.job_model import JobModel
from selfsched.core.kept_state import PARTS, is_sound


def trained(model: JobModel, steps: int = 100) -> JobModel:
    """The model of a training of so many steps of 0.1 s."""
    model.segment_started(1, 0.0)
    model.observe(
        FitStarted(
            fit=1, package="lightning", global_batch=8, reference_devices=1, step=0, planned_steps=2 * steps,
            steps_per_epoch=2 * steps, max_epochs=1, gradient_bytes=4000, at=0.5,
        ),
        0.5,
    )  # fmt: skip
    for step in range(1, steps + 1):
        timing = StepTiming(step=step, seconds=0.1, cycle_seconds=0.1, local_samples=8, warm_up=step < 3)
        model.observe(StepsTimed(timings=(timing,)), 0.5 + 0.1 * step)
        model.observe(Progressed(fit=1, step=step, epoch=0, samples=8 * step), 0.5 + 0.1 * step)
    model.observe(StretchTimed(stretch="validation", seconds=0.5, step=steps), 11.0)
    return model


def new_model(state: Any = None) -> JobModel:
    return JobModel(hardware="cpu", min_devices=1, max_devices=2, state=state)


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(trained(new_model()).to_state()))
    return state


def series(state: dict[str, Any]) -> dict[str, Any]:
    one: dict[str, Any] = state["steps"]["series"]["1"]
    return one


Edit = Callable[[dict[str, Any]], object]
NONSENSE: dict[str, tuple[str, Edit]] = {
    "no ledger": ("ledger", lambda s: s.pop("ledger")),
    "a ledger that is none": ("ledger", lambda s: s.update(ledger=[1])),
    "a step that is text": ("ledger", lambda s: s["ledger"].update(step="x")),
    "a step without end": ("ledger", lambda s: s["ledger"].update(step=10**400)),
    "NaN elapsed": ("ledger", lambda s: s["ledger"].update(elapsed_seconds=math.nan)),
    "NaN cycles": ("steps", lambda s: series(s)["cycles"].update(mean=math.nan, m2=math.nan)),
    "NaN blocks": ("steps", lambda s: series(s).update(blocks=[[4, math.nan]] * 10)),
    "blocks of no steps": ("steps", lambda s: series(s).update(blocks=[[0, 0.0]] * 10)),
    "blocks of no length": ("steps", lambda s: series(s).update(block_steps=0)),
    "fewer steps than none": ("steps", lambda s: series(s).update(steady=-(10**9))),
    "raw cycles that are text": ("steps", lambda s: series(s).update(raw=["x"])),
    "steps on no device": ("steps", lambda s: s["steps"].update(series={"0": series(s)})),
    "NaN scores": ("record", lambda s: s["record"].update(calibration=[[math.nan]] * 40)),
    "a restart that is a number": ("restart", lambda s: s.update(restart=7)),
    "memory without peaks": ("memory", lambda s: s["memory"].pop("peaks")),
}


def test_a_sound_state_is_taken_back_whole(kept: dict[str, Any]) -> None:
    model = new_model(kept)
    assert model.unusable == ()
    assert model.to_state() == kept


@pytest.mark.parametrize("name", NONSENSE)
def test_a_part_that_is_no_knowledge_is_dropped_alone_and_the_model_lives(
    name: str, kept: dict[str, Any]
) -> None:
    part, edit = NONSENSE[name]
    state = copy.deepcopy(kept)
    edit(state)
    model = new_model(state)
    assert model.unusable == (PARTS[part],)
    fresh = new_model().to_state()
    for other in PARTS:
        assert model.to_state()[other] == (fresh if other == part else kept)[other]
    trained(model)
    assert model.forecast(1, 11.0) is not None
    assert json.loads(json.dumps(model.to_state(), allow_nan=False)) == model.to_state()


@pytest.mark.parametrize("state", [[1], "abc", 7, {}, {"version": 2}])
def test_a_state_that_is_none_is_dropped_whole(state: Any) -> None:
    model = new_model(state)
    assert model.unusable == ("all of it",)
    assert model.to_state() == new_model().to_state()


def test_numbers_without_end_and_what_is_no_json_are_not_sound() -> None:
    assert is_sound({"a": [1, 2.5, None, "x", True]})
    nested: list[Any] = []
    for _ in range(30):
        nested = [nested]
    for value in (math.nan, math.inf, 10**400, object(), {1: 2}, nested):
        assert not is_sound(value)
