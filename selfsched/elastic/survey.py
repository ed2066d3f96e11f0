"""What in a training is degraded: found before its first step, said once each."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import torch

from selfsched.core.lightning_classes import lightning_names
from selfsched.elastic.process import RankProcess

_BATCH_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
_FINDERS = ("LearningRateFinder", "BatchSizeFinder")


@dataclass(frozen=True)
class Asked:
    """What a script asked of its Trainer, before it was made to fit the segment."""

    reference_devices: int = 1
    """Devices its batch size refers to."""
    sync_batchnorm: bool = False
    distributed_sampler: bool = True
    """Whether Lightning may split loaders over the ranks; ours are split already."""
    timed_validation: bool = False
    """Whether `val_check_interval` is a duration."""

    @classmethod
    def of(cls, named: dict[str, Any], reference_devices: int) -> Asked:
        """From the named arguments of `Trainer(...)`."""
        interval = named.get("val_check_interval")
        timed = isinstance(interval, str | dict | datetime.timedelta)
        return cls(
            reference_devices=reference_devices,
            sync_batchnorm=bool(named.get("sync_batchnorm")),
            distributed_sampler=bool(named.get("use_distributed_sampler", True)),
            timed_validation=timed,
        )


def has_own_bar(callbacks: Any) -> bool:
    """Whether a progress bar of the script's own is among what it gave as `callbacks`."""
    given = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    return any("ProgressBar" in base.__name__ for callback in given for base in type(callback).__mro__)


def survey(trainer: Any, asked: Asked, ordinal: int, process: RankProcess) -> None:
    """Warn of everything in this fit that is degraded."""
    module = trainer.lightning_module
    if not module.automatic_optimization:
        process.warn("manual_optimisation")
    if asked.timed_validation:
        process.warn("time_based_validation")
    if trainer.overfit_batches:
        process.warn("overfit_batches")
    if ordinal > 2:
        process.warn("several_fits")
    names = {name for callback in trainer.callbacks for name in lightning_names(callback)}
    if names.intersection(_FINDERS):
        process.warn("finders")
    if "StochasticWeightAveraging" in names:
        process.warn("weight_averaging_swa")
    unsynced = any(isinstance(child, _BATCH_NORMS) for child in module.modules())
    if unsynced and not asked.sync_batchnorm and process.spec.max_devices > 1:
        process.warn("batch_norm")


def without_finders(callbacks: list[Any]) -> list[Any]:
    """Callbacks of a fit that goes on: what a finder found is in the checkpoint."""
    return [
        callback
        for callback in callbacks
        if not lightning_names(callback).intersection(_FINDERS)
    ]
