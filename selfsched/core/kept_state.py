"""Whether what an earlier life of a job wrote down can be used.

A checkpoint may come from another version, be edited, cut off or damaged. Its state is taken
over part by part, and a part only if it is sound: every number finite and of a size that
occurs, and a model that has it, and nothing else of the state, lives through a short made-up
training without an error. What is not sound is learned anew; nothing of it is written again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from selfsched.core.events import (
    CheckpointSaved,
    FitFinished,
    FitStarted,
    Progressed,
    StepsTimed,
    StepTiming,
    StretchTimed,
)

PARTS = {
    "steps": "times of steps",
    "ledger": "progress",
    "restart": "costs of restarts",
    "memory": "memory",
    "record": "scores of forecasts",
}
"""Of a model's state, with their names for a reader."""
EVERYTHING = "all of it"
LARGEST_COUNT = 2**63
LARGEST = 1e100
"""No count, and no number, is larger: squares of squares of the longest times are 1e32."""
DEEPEST = 12
REHEARSED_STEPS = 40
_FAULTS = (TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError, AssertionError)
"""What code raises on values it was not written for."""


def is_sound(value: Any, depth: int = 0) -> bool:
    """Whether this is plain JSON with finite numbers."""
    if value is None or isinstance(value, bool | str):
        return True
    if isinstance(value, int):
        return abs(value) <= LARGEST_COUNT
    if isinstance(value, float):
        return abs(value) <= LARGEST  # NaN is not
    if depth >= DEEPEST:
        return False
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_sound(item, depth + 1) for key, item in value.items())
    return isinstance(value, list | tuple) and all(is_sound(item, depth + 1) for item in value)


def survives(live: Callable[[], object]) -> bool:
    """Whether this ends without an error that bad values bring about."""
    try:
        with np.errstate(divide="raise", invalid="raise"):
            live()
    except _FAULTS:
        return False
    return True


def rehearse(model: Any, devices: int) -> None:
    """Let a model, of which nobody else has need, live through a short training.

    Args:
        model: a `JobModel`.
        devices: to train on.

    Raises:
        TypeError, ValueError, KeyError, ...: what it has is no knowledge.
    """
    fit, step = max(1, model.fit), model.progress(0.0).step
    model.segment_started(devices, 0.0)
    model.observe(_fit(fit, step), 0.5)
    for at in range(1, REHEARSED_STEPS + 1, 5):
        model.observe(StepsTimed(timings=tuple(_step(step + at + i) for i in range(5))), 0.5 + 0.1 * at)
        model.observe(Progressed(fit=fit, step=step + at + 4, epoch=0, samples=8 * at), 0.5 + 0.1 * at)
    for stretch in ("validation", "checkpoint_save", "checkpoint_load", "epoch_end"):
        model.observe(StretchTimed(stretch=stretch, seconds=0.1, step=step, size_bytes=100), 6.0)
    model.observe(CheckpointSaved(fit=fit, step=step, path="/", size_bytes=100, seconds=0.1), 6.0)  # type: ignore[arg-type]
    for count in {devices, *model.allowed_devices}:
        model.forecast(count, 7.0)
    model.standing_bid(devices, 7.0)
    model.notice_seconds()
    model.statistics()
    model.explanation(7.0).as_json()
    end = step + REHEARSED_STEPS
    model.observe(FitFinished(fit=fit, step=end, epoch=1, metrics={}), 8.0)
    model.segment_ended(8.0)
    model.explanation(8.0)
    json.dumps(model.to_state(), allow_nan=False)


def _fit(fit: int, step: int) -> FitStarted:
    return FitStarted(
        fit=fit, package="rehearsal", global_batch=8, reference_devices=1, step=step,
        planned_steps=step + 2 * REHEARSED_STEPS, steps_per_epoch=2 * REHEARSED_STEPS, max_epochs=1,
        gradient_bytes=4000, at=0.5,
    )  # fmt: skip


def _step(step: int) -> StepTiming:
    return StepTiming(
        step=step, seconds=0.09, data_seconds=0.01, cycle_seconds=0.1, forward_seconds=0.03,
        backward_seconds=0.04, optimiser_seconds=0.02, local_samples=8,
    )  # fmt: skip
