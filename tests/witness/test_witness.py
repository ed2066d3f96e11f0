"""Lightning loads the witness into a script that knows nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from selfsched.witness import installation, record

SCRIPT = """
import torch, {package} as L
from torch.utils.data import DataLoader, TensorDataset

class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, index):
        return ((self.layer(batch[0]) - batch[1]) ** 2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

data = TensorDataset(torch.arange(20.).reshape(10, 2), torch.arange(10.)[:, None])
L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
          enable_progress_bar=False).fit(Line(), DataLoader(data, batch_size=4, shuffle=True{more}))
"""


def watch(script: str, directory: Path, *, step_limit: int | None = None) -> record.Record:
    environment = installation.install(
        directory, {**os.environ, "OMP_NUM_THREADS": "1"}, step_limit=step_limit
    )
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True)
    return record.read(directory)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_an_ordinary_training_sees_each_sample_once_an_epoch(package: str, tmp_path: Path) -> None:
    found = watch(SCRIPT.format(package=package, more=""), tmp_path)
    assert found.faults() == []
    assert [len(batch.samples) for batch in found.batches] == [4, 4, 2] * 3
    assert all(batch.loss is not None for batch in found.batches)
    assert [batch.step for batch in found.batches] == list(range(1, 10))


@pytest.mark.slow
def test_samples_that_are_dropped_are_found_and_a_limited_run_keeps_its_weights(tmp_path: Path) -> None:
    found = watch(SCRIPT.format(package="lightning", more=", drop_last=True"), tmp_path, step_limit=3)
    assert found.faults() == [
        "epoch 0: 2 samples never seen, 0 seen too often",
        "epoch 1: 6 samples never seen, 0 seen too often",
    ]
    assert (tmp_path / "weights.pt").exists()
