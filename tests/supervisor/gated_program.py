"""A training of which one step waits for a file: `gated_program.py DIRECTORY STEP STEP_SECONDS`.

Rank 0 notes each step of the optimiser in DIRECTORY/made; `begun` appears when the step that
waits is under way, and it goes on when `go` is there.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from selfsched import SelfScheduler


class Gated(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, directory: Path, gated_step: int, step_seconds: float) -> None:
        super().__init__()
        self.directory, self.gated_step, self.step_seconds = directory, gated_step, step_seconds
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        time.sleep(self.step_seconds)
        if self.global_step + 1 == self.gated_step:
            (self.directory / "begun").touch()
            while not (self.directory / "go").exists():
                time.sleep(0.01)
        return self.layer(batch).mean()

    def optimizer_step(self, *arguments: Any, **named: Any) -> None:
        super().optimizer_step(*arguments, **named)
        if self.global_rank == 0:
            with (self.directory / "made").open("a") as file:
                file.write("step\n")

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def main(directory: Path, gated_step: int, step_seconds: float) -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_model_summary=False,
        callbacks=[SelfScheduler(explain=False)],
    )  # fmt: skip
    data = DataLoader(torch.ones(4000, 1), batch_size=4)
    trainer.fit(Gated(directory, gated_step, step_seconds), data)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
