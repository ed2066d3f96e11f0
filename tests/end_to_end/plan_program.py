"""A training script of somebody who never heard of elasticity: one line of it is ours.

Devices and strategy are hard-coded, a second Trainer tests afterwards, and it writes what it
has trained to `--result`. Each rank notes the samples it sees beside that file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from selfsched import SelfScheduler

SAMPLES = 240


class Numbers(Dataset):  # type: ignore[type-arg]
    def __init__(self, count: int) -> None:
        self.inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self.inputs[index], self.inputs[index].sum()


def make_model(package: Any, arguments: argparse.Namespace) -> Any:
    class Model(package.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
            )

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            seen, inputs, targets = batch
            note_samples(arguments.result, self.trainer.current_epoch, seen)
            if self.global_step == arguments.raise_at and self.global_rank == arguments.raise_rank:
                raise ValueError("boom")
            time.sleep(arguments.step_seconds)
            loss = ((self.layers(inputs).squeeze(-1) - targets) ** 2).mean()
            self.log("loss", loss, on_epoch=True, on_step=True)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("validation_loss", ((self.layers(batch[1]).squeeze(-1) - batch[2]) ** 2).mean())

        def test_step(self, batch: Any, index: int) -> None:
            self.log("test_loss", ((self.layers(batch[1]).squeeze(-1) - batch[2]) ** 2).mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 1e-2)

    return Model()


def note_samples(result: Path, epoch: int, seen: torch.Tensor) -> None:
    with open(f"{result}.seen.{os.getpid()}", "a") as file:
        file.writelines(f"{epoch} {int(sample)}\n" for sample in seen)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--package", default="lightning.pytorch")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--raise-at", type=int, default=-1)
    parser.add_argument("--raise-rank", type=int, default=0)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger(arguments.package).setLevel(logging.ERROR)

    package = importlib.import_module(arguments.package)
    package.seed_everything(7, verbose=False)
    model = make_model(package, arguments)
    train = DataLoader(Numbers(SAMPLES), batch_size=8, shuffle=True, num_workers=arguments.workers)
    validation = DataLoader(Numbers(32), batch_size=8)
    best = package.callbacks.ModelCheckpoint(
        dirpath=f"{arguments.result}.checkpoints", monitor="validation_loss", save_top_k=2
    )
    trainer = package.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=arguments.epochs,
        enable_progress_bar=False, enable_model_summary=False, logger=False,
        callbacks=[SelfScheduler(explain=False), best,
                   package.callbacks.EarlyStopping("validation_loss", patience=50)],
    )  # fmt: skip
    trainer.fit(model, train, validation)
    tested = trainer.test(model, validation, verbose=False)
    if trainer.is_global_zero:
        result = {
            "weights": torch.cat([weights.detach().flatten() for weights in model.parameters()]).tolist(),
            "step": trainer.global_step, "epoch": trainer.current_epoch,
            "best": Path(best.best_model_path).name, "tested": tested[0]["test_loss"],
        }  # fmt: skip
        arguments.result.write_text(json.dumps(result))
        print("trained to the end", flush=True)


if __name__ == "__main__":
    main()
