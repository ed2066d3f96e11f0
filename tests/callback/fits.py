"""Small fits for the tests of the callback, in either Lightning package."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def module(package: str = "lightning.pytorch", *, step_seconds: float = 0.0) -> Any:
    """A module of a few parameters whose step takes at least `step_seconds`."""
    pl = import_module(package)

    class Tiny(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            time.sleep(step_seconds)  # work, not a wait for a condition
            loss = self.layer(batch).pow(2).mean()
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", self.layer(batch).pow(2).mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Tiny()


def loader(batches: int = 10, batch_size: int = 4) -> Any:
    return DataLoader(torch.randn(batches * batch_size, 4), batch_size=batch_size)


class Stream(IterableDataset[Any]):
    """Samples without a known length."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        return iter(torch.randn(self.samples, 4))


def stream_loader(batches: int = 10, batch_size: int = 4) -> Any:
    return DataLoader(Stream(batches * batch_size), batch_size=batch_size)


def trainer(package: str, directory: Path, *callbacks: Any, **arguments: Any) -> Any:
    """A quiet Trainer on one CPU device."""
    pl = import_module(package)
    defaults: dict[str, Any] = {
        "accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "enable_checkpointing": False, "default_root_dir": directory,
        "callbacks": list(callbacks),
    }  # fmt: skip
    return pl.Trainer(**(defaults | arguments))


def spy(package: str, hook: str, action: Any) -> Any:
    """A callback that does `action(trainer)` at one hook."""
    pl = import_module(package)

    def run(self: Any, trainer: Any, *_: Any) -> None:
        action(trainer)

    return type("Spy", (pl.Callback,), {hook: run})()
