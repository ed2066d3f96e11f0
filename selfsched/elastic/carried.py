"""What a rank carries over the cut besides Lightning's own checkpoint.

Running means of the epoch, torchmetrics states, the newest logged values, random states.
Each rank's part is kept. At the same world size each gets its own back, exactly. At another
one the parts are merged: rank 0 gets the whole, the others start empty, so that whatever
Lightning or torchmetrics later reduces over the ranks comes out as on one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from selfsched.elastic import attributes
from selfsched.elastic import lightning_internals as internals
from selfsched.elastic.noise import random_states

_EMPTY = {"mean": 0.0, "sum": 0.0, "max": float("-inf"), "min": float("inf")}


def carry(trainer: Any, attributes_at_start: dict[str, Any]) -> dict[str, Any]:
    """This rank's part, in plain types and tensors on the CPU.

    Args:
        trainer: The trainer, between two batches or after its fit.
        attributes_at_start: `attributes.fingerprints` of the module when training began.
    """
    return {
        "attributes": attributes.changed(trainer.lightning_module, attributes_at_start),
        "accumulate_grad_batches": int(trainer.accumulate_grad_batches),
        "random": random_states(),
        "logged": internals.read_logged(trainer),
        "metrics": carry_metrics(trainer),
        "should_stop": bool(trainer.should_stop),
        "keepers": internals.read_keepers(trainer),
    }


def put_back(trainer: Any, part: dict[str, Any]) -> None:
    """Restore all of a part but the random states."""
    internals.write_logged(trainer, part["logged"])
    put_metrics_back(trainer, part["metrics"])
    attributes.put_back(trainer.lightning_module, part["attributes"])
    # A schedule of it is only asked at an epoch's start.
    trainer.accumulate_grad_batches = part["accumulate_grad_batches"]
    trainer.should_stop = part["should_stop"]
    internals.write_keepers(trainer, part["keepers"])


def carry_metrics(trainer: Any) -> dict[str, Any]:
    """States of the module's torchmetrics metrics, by name."""
    metrics = internals.module_metrics(trainer.lightning_module)
    return {name: internals.read_metric(metric) for name, metric in metrics.items()}


def put_metrics_back(trainer: Any, states: dict[str, Any]) -> None:
    """Restore what `carry_metrics` returned."""
    metrics = internals.module_metrics(trainer.lightning_module)
    for name, saved in states.items():
        if name in metrics:
            internals.write_metric(metrics[name], saved)


def merged(parts: Sequence[dict[str, Any]], rank: int) -> tuple[dict[str, Any], list[str]]:
    """The part of `rank` after a change of the world size; its random states are rank 0's.

    Returns:
        The part, and the names of metrics that could only be taken from rank 0.
    """
    unmergeable: list[str] = []
    metrics = {}
    for name in parts[0]["metrics"]:
        versions = [part["metrics"][name] for part in parts if name in part["metrics"]]
        whole, spread = _merge_metric(versions)
        if whole is None:
            unmergeable.append(name)
            metrics[name] = versions[0]
        elif rank == 0 or spread:
            metrics[name] = whole
    logged = dict(parts[0]["logged"])
    logged["results"] = _merge_results([part["logged"]["results"] for part in parts], rank)
    # Plain attributes have no reduction: a rank goes on from its own, a new one from rank 0's.
    own = parts[rank] if rank < len(parts) else parts[0]
    return {**parts[0], "attributes": own["attributes"], "logged": logged, "metrics": metrics}, unmergeable


def _merge_results(parts: Sequence[dict[str, Any]], rank: int) -> dict[str, Any]:
    merged_results = {}
    for key in {key: None for part in parts for key in part}:
        versions = [part[key] for part in parts if key in part]
        # Merged here and, until a next `log` says otherwise, at the epoch's end by us.
        saved = {**versions[0], "sync_should": False}
        if saved["is_tensor"]:
            reduction = saved["reduce_fx"]
            states = [version["state"] for version in versions]
            saved["state"] = merge_accumulators(reduction, states)
            if rank > 0:
                saved["state"] = {
                    name: torch.full_like(value, _EMPTY[reduction]) for name, value in saved["state"].items()
                }
        merged_results[key] = saved
    return merged_results


def merge_accumulators(reduction: str, states: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """One accumulator over ranks: sums (of values, of sample counts) or extremes.

    Args:
        reduction: mean, sum, max or min, as given to `log(reduce_fx=...)`.
        states: State tensors by name, one dict a rank.
    """
    combined = {}
    for name in states[0]:
        stacked = torch.stack([state[name] for state in states])
        if reduction == "max":
            combined[name] = stacked.max(dim=0).values
        elif reduction == "min":
            combined[name] = stacked.min(dim=0).values
        else:
            combined[name] = stacked.sum(dim=0)
    return combined


def _merge_metric(versions: Sequence[dict[str, Any]]) -> tuple[dict[str, Any] | None, bool]:
    """(the whole or None, whether every rank must hold it)."""
    updates = [version["updates"] for version in versions]
    state, spread = {}, False
    for name, reduction in versions[0]["reductions"].items():
        values = [version["state"][name] for version in versions]
        if reduction is None:
            if max(updates) > 0:
                return None, True
            state[name] = values[0]
        elif reduction == "cat":
            state[name] = _concatenated(values)
        elif reduction == "mean":
            spread = True  # a later mean over ranks must find the same value everywhere
            shares = [max(count, 0) for count in updates] if any(updates) else [1] * len(updates)
            weighted = [value * share / sum(shares) for value, share in zip(values, shares, strict=True)]
            state[name] = torch.stack(weighted).sum(dim=0)
        else:
            state[name] = merge_accumulators(reduction, [{"v": value} for value in values])["v"]
    return {**versions[0], "state": state, "updates": sum(updates)}, spread


def _concatenated(values: Sequence[Any]) -> Any:
    if all(isinstance(value, list) for value in values):
        return [item for value in values for item in value]
    return torch.cat([torch.atleast_1d(value) for value in values if value.numel()] or [values[0]])
