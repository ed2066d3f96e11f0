"""What a Lightning Trainer says of its fit before the first step: limits, lengths, sizes.

All from public attributes, once a fit, on the host: nothing is loaded, nothing exchanged.
Lengths that are not known (an iterable dataset) are None, not guessed.
"""

from __future__ import annotations

import math
from typing import Any

from selfsched.core.events import FitStarted
from selfsched.elastic.ends import end_facts
from selfsched.elastic.fit_record import (
    planned_steps,
    step_limit,
    steps_ahead,
    time_limit,
    validations_to_come,
)
from selfsched.elastic.lightning_internals import position_at_start


def fit_started(trainer: Any, module: Any, *, fit: int, at: float, package: str) -> FitStarted:
    """The facts of a fit, as of `on_train_start`.

    Args:
        trainer: of either Lightning package.
        module: the LightningModule.
        fit: ordinal of this fit within the program, from 1.
        at: CLOCK_BOOTTIME seconds now.
        package: which Lightning this is.
    """
    batches = _finite(getattr(trainer, "num_training_batches", None))
    steps_per_epoch = _steps_per_epoch(trainer, module, batches)
    max_epochs = _limit(trainer.max_epochs)
    place = position_at_start(trainer)
    ahead = steps_ahead(trainer, place, batches, steps_per_epoch)
    planned = planned_steps(trainer.max_steps, trainer.max_epochs, steps_per_epoch, ahead=ahead)
    batch = _loader_batch(trainer)
    world = int(trainer.world_size)
    global_batch = batch * world * int(trainer.accumulate_grad_batches) if batch else None
    epoch, done = place or (None, None)
    return FitStarted(
        fit=fit,
        package=package,
        global_batch=global_batch,
        reference_devices=world,
        step=int(trainer.global_step),
        planned_steps=planned,
        max_steps=step_limit(trainer),
        epoch=epoch,
        batch=done,
        batches_per_epoch=batches,
        steps_per_epoch=steps_per_epoch,
        max_epochs=max_epochs,
        validations=validations_to_come(trainer, batches, steps_per_epoch, planned, ahead=ahead),
        allowed_devices=_dividing_counts(global_batch, world),
        resume="never",
        gradient_bytes=gradient_bytes(module),
        at=at,
        **time_limit(trainer),
        **end_facts(trainer),
    )


def gradient_bytes(module: Any) -> int:
    """Bytes of gradients that the ranks exchange in a step."""
    return sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)


def samples_in(batch: Any) -> int:
    """Length of the first thing in a batch that has one; 0 when there is none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if isinstance(batch, dict):
        return next((n for n in map(samples_in, batch.values()) if n), 0)
    if isinstance(batch, list | tuple):
        return next((n for n in map(samples_in, batch) if n), 0)
    return 0


def is_last_word_on_steps(module: Any) -> bool:
    """Whether one batch group is one global step (not so in manual optimisation)."""
    return bool(getattr(module, "automatic_optimization", True))


def _finite(value: Any) -> int | None:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return int(value) if int(value) > 0 else None


def _limit(value: Any) -> int | None:
    return None if value is None or value < 0 else int(value)


def _steps_per_epoch(trainer: Any, module: Any, batches: int | None) -> int | None:
    if batches is None or not is_last_word_on_steps(module):
        return None
    return max(1, math.ceil(batches / int(trainer.accumulate_grad_batches)))


def _loader_batch(trainer: Any) -> int | None:
    loader = getattr(trainer, "train_dataloader", None)
    size = getattr(loader, "batch_size", None)
    return size if isinstance(size, int) and size > 0 else None


def _dividing_counts(global_batch: int | None, world: int) -> tuple[int, ...]:
    if not global_batch:
        return (world,)
    return tuple(n for n in range(1, 2 * world + 1) if global_batch % n == 0 or n == world)
