"""A program that ends as it is told to: `raising_program.py in|after|catch|trainer|fine`."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader

from selfsched import SelfScheduler

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(L.LightningModule):
    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        if self.error is not None and self.global_rank == 0:
            raise self.error
        return self.layer(batch).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def train(where: str, callbacks: list[Any]) -> None:
    errors = {"in": MemoryError("boom in fit"), "catch": ValueError("caught")}
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_model_summary=False,
        callbacks=callbacks,
    )  # fmt: skip
    trainer.fit(Model(errors.get(where)), DataLoader(torch.ones(8, 1), batch_size=4))


def main(where: str) -> None:
    try:
        train(where, [] if where == "trainer" else [SelfScheduler(explain=False)])
    except ValueError:
        if where != "catch":
            raise
    if where == "after":
        raise ValueError("boom after fit")
    print("the end of the program", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
