"""What stays the same for a fit over all its segments, and what is told when it begins."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from selfsched.core.events import FitStarted
from selfsched.core.lightning_classes import is_lightnings
from selfsched.core.lines import to_exact_json
from selfsched.elastic import lightning_internals as internals
from selfsched.elastic import loggers
from selfsched.elastic.data import FitData
from selfsched.elastic.ends import end_facts
from selfsched.elastic.private_files import make_private
from selfsched.elastic.segment import SegmentSpec, boottime

_NAME = "fit.json"


class FitRecord(BaseModel):
    """Directories and versions of the fit's first segment; `fits/<n>/fit.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: int = 1
    model: str
    """Class of the module: a replay that meets another one is of another script."""
    dirpaths: tuple[str | None, ...] = ()
    """Of each checkpoint callback."""
    logger_versions: tuple[int | str | None, ...] = ()

    @classmethod
    def of(cls, trainer: Any) -> FitRecord:
        """As the first segment finds it, once directories are known."""
        return cls(
            model=type(trainer.lightning_module).__qualname__,
            dirpaths=tuple(getattr(c, "dirpath", None) for c in trainer.checkpoint_callbacks),
            logger_versions=tuple(loggers.versions(trainer.loggers)),
        )

    @classmethod
    def read(cls, directory: Path) -> FitRecord | None:
        """The record of an earlier segment, if it got that far."""
        path = directory / _NAME
        return cls.model_validate(json.loads(path.read_text())) if path.exists() else None

    def write(self, directory: Path) -> None:
        """Keep it, whole or not at all."""
        make_private(directory)
        temporary = directory / (_NAME + ".new")
        temporary.write_text(to_exact_json(self))
        os.replace(temporary, directory / _NAME)

    def pin(self, trainer: Any) -> None:
        """Let this segment's callbacks and loggers go on in the first one's places."""
        for callback, dirpath in zip(trainer.checkpoint_callbacks, self.dirpaths, strict=False):
            if dirpath is not None:
                callback.dirpath = dirpath
        loggers.pin(trainer.loggers, self.logger_versions)


def fit_started(trainer: Any, data: FitData, ordinal: int, spec: SegmentSpec) -> FitStarted:
    """Where the fit stands and how far it has to go."""
    batches = _finite(trainer.num_training_batches)
    steps = math.ceil(batches / trainer.accumulate_grad_batches) if batches else None
    place = internals.position_within(trainer)
    ahead = steps_ahead(trainer, place, batches, steps)
    planned = planned_steps(trainer.max_steps, trainer.max_epochs, steps, ahead=ahead)
    epoch, batch = place or (None, None)
    return FitStarted(
        fit=ordinal,
        package=internals.package_of(trainer),
        global_batch=data.global_batch and data.global_batch * int(trainer.accumulate_grad_batches),
        reference_devices=data.reference_devices,
        step=trainer.global_step,
        planned_steps=planned,
        max_steps=step_limit(trainer),
        epoch=epoch,
        batch=batch,
        batches_per_epoch=batches,
        steps_per_epoch=steps,
        max_epochs=trainer.max_epochs if (trainer.max_epochs or -1) > 0 else None,
        validations=validations_to_come(trainer, batches, steps, planned, ahead=ahead),
        allowed_devices=data.allowed_devices,
        resume="elastic" if data.elastic else "same_size",
        gradient_bytes=sum(
            p.numel() * p.element_size() for p in trainer.lightning_module.parameters() if p.requires_grad
        ),
        at=boottime(),
        **time_limit(trainer),
        **end_facts(trainer),
    )


def step_limit(trainer: Any) -> int | None:
    """The limit that counts steps; None: there is none."""
    limit = trainer.max_steps
    return int(limit) if limit is not None and limit >= 0 else None


def steps_ahead(
    trainer: Any, place: tuple[int, int] | None, batches_per_epoch: int | None, steps_per_epoch: int | None
) -> int:
    """Steps by which the place in the epochs is ahead of the global step; 0 where it is not known.

    Earlier epochs may have been made with another batch, or of another loader.

    Args:
        trainer: at the start of its fit.
        place: epochs done, and batches of the present one.
        batches_per_epoch: from here on.
        steps_per_epoch: from here on.
    """
    if place is None or not batches_per_epoch or not steps_per_epoch:
        return 0
    epoch, batch = place
    in_epoch = math.floor(steps_per_epoch * min(batch, batches_per_epoch) / batches_per_epoch)
    return epoch * steps_per_epoch + in_epoch - int(trainer.global_step)


def planned_steps(
    max_steps: int, max_epochs: int | None, steps_per_epoch: int | None, *, ahead: int = 0
) -> int | None:
    """Optimiser steps until the first limit; None where no limit is known (T15).

    Args:
        max_steps: limit that counts steps; negative: none.
        max_epochs: limit that counts epochs; None or negative: none.
        steps_per_epoch: of the epochs to come; None: unknown.
        ahead: `steps_ahead`.
    """
    limits = []
    if max_steps is not None and max_steps >= 0:
        limits.append(max_steps)
    if max_epochs is not None and max_epochs >= 0 and steps_per_epoch is not None:
        limits.append(max(0, max_epochs * steps_per_epoch - ahead))
    return min(limits) if limits else None


def validations_to_come(
    trainer: Any,
    batches_per_epoch: int | None,
    steps_per_epoch: int | None,
    planned: int | None,
    *,
    ahead: int = 0,
) -> int | None:
    """Validations between here and the planned end; None where the end is not known.

    Args:
        trainer: at the start of its fit.
        batches_per_epoch: None: unknown.
        steps_per_epoch: None: unknown.
        planned: global step of the end; None: unknown.
        ahead: `steps_ahead`.
    """
    if not trainer.enable_validation:
        return 0
    every = _finite(trainer.val_check_batch)
    if planned is None or not batches_per_epoch or not steps_per_epoch or not every:
        return None
    epochs_between: int | None = trainer.check_val_every_n_epoch

    def until(step: int) -> int:
        epochs, rest = divmod(step, steps_per_epoch)
        in_rest = min(rest * int(trainer.accumulate_grad_batches), batches_per_epoch)
        if epochs_between is None:
            return (epochs * batches_per_epoch + in_rest) // every
        whole = (epochs // epochs_between) * (batches_per_epoch // every)
        validating = (epochs + 1) % epochs_between == 0
        return whole + (in_rest // every if validating else 0)

    return until(planned + ahead) - until(min(trainer.global_step, planned) + ahead)


def _finite(value: Any) -> int | None:
    if value is None or (isinstance(value, float) and math.isinf(value)):
        return None
    return int(value)


def time_limit(trainer: Any) -> dict[str, Any]:
    """Fields of `FitStarted` on the limit of time: that of the Timer which has least left."""
    timers = [callback for callback in trainer.callbacks if is_lightnings(callback, "Timer")]
    limited = [timer for timer in timers if timer.time_remaining() is not None]
    if not limited:
        return {"elapsed_seconds": float(timers[0].time_elapsed())} if timers else {}
    first = min(limited, key=lambda timer: float(timer.time_remaining()))
    left, spent = float(first.time_remaining()), float(first.time_elapsed())
    return {
        "max_seconds": left + spent,
        "elapsed_seconds": spent,
        "max_seconds_holds": internals.timer_holds(first),
    }
