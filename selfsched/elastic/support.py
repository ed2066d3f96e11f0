"""What can be trained elastically, as data: the code, the tests and docs/support.md read it.

Three verdicts. *exact*: the run is the one that an uninterrupted run on one device would
be, up to floating point. *degraded*: it runs, and one named warning says what is lost.
*refused*: stopped before training, exit code 2, in one line that says what to do instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["exact", "degraded", "refused"]


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    code: str
    """Its name in events and warnings."""
    case: str
    """What the user's training has or does."""
    verdict: Verdict
    rule: str
    """What happens, and what to do where that is not enough."""


CASES: tuple[Case, ...] = (
    Case("map_dataset", "map-style dataset, shuffled or not, any batch size, drop_last, workers", "exact",
         "the loader is rebuilt around an elastic batch sampler, for the exact type DataLoader; "
         "shuffle=False keeps the dataset's order at every world size"),
    Case("distributed_sampler", "torch's own DistributedSampler in the script", "exact",
         "understood as shuffle=True or False over the whole dataset"),
    Case("own_sampler", "own sampler of indices, also weighted or with replacement", "degraded",
         "its order is drawn whole once an epoch under a seed from (run, epoch), not from your own seed"),
    Case("own_sampler_unsteady", "own sampler whose two draws for one epoch differ", "refused",
         "the order of an epoch cannot be found again after a restart; draw from torch's global generator "
         "or from set_epoch(epoch) only"),
    Case("own_batch_sampler", "own batch_sampler, batches of varying size, batch_size=None", "refused",
         "its batches cannot be split over another number of devices; use a sampler of indices with "
         "batch_size, or fixed devices (the same minimum and maximum)"),
    Case("loader_subclass", "subclass of DataLoader, StatefulDataLoader, DALI, WebDataset", "refused",
         "it cannot be repositioned from outside; use torch's DataLoader, or fixed devices"),
    Case("several_loaders", "several training loaders (a list, a dict, a CombinedLoader)", "refused",
         "only one training loader can be repositioned; combine the datasets, or use fixed devices"),
    Case("reload_loaders", "reload_dataloaders_every_n_epochs", "refused",
         "a reloaded loader has no position to go back to; use fixed devices"),
    Case("iterable_dataset", "IterableDataset", "refused",
         "it has no position to go back to at another number of devices; use a map-style dataset, or fixed "
         "devices"),
    Case("counted_position", "one of the above on fixed devices", "degraded",
         "it resumes by count alone: samples of the cut epoch may repeat or be left out"),
    Case("global_batch", "a global batch that no number of devices within the limits divides", "refused",
         "nothing is trained: choose another batch size, or other limits"),
    Case("uneven_shares", "a segment on a number of devices that does not divide the global batch",
         "degraded",
         "the training stays the same, its shares weighted, but slower than it could be; other numbers of "
         "devices are asked for from now on"),
    Case("limits", "several validation loaders, limit_*_batches, fast_dev_run, val_check_interval as int or "
         "float, check_val_every_n_epoch, max_epochs, max_steps, max_time", "exact",
         "counted in global batches, so they mean the same at every world size and hold over restarts"),
    Case("accumulation", "accumulate_grad_batches, gradient clipping", "exact",
         "a cut waits until the gradients are applied"),
    Case("callbacks", "ModelCheckpoint, EarlyStopping, learning-rate schedules, Timer, EMA", "exact",
         "their states travel with the checkpoint; directories and versions stay those of the first segment. "
         "Of a callback of your own travels what its state_dict returns; its other attributes begin anew"),
    Case("epoch_means", "log(on_epoch=True), torchmetrics metrics as attributes of the module", "exact",
         "their states survive the cut; training means are taken over all ranks. The value of a single step "
         "(`*_step`) is rank 0's on several devices, as under Lightning's DDP without sync_dist=True"),
    Case("metric_unmergeable", "a torchmetrics state without a reduction over ranks", "degraded",
         "after a change of the world size it goes on from rank 0's part of the epoch"),
    Case("module_attributes", "plain attributes of the module that change in training (lists, counters)",
         "degraded",
         "carried over every cut; after a change of the world size each rank goes on from its own, so "
         "that a mean of them is of a part of the epoch's samples: prefer self.log or torchmetrics"),
    Case("validation_sums", 'log(reduce_fx="sum", sync_dist=True) in validation', "degraded",
         "validation is whole on every rank, so such a sum counts each sample once a rank; log a mean, or "
         'use validation="sharded"'),
    Case("precision", "16-bit and bf16 mixed precision, torch.compile, sync_batchnorm", "exact",
         "to the tolerance of the precision"),
    Case("strategies", 'strategy "auto", "ddp", "ddp_spawn", "ddp_fork", "ddp_notebook", a DDPStrategy',
         "exact",
         "all run as ddp in processes that the launcher starts"),
    Case("thawed_parameters", "parameters frozen at the start and trained later (BaseFinetuning)", "exact",
         "their gradients are averaged over the ranks as well, although DDP does not do that"),
    Case("unused_parameters", "parameters that get no gradient in some steps", "exact",
         'with strategy "auto" they are looked for on several devices; a script that names "ddp" gets just '
         'that: it may name "ddp_find_unused_parameters_true"'),
    Case("second_fit", "a second fit in the script, test or validate after it", "exact",
         "each fit has its number and its own checkpoints; a finished one is replayed from its last state"),
    Case("several_fits", "many fits in one script (k-fold, a search)", "degraded",
         "each restart replays the finished ones in their order; a replay that meets another training than "
         "the recorded one stops with a message"),
    Case("manual_optimisation", "automatic_optimization=False", "degraded",
         "a cut may fall between two optimiser steps of one batch cycle; learning goes on, not bit by bit"),
    Case("finders", "learning-rate or batch-size finder", "degraded",
         "it runs in the first segment only; a batch size found there does not change the global batch"),
    Case("overfit_batches", "overfit_batches", "degraded",
         "which samples are taken depends on the global batch of the elastic loader"),
    Case("time_based_validation", "val_check_interval as a duration", "degraded",
         "the clock of the interval starts anew with each segment"),
    Case("weight_averaging_swa", "StochasticWeightAveraging", "degraded",
         "Lightning keeps its averaging state only in part"),
    Case("batch_norm", "BatchNorm without sync_batchnorm", "degraded",
         "its statistics are those of the local batch, which changes with the number of devices; use "
         "Trainer(sync_batchnorm=True)"),
    Case("sharded_strategies", "FSDP, DeepSpeed, model parallel", "refused",
         "their checkpoints and shards are bound to a number of devices; use `selfsched run --fixed`"),
    Case("single_device_strategy", "a strategy object other than DDPStrategy", "refused",
         'it cannot run on several devices; use strategy="ddp" or "auto"'),
    Case("noise", "dropout, random augmentation", "exact",
         "statistically: noise is never replayed; bit by bit only where the world size stays"),
    Case("trainer_first", "a Trainer made before SelfScheduler", "refused",
         "put SelfScheduler() in Trainer(callbacks=[...]): it must be there when the Trainer is made"),
)  # fmt: skip

_BY_CODE = {case.code: case for case in CASES}


def case(code: str) -> Case:
    """The row of that name."""
    return _BY_CODE[code]


def message(code: str, found: str = "") -> str:
    """One line for the user: what was found, what that means.

    Args:
        code: Name of the row.
        found: What exactly was met, with its value; else the row's own words.
    """
    row = _BY_CODE[code]
    return f"{found or row.case}: {row.rule}"


def as_markdown() -> str:
    """docs/support.md, whole."""
    lines = [
        "# What is supported",
        "",
        "*exact*: the run is the one an uninterrupted run on one device would be, up to floating point.",
        "*degraded*: it runs, and one warning of that name says what is lost.",
        "*refused*: nothing is trained, exit code 2, one line says what to do instead.",
        "On fixed devices (the same minimum and maximum) what cannot be resized still runs.",
        "",
        "| case | | what happens | name |",
        "|---|---|---|---|",
    ]
    lines += [f"| {row.case} | {row.verdict} | {row.rule} | `{row.code}` |" for row in CASES]
    return "\n".join(lines) + "\n"
