"""What a fit in other processes hands back to its caller: weights, callbacks, counters, places.

Written by rank 0 when the fit came to its own end, or else found in its newest restart
checkpoint; read in the caller's process into the caller's own module, callbacks and loggers.
`Any` stands for Lightning's objects of either package.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from selfsched.elastic import lightning_internals as internals
from selfsched.elastic import loggers
from selfsched.elastic.checkpoints import Checkpoint, CheckpointStore
from selfsched.elastic.fit_record import FitRecord
from selfsched.elastic.manifest import fits_of
from selfsched.elastic.private_files import open_private, writing_private
from selfsched.errors import CheckpointUnusable, Refused, SelfschedError

_CHECKPOINT_ATTRIBUTES = (
    "best_model_path", "best_model_score", "current_score", "best_k_models", "kth_best_model_path",
    "kth_value", "last_model_path", "dirpath",
)


@dataclass(frozen=True)
class FitResult:
    """The state of a fit that is over, or of one where it was left."""

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
    """Write the state of a fit that has just ended; atomic.

    A disk that is full then does not lose what stands in the fit's last checkpoint, from which
    `result_at_end` takes it; and checkpoints that are needed no more make room.

    Raises:
        SelfschedError: there is room for neither.
    """
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
    unwritten = _unwritten(fields, path)
    if unwritten is None:
        return
    last = _newest_checkpoint(path.parent)
    if last is not None and last.finished:
        warnings.warn(f"selfsched: {unwritten}; it is taken from the last checkpoint", stacklevel=2)
        return
    if last is not None:
        CheckpointStore(last.path.parent).keep_newest()
        unwritten = _unwritten(fields, path)
    if unwritten is not None:
        kept = f"from the checkpoint at step {last.step}" if last is not None else "from its beginning"
        raise SelfschedError(
            f"the training came to its end at step {trainer.global_step}, and its weights could not be kept: "
            f"{unwritten}. Make room there and start it again: it goes on {kept}"
        )


def _unwritten(fields: Mapping[str, Any], path: Path) -> str | None:
    """Write them; in words, why that went wrong."""
    try:
        with writing_private(path) as file:
            torch.save(fields, file)
    except (Refused, RuntimeError) as error:  # torch's file writer has only RuntimeError
        return str(error).splitlines()[0]
    return None


def read_result(path: Path) -> FitResult:
    """Read it back in the caller's process; every tensor is on the CPU.

    The file is of the run's own private directory and holds callbacks' own objects.

    Raises:
        Refused: it is a link, another user's, or open to others.
    """
    with open_private(path) as file:
        return FitResult(**torch.load(file, map_location="cpu", weights_only=False))


def restore(result: FitResult, module: Any, trainer: Any) -> None:
    """Bring the caller's module, and a plain Trainer with the caller's callbacks, up to date.

    Raises:
        Refused: the module is not the one that was trained: the weights do not fit it.
    """
    try:
        module.load_state_dict(result.weights)
    except RuntimeError as error:
        raise Refused(f"these weights do not fit the module: {error}") from error
    trainer.strategy.connect(module)
    trainer.fit_loop.load_state_dict(dict(result.loops))
    states: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for key, state, attributes in result.callbacks:
        states.setdefault(key, []).append((state, attributes))
    for callback in trainer.callbacks:
        if states.get(callback.state_key):
            _restore_callback(callback, *states[callback.state_key].pop(0))


def result_so_far(run_directory: Path) -> FitResult | None:
    """The state in which an unfinished fit was left: its newest checkpoint; None: there is none.

    Raises:
        CheckpointUnusable: it is of another version.
    """
    checkpoint = _newest_checkpoint(run_directory)
    return None if checkpoint is None else _result_in(checkpoint)


def result_at_end(path: Path) -> FitResult:
    """The state of a fit that finished: its result, or what its last checkpoint has.

    Args:
        path: of the result.

    Raises:
        Refused, CheckpointUnusable: it cannot be read, or there is neither.
    """
    if path.exists():
        return read_result(path)
    last = _newest_checkpoint(path.parent)
    if last is None or not last.finished:
        raise CheckpointUnusable(
            f"the run {path.parent.name} finished and has left no result in {path.parent}: it may have been "
            "taken away, or its disk was full"
        )
    return _result_in(last)


def _result_in(checkpoint: Checkpoint) -> FitResult:
    state = torch.load(checkpoint.lightning_path, map_location="cpu", weights_only=False)
    logged = checkpoint.own_fields()["ranks"][0]["logged"]
    return FitResult(
        weights=state["state_dict"],
        callbacks=tuple(
            (key, kept, {name: kept[name] for name in ("dirpath",) if name in kept})
            for key, kept in state.get("callbacks", {}).items()
        ),
        loops=state["loops"]["fit_loop"],
        callback_metrics=logged["callback_metrics"],
        logged_metrics=logged["logged_metrics"],
        progress_bar_metrics=logged["progress_bar_metrics"],
        global_step=int(state["global_step"]),
        current_epoch=int(state["epoch"]),
    )


def show_end(run_directory: Path, trainer: Any, *, finished: bool) -> None:
    """Let the caller's Trainer say how the fit ended, and its loggers where the segments wrote."""
    fits = fits_of(run_directory)
    record = FitRecord.read(fits[-1]) if fits else None
    if record is not None:
        loggers.pin(trainer.loggers, record.logger_versions)
    internals.set_fit_status(trainer, "FINISHED" if finished else "INTERRUPTED")


def copy_checkpoint(run_directory: Path, target: Path, *, weights_only: bool) -> None:
    """Copy the run's newest checkpoint, a plain Lightning one, to where the user wants it.

    Raises:
        CheckpointUnusable: the run has left none.
    """
    checkpoint = _newest_checkpoint(run_directory)
    if checkpoint is None:
        raise CheckpointUnusable(f"the run in {run_directory} has left no checkpoint")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not weights_only:
        shutil.copyfile(checkpoint.lightning_path, target)
        return
    state = torch.load(checkpoint.lightning_path, map_location="cpu", weights_only=False)
    for training_only in ("optimizer_states", "lr_schedulers", "loops", "callbacks"):
        state.pop(training_only, None)
    torch.save(state, target)


def _newest_checkpoint(run_directory: Path) -> Checkpoint | None:
    found = (CheckpointStore(fit).newest() for fit in reversed(fits_of(run_directory)))
    return next((checkpoint for checkpoint in found if checkpoint is not None), None)


def _restore_callback(callback: Any, state: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
    # First these: a ModelCheckpoint forgets its best when its directory has changed.
    for name, value in attributes.items():
        setattr(callback, name, value)
    if state:
        callback.load_state_dict(dict(state))


def _attributes(callback: Any) -> dict[str, Any]:
    if not hasattr(callback, "best_model_path"):
        return {}
    names = [name for name in _CHECKPOINT_ATTRIBUTES if hasattr(callback, name)]
    return {name: _on_cpu(getattr(callback, name)) for name in names}


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return type(value)((key, _on_cpu(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_on_cpu(inner) for inner in value)
    return value
