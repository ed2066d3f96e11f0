"""`selfsched verify` finds no difference where there is none, and finds one where there is."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from cli.commands import selfsched

from selfsched.verify import compare
from selfsched.witness.record import Record, WitnessedBatch

SCRIPT = """
import lightning as L, torch
from torch.utils.data import DataLoader, TensorDataset
from selfsched import SelfScheduler

class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    def training_step(self, batch, index):
        return ((self.layers(batch[0]) - batch[1]) ** 2).mean()
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)

L.seed_everything(3)
x = torch.randn(50, 3)
L.Trainer(max_epochs=9, accelerator="cpu", logger=False, enable_checkpointing=False,
          callbacks=[SelfScheduler()],
).fit(Line(), DataLoader(TensorDataset(x, x.sum(1, True)), 8, shuffle=True))
"""


def a_record(losses: list[float], samples: str = "ab", devices: tuple[int, ...] = (1, 2, 1)) -> Record:
    batches = [
        WitnessedBatch(
            epoch=0, batch=n, step=n + 1, devices=devices[n], segment=n, seconds=0.1, at=float(n), loss=loss,
            samples=tuple(samples),
        )
        for n, loss in enumerate(losses)
    ]  # fmt: skip
    return Record(tuple(batches), tuple(samples))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Two runs with equal weights, in `whole` and `cut`."""
    import torch

    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
        torch.save({"layer": torch.ones(3)}, tmp_path / name / "weights.pt")
    return tmp_path


def test_equal_runs_are_found_equal(weights: Path) -> None:
    found = compare(a_record([3, 2, 1], devices=(1, 1, 1)), a_record([3, 2, 1]), weights)
    assert found.nothing_changed()
    assert (found.devices, found.steps) == ((1, 2, 1), 3)


def test_another_loss_other_samples_and_a_lost_step_are_found(weights: Path) -> None:
    whole = a_record([3, 2, 1])
    assert compare(whole, a_record([3, 2, 1.5]), weights).loss_difference == 0.5
    assert not compare(whole, a_record([3, 2, 1], samples="ac"), weights).nothing_changed()
    assert not compare(whole, a_record([3, 2]), weights).same_samples


def test_other_weights_are_found(weights: Path) -> None:
    import torch

    torch.save({"layer": torch.tensor([1.0, 1.0, 1.25])}, weights / "cut" / "weights.pt")
    assert compare(a_record([1]), a_record([1]), weights).weight_difference == 0.25
    torch.save({"other": torch.ones(3)}, weights / "cut" / "weights.pt")
    assert compare(a_record([1]), a_record([1]), weights).weight_difference == float("inf")


@pytest.mark.slow
def test_a_real_script_is_the_same_training_on_one_two_one_devices(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = selfsched("verify", "--steps", "20", "--json", "--", sys.executable, "train.py", home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["nothing_changed"]
    assert found["devices"] == [1, 2, 1]
    assert found["steps"] == 20


@pytest.mark.slow
def test_a_script_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('no data here')")
    done = selfsched("verify", "--", sys.executable, "train.py", home=tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert "no data here" in done.stderr
    named = re.findall(rf"{re.escape(str(tmp_path))}/selfsched-verify[^ )\n]*", done.stderr)
    assert len(named) == 2
    assert all(Path(path).is_dir() for path in named), "what is named can be looked at"


@pytest.mark.slow
def test_a_command_that_trains_nothing_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    done = selfsched("verify", "--", "true", home=tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert "no training was seen" in done.stderr
    assert not list(tmp_path.glob("selfsched-verify-*"))
