"""What may end a fit early, as a real Trainer tells it, and the values that a rule looks at."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from selfsched.core.events import Checked
from selfsched.elastic.ends import checked, end_facts


class Falling(pl.LightningModule):
    """Its validation loss is the epoch's number from a list."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__()
        self.losses = losses
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()  # type: ignore[no-any-return]

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val", self.losses[self.current_epoch])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Listening(pl.Callback):
    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.seen: list[Checked] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.facts = end_facts(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._take(checked(trainer, "validation"))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._take(checked(trainer, "epoch"))

    def _take(self, event: Checked | None) -> None:
        if event is not None:
            self.seen.append(event)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def fit(losses: list[float], callbacks: list[Any], folder: Any, **options: Any) -> Listening:
    listening = Listening()
    data = DataLoader(TensorDataset(torch.ones(6, 1)), batch_size=2)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=len(losses), logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, callbacks=[listening, *callbacks], **options,
    )  # fmt: skip
    trainer.fit(Falling(losses), data, data)
    return listening


def test_a_rule_is_told_as_it_stands_and_its_values_when_it_looks(tmp_path: Any) -> None:
    rule = EarlyStopping("val", patience=2, min_delta=0.1, mode="min", stopping_threshold=0.05)
    heard = fit([3.0, 2.0, 2.5, 2.1, 9.0], [rule], tmp_path, enable_checkpointing=False, min_epochs=2)
    (told,) = heard.facts["stopping"]
    assert (told.monitor, told.mode, told.patience) == ("val", "min", 2)
    assert (told.min_delta, told.target) == (0.1, 0.05)
    assert (told.best, told.waited) == (None, 0)
    assert heard.facts["early_stopping"]
    assert heard.facts["min_epochs"] == 2
    assert heard.facts["validation_batches"] == 3
    assert heard.facts["checkpoints_per_epoch"] == 0.0
    assert [event.values["val"] for event in heard.seen] == [3.0, 2.0, 2.5, pytest.approx(2.1)]
    assert [event.step for event in heard.seen] == [3, 6, 9, 12]


def test_a_rule_that_looks_after_each_validation_is_heard_then(tmp_path: Any) -> None:
    rule = EarlyStopping("val", patience=9, check_on_train_epoch_end=False)
    heard = fit([3.0, 2.0], [rule], tmp_path, enable_checkpointing=False, val_check_interval=1)
    assert len(heard.seen) == 6


def test_without_rules_there_is_nothing_to_tell(tmp_path: Any) -> None:
    checkpoint = ModelCheckpoint(dirpath=tmp_path, every_n_epochs=2)
    heard = fit([3.0, 2.0], [checkpoint], tmp_path)
    assert heard.seen == []
    assert heard.facts["stopping"] == ()
    assert not heard.facts["early_stopping"]
    assert heard.facts["checkpoints_per_epoch"] == 0.5


def test_checkpoints_that_go_by_steps_are_not_counted_by_epochs(tmp_path: Any) -> None:
    checkpoint = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2)
    assert fit([3.0], [checkpoint], tmp_path).facts["checkpoints_per_epoch"] is None


def test_a_rule_of_another_make_is_seen_but_not_understood() -> None:
    class EarlyStopping:
        __module__ = "lightning.pytorch.callbacks.early_stopping"
        monitor = "val"

    class Trainer:
        callbacks = (EarlyStopping(),)
        enable_validation = False

    facts = end_facts(Trainer())
    assert facts["early_stopping"]
    assert facts["stopping"] == ()


def test_a_patience_without_end_is_a_very_long_one(tmp_path: Any) -> None:
    heard = fit([3.0], [EarlyStopping("val", patience=float("inf"))], tmp_path, enable_checkpointing=False)  # type: ignore[arg-type]
    assert heard.facts["stopping"][0].patience >= 10**9
