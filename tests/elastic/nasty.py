"""The nasty training: everything at once that a cut could lose.

Three epochs, validation in the middle of an epoch, accumulation, an EMA, ModelCheckpoint,
EarlyStopping, a step schedule, CSV and TensorBoard loggers, a torchmetrics mean over the
epoch, a second fit, a test after it. Used by the tests of the cut for both packages.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from selfsched.elastic import hooks
from selfsched.elastic.segment import SegmentSpec

SAMPLES = 23
"""Odd: with a batch of 2 the last one of an epoch has one sample, and a second rank none."""


class Numbers(Dataset):
    """Points of a plane with a smooth target; sample i is always the same."""

    def __init__(self, samples: int = SAMPLES, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(samples, 4, generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self.inputs[index], self.inputs[index].sin().sum()


@dataclass
class Seen:
    """What a run did, in the order it did it. Lost when a process ends: one a process."""

    samples: list[tuple[str, int, int]] = field(default_factory=list)
    """(fit, epoch, index)"""
    validations: list[tuple[str, int, float]] = field(default_factory=list)
    """(fit, global step, loss)"""
    rates: list[tuple[str, int, float]] = field(default_factory=list)
    """(fit, global step, learning rate)"""
    epoch_means: list[tuple[str, int, float, float, float]] = field(default_factory=list)
    """(fit, epoch, mean loss as logged, torchmetrics mean, mean loss logged with sync_dist)"""


def module_class(package: str) -> type[Any]:
    """The module, of this package's LightningModule."""
    pl = import_module(package)
    from torchmetrics import MeanMetric, SumMetric

    class Nasty(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, tag: str, seen: Seen, dropout: float = 0.0) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(8, 1)
            )
            self.mean = MeanMetric()
            self.validated = SumMetric()
            self.tag = tag
            self.seen = seen

        def _loss(self, batch: Any) -> torch.Tensor:
            _, inputs, targets = batch
            return ((self.layers(inputs).squeeze(-1) - targets) ** 2).mean()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = self._loss(batch)
            epoch = self.trainer.current_epoch
            self.seen.samples += [(self.tag, epoch, int(index)) for index in batch[0]]
            self.mean.update(loss.detach(), weight=len(batch[0]))
            self.log("loss", loss, on_step=True, on_epoch=True)
            self.log("torchmean", self.mean, on_step=False, on_epoch=True)
            self.log("synced", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            rate = self.optimizers().param_groups[0]["lr"]
            self.seen.rates.append((self.tag, self.trainer.global_step, rate))

        def on_train_epoch_end(self) -> None:
            metrics = self.trainer.callback_metrics
            means = [float(metrics[name]) for name in ("loss_epoch", "torchmean", "synced")]
            self.seen.epoch_means.append((self.tag, self.trainer.current_epoch, *means))

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self._loss(batch))
            self.validated.update(len(batch[0]))
            self.log("val_seen", self.validated)
            self.log("val_sum", torch.tensor(1.0), reduce_fx="sum", sync_dist=True)

        def on_validation_epoch_end(self) -> None:
            if not self.trainer.sanity_checking:
                loss = float(self.trainer.callback_metrics["val_loss"])
                self.seen.validations.append((self.tag, self.trainer.global_step, loss))

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("test_loss", self._loss(batch))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), 1e-2)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    return Nasty


def ema_class(package: str) -> type[Any]:
    """A callback with a state of its own that changes at each step."""
    pl = import_module(package)

    class Average(pl.Callback):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.weights: dict[str, torch.Tensor] = {}
            self.updates = 0

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            self.updates += 1
            for name, value in pl_module.state_dict().items():
                old = self.weights.get(name, value)
                self.weights[name] = 0.9 * old + 0.1 * value.detach()

        def state_dict(self) -> dict[str, Any]:
            return {"weights": dict(self.weights), "updates": self.updates}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.weights, self.updates = state_dict["weights"], state_dict["updates"]

    return Average


def segment(directory: Path, ordinal: int, **fields: Any) -> SegmentSpec:
    """A segment of the run in `directory`, with nobody listening."""
    directory.mkdir(mode=0o700, exist_ok=True)
    given = {"world_size": 1, "max_devices": 2, "resume": ordinal > 0, **fields}
    return SegmentSpec(
        run_directory=directory, ordinal=ordinal, events_socket=directory / "events",
        control_block=directory / "control", **given,
    )  # fmt: skip


def script(package: str, logs: Path, seen: Seen, *, dropout: float = 0.0, workers: int = 0) -> dict[str, Any]:
    """The user's script: two fits and a test. Returns what it would print."""
    pl = import_module(package)
    pl.seed_everything(7, verbose=False)
    module = module_class(package)("first", seen, dropout)
    loader = DataLoader(Numbers(), batch_size=2, shuffle=True, num_workers=workers)
    validation = DataLoader(Numbers(6, seed=2), batch_size=4)
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False}
    average = ema_class(package)()
    keeper = pl.callbacks.ModelCheckpoint(monitor="val_loss", save_top_k=2)
    patience = pl.callbacks.EarlyStopping("val_loss", patience=50)
    trainer = pl.Trainer(
        max_epochs=3, val_check_interval=0.5, accumulate_grad_batches=2, log_every_n_steps=1,
        callbacks=[average, keeper, patience], default_root_dir=logs,
        logger=[
            pl.loggers.CSVLogger(logs, name="csv"), pl.loggers.TensorBoardLogger(logs, name="board")
        ], **quiet,
    )  # fmt: skip
    trainer.fit(module, loader, validation)
    first = {
        "step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "monitored": {key: float(value) for key, value in trainer.callback_metrics.items()},
        "best": Path(keeper.best_model_path).relative_to(logs),
        "kept": sorted(float(score) for score in keeper.best_k_models.values()),
        "best_score": float(keeper.best_model_score),
        "ema": {name: value.clone() for name, value in average.weights.items()},
        "ema_updates": average.updates,
        "patience": float(patience.best_score),
        "weights": {name: value.clone() for name, value in module.state_dict().items()},
    }
    module.tag = "second"
    again = pl.Trainer(
        max_steps=7, val_check_interval=4, logger=False, enable_checkpointing=False, default_root_dir=logs,
        num_sanity_val_steps=0, **quiet,
    )  # fmt: skip
    again.fit(module, loader, validation)
    tested = trainer.test(module, validation, verbose=False)
    return {
        **first,
        "second_step": again.global_step,
        "second_weights": {name: value.clone() for name, value in module.state_dict().items()},
        "test_loss": tested[0]["test_loss"],
    }


def play(
    package: str, directory: Path, cuts: list[tuple[int, int] | None], **options: Any
) -> tuple[dict[str, Any], Seen, Path]:
    """Run the script in segments of one rank each, in this process, cut where told.

    Args:
        package: `lightning.pytorch` or `pytorch_lightning`.
        directory: An empty one.
        cuts: (fit, step) of each segment; the last one must be None.
        options: Of `script`.

    Returns:
        What the script found at its end, what was seen on the way, its log directory.
    """
    import_module(package)  # what is not imported is not wrapped
    seen, logs = Seen(), directory / "logs"
    result: dict[str, Any] | None = None
    environment = dict(os.environ)
    os.environ.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", NODE_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29999"
    )
    try:
        for ordinal, cut in enumerate(cuts):
            hooks.install(segment(directory / "run", ordinal, cut_at=cut))
            try:
                result = script(package, logs, seen, **options)
            except SystemExit as left:
                if left.code != 75 or cut is None:
                    raise
    finally:
        hooks.uninstall()
        os.environ.clear()
        os.environ.update(environment)
    assert result is not None
    return result, seen, logs


def csv_rows(logs: Path) -> list[dict[str, str]]:
    """Rows of the one metrics.csv under the CSV logger's directory."""
    (path,) = (logs / "csv").glob("*/metrics.csv")
    with path.open() as file:
        return list(csv.DictReader(file))
