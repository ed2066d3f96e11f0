"""What a fit in other processes hands back to its caller: weights, callbacks, counters.

Written by rank 0 when the fit came to its own end, read in the caller's process into the
caller's own module and callbacks. `Any` stands for Lightning's objects of either package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_CHECKPOINT_ATTRIBUTES = (
    "best_model_path", "best_model_score", "current_score", "best_k_models", "kth_best_model_path",
    "kth_value", "last_model_path", "dirpath",
)


@dataclass(frozen=True)
class FitResult:
    """The state of a finished fit."""

    weights: Mapping[str, Any]
    """The module's `state_dict`, on the CPU."""
    callbacks: tuple[tuple[str, Mapping[str, Any], Mapping[str, Any]], ...]
    """For each callback: `state_key`, its state, and attributes of a ModelCheckpoint."""
    loops: Mapping[str, Any]
    """State of the fit loop: the counters of steps and epochs."""
    callback_metrics: Mapping[str, Any]
    logged_metrics: Mapping[str, Any]
    progress_bar_metrics: Mapping[str, Any]
    global_step: int
    current_epoch: int


def write_result(trainer: Any, module: Any, path: Path) -> None:
    """Write the state of a fit that has just ended; atomic."""
    fields = {
        "weights": _on_cpu(module.state_dict()),
        "callbacks": tuple(
            (callback.state_key, _on_cpu(callback.state_dict()), _attributes(callback))
            for callback in trainer.callbacks
        ),
        "loops": trainer.fit_loop.state_dict(),
        "callback_metrics": _on_cpu(dict(trainer.callback_metrics)),
        "logged_metrics": _on_cpu(dict(trainer.logged_metrics)),
        "progress_bar_metrics": _on_cpu(dict(trainer.progress_bar_metrics)),
        "global_step": trainer.global_step,
        "current_epoch": trainer.current_epoch,
    }
    temporary = path.with_name(f".{path.name}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        torch.save(fields, file)
    temporary.replace(path)


def read_result(path: Path) -> FitResult:
    """Read it back in the caller's process; every tensor is on the CPU.

    The file is of the run's own private directory and holds callbacks' own objects.
    """
    return FitResult(**torch.load(path, map_location="cpu", weights_only=False))


def restore(result: FitResult, module: Any, trainer: Any) -> None:
    """Bring the caller's module, and a plain Trainer with the caller's callbacks, up to date."""
    module.load_state_dict(result.weights)
    trainer.strategy.connect(module)
    trainer.fit_loop.load_state_dict(dict(result.loops))
    connector = trainer._logger_connector
    connector._callback_metrics.update(result.callback_metrics)
    connector._logged_metrics.update(result.logged_metrics)
    connector._progress_bar_metrics.update(result.progress_bar_metrics)
    states: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for key, state, attributes in result.callbacks:
        states.setdefault(key, []).append((state, attributes))
    for callback in trainer.callbacks:
        if not states.get(callback.state_key):
            continue
        state, attributes = states[callback.state_key].pop(0)
        # First these: a ModelCheckpoint forgets its best when its directory has changed.
        for name, value in attributes.items():
            setattr(callback, name, value)
        if state:
            callback.load_state_dict(dict(state))


def _attributes(callback: Any) -> dict[str, Any]:
    if not hasattr(callback, "best_model_path"):
        return {}
    return {name: _on_cpu(getattr(callback, name)) for name in _CHECKPOINT_ATTRIBUTES if hasattr(callback, name)}


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return type(value)((key, _on_cpu(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_on_cpu(inner) for inner in value)
    return value
