"""The callback that Lightning loads into every rank of a watched run.

Each rank appends one line for each batch to a file of its own, once the batch was trained
(`on_train_batch_end`): what a loader fetched but nobody trained is not in the record.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selfsched.witness.installation import DIRECTORY_VARIABLE, STEPS_VARIABLE


def callbacks() -> list[Any]:
    """What the entry point returns to Lightning: one witness, or none where nobody asked."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        return []
    limit = os.environ.get(STEPS_VARIABLE)
    return [_witness_class()(Path(directory), int(limit) if limit else None)]


def _witness_class() -> type[Any]:
    """The witness as a Callback of the Lightning package in use."""
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback

    class Witness(_Witness, Callback):  # type: ignore[misc]  # Lightning is not typed here
        pass

    return Witness


class _Witness:
    """Hooks of the witness. `fit` counts the fits of this process, from 1."""

    def __init__(self, directory: Path, step_limit: int | None) -> None:
        super().__init__()
        self._directory = directory
        self._step_limit = step_limit
        self._file: Any = None
        self._started_at = 0.0

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        if stage == "fit" and self._step_limit is not None:
            loop = trainer.fit_loop.epoch_loop
            loop.max_steps = self._step_limit if loop.max_steps < 0 else min(self._step_limit, loop.max_steps)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        name = f"batches-{time.time_ns()}-{trainer.global_rank}-{os.getpid()}.jsonl"
        self._file = open(self._directory / name, "a")  # noqa: SIM115  # closed in on_train_end or by exit
        if trainer.global_rank == 0:
            self._write_dataset(trainer.train_dataloader)

    def _write_dataset(self, loader: Any) -> None:
        """Once: the digest of each sample of the train set, which is what has to be seen."""
        path = self._directory / "dataset.json"
        dataset = getattr(loader, "dataset", None)
        if path.exists() or dataset is None or not hasattr(dataset, "__len__"):
            return
        digests = [_digest(_leaves(dataset[index])) for index in range(len(dataset))]
        path.write_text(json.dumps(digests))

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self._started_at = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        seconds = time.perf_counter() - self._started_at
        line = {
            "epoch": trainer.current_epoch,
            "batch": batch_idx,
            "step": trainer.global_step,
            "rank": trainer.global_rank,
            "world": trainer.world_size,
            "seconds": round(seconds, 6),
            "at": round(time.time(), 4),
            "loss": _loss(outputs),
            "samples": [_digest(sample) for sample in _samples(batch)],
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._file.close()
        if trainer.global_rank == 0 and self._step_limit is not None:
            import torch

            torch.save(module.state_dict(), self._directory / "weights.pt")


def _loss(outputs: Any) -> float | None:
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    return float(loss) if loss is not None else None


def _leaves(value: Any) -> list[bytes]:
    """The tensors and plain values of one sample, as bytes, in order."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in _leaves(value[key])]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [_bytes(value)]


def _bytes(value: Any) -> bytes:
    if hasattr(value, "detach"):
        return bytes(value.detach().cpu().contiguous().numpy().tobytes())
    if isinstance(value, bool | int | float):
        import torch

        # As the default collate function makes a tensor of them.
        kind = torch.float64 if isinstance(value, float) else torch.int64
        return bytes(torch.tensor(value, dtype=kind).numpy().tobytes())
    return repr(value).encode()


def _samples(batch: Any) -> Iterator[list[bytes]]:
    """A batch's samples, each as the bytes of its parts: along the first dimension of each leaf."""
    columns = _columns(batch)
    rows = min((len(column) for column in columns), default=0)
    for row in range(rows):
        yield [_bytes(column[row]) for column in columns]


def _columns(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [column for key in sorted(value) for column in _columns(value[key])]
    if isinstance(value, list | tuple):
        return [column for item in value for column in _columns(item)]
    return [value] if len(getattr(value, "shape", ())) else []


def _digest(leaves: list[bytes]) -> str:
    return hashlib.blake2b(b"\0".join(leaves), digest_size=8).hexdigest()
