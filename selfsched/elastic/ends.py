"""What else can end a fit, or is in its time: rules of early stopping, minima, validations, checkpoints.

From a Lightning Trainer, as fields of `FitStarted`; and the values that a rule looks at, at
the moment it does. All from public attributes but one, which has a fallback.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from selfsched.core.events import Checked, StoppingRule
from selfsched.core.lightning_classes import is_lightnings

_AT_EPOCH_END = "_check_on_train_epoch_end"
"""Of `EarlyStopping` (Lightning 1.3-2.6): whether it looks at the end of a training epoch."""

ENDLESS_PATIENCE = 10**9
"""Stands in for a patience without end."""


def end_facts(trainer: Any) -> dict[str, Any]:
    """Fields of `FitStarted` on what may end a fit before its limit, and on what is no step."""
    return {
        "early_stopping": bool(_early_stoppings(trainer)),
        "stopping": tuple(rule for rule in map(_rule, _early_stoppings(trainer)) if rule is not None),
        "min_steps": _count(getattr(trainer, "min_steps", None)),
        "min_epochs": _count(getattr(trainer, "min_epochs", None)),
        "validation_batches": _validation_batches(trainer),
        "checkpoints_per_epoch": _checkpoints_per_epoch(trainer),
    }


def checked(trainer: Any, moment: Literal["validation", "epoch"]) -> Checked | None:
    """What rules of early stopping look at now; None when none does, or nothing is there to see.

    A value on a GPU is waited for, as the rule itself does a moment sooner or later.

    Args:
        trainer: of either Lightning package.
        moment: the end of a validation, or of an epoch of training.
    """
    names = {
        callback.monitor for callback in _early_stoppings(trainer) if _looks_at(callback, trainer) == moment
    }
    metrics = trainer.callback_metrics if names else {}
    values = {name: float(metrics[name]) for name in names if name in metrics and _is_scalar(metrics[name])}
    return Checked(step=int(trainer.global_step), values=values) if values else None


def _early_stoppings(trainer: Any) -> list[Any]:
    return [callback for callback in trainer.callbacks if is_lightnings(callback, "EarlyStopping")]


def _looks_at(callback: Any, trainer: Any) -> Literal["validation", "epoch"]:
    at_epoch_end = getattr(callback, _AT_EPOCH_END, None)
    if at_epoch_end is None:
        at_epoch_end = trainer.val_check_interval == 1.0 and trainer.check_val_every_n_epoch == 1
    return "epoch" if at_epoch_end else "validation"


def _rule(callback: Any) -> StoppingRule | None:
    """A rule as it stands; None for one that is not as Lightning's are."""
    try:
        best = float(callback.best_score)
        return StoppingRule(
            monitor=callback.monitor,
            mode=callback.mode,
            patience=int(min(callback.patience, ENDLESS_PATIENCE)),
            min_delta=abs(float(callback.min_delta)),
            target=_number(callback.stopping_threshold),
            divergence=_number(callback.divergence_threshold),
            finite=bool(callback.check_finite),
            best=best if math.isfinite(best) else None,
            waited=int(callback.wait_count),
        )
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float) or getattr(value, "numel", lambda: 0)() == 1


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and value > 0 else None


def _validation_batches(trainer: Any) -> int | None:
    """Batches of one validation; None where a loader has no length, or was not looked at yet."""
    if not trainer.enable_validation:
        return 0
    counts = getattr(trainer, "num_val_batches", [])
    counts = counts if isinstance(counts, list) else [counts]
    if not counts or any(not math.isfinite(count) for count in counts):
        return None
    return int(sum(counts)) or None


def _checkpoints_per_epoch(trainer: Any) -> float | None:
    """How often the user's own checkpoint callbacks may write; None where it does not go by epochs."""
    total = 0.0
    for callback in getattr(trainer, "checkpoint_callbacks", ()):
        if getattr(callback, "save_top_k", None) == 0 and not getattr(callback, "save_last", False):
            continue
        every = getattr(callback, "every_n_epochs", 0)
        if not isinstance(every, int) or every < 1:
            return None
        total += 1.0 / every
    return total
