"""A small training to do one thing to at one step; the pieces of the tests of single cases."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from elastic.nasty import Numbers, Seen, segment
from torch.utils.data import DataLoader

from selfsched.elastic import hooks
from selfsched.elastic.segment import ControlBlock, Order, SegmentSpec, boottime

Act = Callable[[Any], None]
QUIET: dict[str, Any] = {
    "enable_progress_bar": False, "enable_model_summary": False, "logger": False,
    "enable_checkpointing": False, "num_sanity_val_steps": 0, "max_epochs": 2,
}  # fmt: skip


class Tiny(pl.LightningModule):  # type: ignore[misc]
    """A linear model that notes what it sees, and acts after a step where told to."""

    def __init__(self, seen: Seen | None = None, acts: dict[int, Act] | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen = seen or Seen()
        self.acts = acts or {}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen.samples += [("fit", self.trainer.current_epoch, int(index)) for index in batch[0]]
        loss = ((self.layer(batch[1]).squeeze(-1) - batch[2]) ** 2).mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        act = self.acts.pop(self.trainer.global_step, None)
        if act is not None:
            act(self.trainer)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val_loss", ((self.layer(batch[1]).squeeze(-1) - batch[2]) ** 2).mean())

    def on_validation_epoch_end(self) -> None:
        metrics = self.trainer.callback_metrics
        loss = sum(float(value) for name, value in metrics.items() if name.startswith("val_loss"))
        self.seen.validations.append(("fit", self.trainer.global_step, loss))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.05)


@dataclass
class Played:
    """What one segment of a tiny run came to."""

    def said(self, words: str) -> bool:
        """Whether a warning held these words."""
        return any(words in text for text in self.warnings)

    module: Any
    trainer: Any = None
    left: BaseException | None = None
    warnings: list[str] = field(default_factory=list)


@contextmanager
def as_rank(spec: SegmentSpec, on_leave: Any = "exit") -> Iterator[None]:
    """This process as rank 0 of one of the segment; it must not be used for several at once."""
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "NODE_RANK": "0"}
    os.environ.update(ranks, MASTER_ADDR="127.0.0.1", MASTER_PORT="29998")
    hooks.install(spec, on_leave)
    try:
        yield
    finally:
        hooks.uninstall()


def loader(samples: int = 16, batch_size: int = 2, **options: Any) -> Any:
    """Batches of `Numbers`, shuffled unless told otherwise."""
    return DataLoader(Numbers(samples), batch_size=batch_size, **{"shuffle": True, **options})


def play_tiny(
    directory: Path, ordinal: int = 0, *, acts: dict[int, Act] | None = None, seen: Seen | None = None,
    train: Any = None, validation: Any = None, spec: dict[str, Any] | None = None, module: type[Any] = Tiny,
    on_leave: Any = "exit", **trainer_arguments: Any,
) -> Played:  # fmt: skip
    """One segment of a tiny run on one rank; SystemExit and our errors end up in `left`."""
    from selfsched.errors import SelfschedError

    pl.seed_everything(7, verbose=False)
    played = Played(module(seen, acts))
    arguments = {**QUIET, "default_root_dir": directory, **trainer_arguments}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with as_rank(segment(directory / "run", ordinal, **(spec or {})), on_leave):
            try:
                played.trainer = pl.Trainer(**arguments)
                played.trainer.fit(played.module, train if train is not None else loader(), validation)
            except (SystemExit, SelfschedError) as left:
                played.left = left
    played.warnings = [str(warning.message) for warning in warned]
    return played


def order(directory: Path, what: Order, **instants: float) -> Act:
    """An act: the supervisor's order arrives now."""

    def act(trainer: Any) -> None:
        block = ControlBlock(directory / "run" / "control")
        block.order(what, **instants)
        block.close()

    return act


def make_block(directory: Path, *, lease_seconds: float | None = None) -> None:
    """The control block of the run in `directory`, with a lease that ends if told so."""
    (directory / "run").mkdir(mode=0o700, exist_ok=True)
    block = ControlBlock(directory / "run" / "control", create=True)
    if lease_seconds is not None:
        block.extend(boottime() + lease_seconds)
    block.close()


def terminate(trainer: Any) -> None:
    """An act: SIGTERM arrives in this process."""
    os.kill(os.getpid(), signal.SIGTERM)


# --- scripts for several ranks (see `ranks`) -------------------------------------------------


def late_order(package: str, logs: Path, seen: Seen, *, at: int = 0) -> dict[str, Any]:
    """An order with no time left reaches the first segment's rank 0 at a step with a validation."""
    pl.seed_everything(7, verbose=False)
    process = hooks.current()
    assert process is not None
    late = at and process.rank == 0 and process.spec.ordinal == 0
    act = order(logs.parent, Order.YIELD, leave_by=boottime()) if late else None
    module = Tiny(seen, {at: act} if act else {})
    trainer = pl.Trainer(**QUIET, val_check_interval=4, default_root_dir=logs)
    trainer.fit(module, loader(), loader(5, shuffle=False))
    return {"step": trainer.global_step, "weights": dict(module.state_dict())}


class Staged(Tiny):
    """One layer is frozen in the first epoch, one is used in every second step only."""

    def __init__(self, seen: Seen) -> None:
        super().__init__(seen)
        self.late = torch.nn.Linear(4, 4).requires_grad_(False)
        self.rare = torch.nn.Linear(4, 4)

    def on_train_epoch_start(self) -> None:
        self.late.requires_grad_(self.trainer.current_epoch > 0)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs = self.rare(batch[1]) if batch_idx % 2 else batch[1]
        loss = ((self.layer(self.late(inputs)).squeeze(-1) - batch[2]) ** 2).mean()
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 0.01)


def staged(package: str, logs: Path, seen: Seen) -> dict[str, Any]:
    """A fine-tuning in stages, whose author trained it on one device."""
    pl.seed_everything(7, verbose=False)
    module = Staged(seen)
    trainer = pl.Trainer(**{**QUIET, "max_epochs": 3}, accumulate_grad_batches=2, default_root_dir=logs)
    trainer.fit(module, loader(15))
    return {"step": trainer.global_step, "weights": dict(module.state_dict())}


class OtherLoader(DataLoader):  # type: ignore[misc]
    """A kind of loader that is not known."""


def unknown_loader(package: str, logs: Path, seen: Seen) -> dict[str, Any]:
    """A loader that cannot be repositioned."""
    pl.seed_everything(7, verbose=False)
    trainer = pl.Trainer(**QUIET, default_root_dir=logs)
    trainer.fit(Tiny(seen), OtherLoader(Numbers(16), batch_size=2, shuffle=True))
    return {"step": trainer.global_step}


def terminated_rank_1(package: str, logs: Path, seen: Seen, *, at: int) -> dict[str, Any]:
    """SIGTERM reaches rank 1 alone; all must leave at one step."""
    pl_package = sys.modules[package]
    pl_package.seed_everything(7, verbose=False)
    rank = int(os.environ["RANK"])
    module = Tiny(seen, {at: terminate} if rank == 1 else {})
    trainer = pl_package.Trainer(**{**QUIET, "max_epochs": -1, "max_steps": 20_000}, default_root_dir=logs)
    try:
        trainer.fit(module, loader(samples=64))
    finally:
        seen.rates.append(("left at", trainer.global_step, 0.0))
    return {"step": trainer.global_step, "weights": dict(module.state_dict())}
