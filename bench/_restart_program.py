"""A small training that notes when each of its steps ended: what `bench.restart` moves about."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from selfsched import SelfScheduler

STEP_SECONDS = 0.01


class Small(pl.LightningModule):  # type: ignore[misc]
    """Some ten thousand parameters; its steps take a hundredth of a second."""

    def __init__(self, stamps: str) -> None:
        super().__init__()
        self.stamps = stamps
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        time.sleep(STEP_SECONDS)
        return self.layers(batch[0]).square().mean()  # type: ignore[no-any-return]

    def on_train_batch_end(self, *_: Any) -> None:
        if self.trainer.is_global_zero:
            with open(self.stamps, "a") as file:
                file.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}\n")

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters())


def main(stamps: str) -> None:
    """Train until told to stop."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    data = DataLoader(TensorDataset(torch.zeros(4096, 64)), batch_size=8, shuffle=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        max_epochs=1000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[SelfScheduler(explain=False)],
    )
    trainer.fit(Small(stamps), data)


if __name__ == "__main__":
    main(sys.argv[1])
