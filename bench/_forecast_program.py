"""Small real trainings of several kinds, for `bench.forecast`: `python _forecast_program.py KIND SEED [OUT]`.

With OUT it notes what the callback's own model forecasts along the way, a line of JSON each;
without, under a launcher, the supervisor's model does.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from selfsched import SelfScheduler

NOTE_EVERY_SECONDS = 0.25
CHARACTERS = 64
CONTEXT = 48


class Classifier(pl.LightningModule):  # type: ignore[misc]
    """Any network with a cross entropy."""

    def __init__(self, network: nn.Module, rate: float = 1e-3) -> None:
        super().__init__()
        self.network, self.rate = network, rate

    def training_step(self, batch: Any, index: int) -> Tensor:
        return self._loss(batch)

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val", self._loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.rate)

    def _loss(self, batch: Any) -> Tensor:
        scores = self.network(batch[0])
        return nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), batch[1].reshape(-1))


class Transformer(nn.Module):
    """Predicts the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, CHARACTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(text), mask=self.mask, is_causal=True))  # type: ignore[no-any-return]


class Slow(Dataset[tuple[Tensor, ...]]):
    """Reads as from a slow disk: some milliseconds a sample, some samples many."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        time.sleep(0.03 if index % 50 == 0 else 0.001)
        return self.data[index]


class Endless(IterableDataset[tuple[Tensor, ...]]):
    """Batches without a stated length."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return (self.data[index] for index in range(len(self.data)))


@dataclass(frozen=True)
class Training:
    """What is trained, on what, and to what limit."""

    network: nn.Module
    data: Any
    validation: Any
    options: dict[str, Any]
    batch: int = 32
    rate: float = 1e-3


def vectors(samples: int, generator: torch.Generator, noise: float = 0.5) -> TensorDataset:
    """Points of ten classes that overlap."""
    labels = torch.randint(0, 10, (samples,), generator=generator)
    centres = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    return TensorDataset(centres[labels] + noise * torch.randn(samples, 64, generator=generator), labels)


def images(samples: int, generator: torch.Generator) -> TensorDataset:
    """Noise with ten labels."""
    pixels = torch.randn(samples, 3, 24, 24, generator=generator)
    return TensorDataset(pixels, torch.randint(0, 10, (samples,), generator=generator))


def texts(samples: int, generator: torch.Generator) -> TensorDataset:
    """Characters that count up from a random start."""
    start = torch.randint(0, CHARACTERS, (samples, 1), generator=generator)
    text = (start + torch.arange(CONTEXT + 1)) % CHARACTERS
    return TensorDataset(text[:, :-1], text[:, 1:])


def mlp(width: int = 512) -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def cnn() -> nn.Module:
    """Three convolutions."""
    layers = [
        (nn.Conv2d(a, b, 3, stride=stride), nn.ReLU())
        for a, b, stride in ((3, 16, 1), (16, 32, 2), (32, 64, 2))
    ]
    return nn.Sequential(*itertools.chain(*layers), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def training(kind: str, seed: int, scale: float) -> Training:
    """The training of a kind; its epochs, or what an epoch holds, differ a little by seed.

    Args:
        kind: one of `KINDS`; what follows a dash says how it is run.
        seed: of weights and data.
        scale: 1 for some twenty seconds.
    """
    rng = torch.Generator().manual_seed(seed)
    size = scale * (1.0 + 0.1 * (seed % 3))
    match kind.partition("-")[0]:
        case "mlp":
            return Training(mlp(), vectors(8_000, rng), vectors(800, rng), {"max_epochs": int(20 * size)})
        case "cnn":
            return Training(cnn(), images(1_600, rng), images(200, rng), {"max_epochs": int(16 * size)})
        case "transformer":
            return Training(Transformer(), texts(1_280, rng), texts(128, rng), {"max_steps": int(600 * size)})
        case "slow_loader":
            return Training(mlp(64), Slow(vectors(1_600, rng)), None, {"max_epochs": int(7 * size)})
        case "validation_heavy":
            return Training(mlp(), vectors(4_000, rng), vectors(24_000, rng), {"max_epochs": int(12 * size)})
        case "early_stopping":
            options = {"max_epochs": 200, "min_epochs": 5}
            return Training(mlp(96), vectors(6_400, rng, 4.0), vectors(1_600, rng, 4.0), options, rate=1e-4)
        case "unknown_length":
            return Training(mlp(), Endless(vectors(8_000, rng)), None, {"max_epochs": int(20 * size)})
        case "checkpoint_heavy":
            return Training(mlp(2_048), vectors(1_600, rng), vectors(160, rng), {"max_epochs": int(8 * size)})
    raise ValueError(f"no kind {kind!r}")


class Notes(pl.Callback):  # type: ignore[misc]
    """Writes down what the callback's model forecasts."""

    def __init__(self, scheduler: SelfScheduler, path: str) -> None:
        self._scheduler, self._path, self._next = scheduler, Path(path), 0.0
        self._lines: list[str] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._write({"began": _now(), "limit": _limit(trainer)})

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now, model = _now(), self._scheduler.model
        if now < self._next or model is None:
            return
        self._next = now + NOTE_EVERY_SECONDS
        forecast = model.forecast(model.devices, now)
        self._write(
            {
                "at": now, "step": int(trainer.global_step),
                "forecast": None if forecast is None else forecast.model_dump(),
                "unknown": model.progress(now).end_is_unknown,
            }
        )  # fmt: skip

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._write({"ended": _now(), "step": int(trainer.global_step)})
        self._path.write_text("\n".join(self._lines))

    def _write(self, line: dict[str, Any]) -> None:
        self._lines.append(json.dumps(line))


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _limit(trainer: Any) -> int | None:
    total = trainer.estimated_stepping_batches
    return int(total) if 0 < total < float("inf") else None


def main(kind: str, seed: int, scale: float, out: str | None) -> None:
    """Train once."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(seed)
    what = training(kind, seed, scale)
    scheduler = SelfScheduler(explain=False)
    callbacks: list[Any] = [scheduler]
    if kind == "early_stopping":
        callbacks.append(EarlyStopping("val", patience=5))
    if out is not None:
        callbacks.append(Notes(scheduler, out))
    shuffle = not isinstance(what.data, IterableDataset)
    loader = DataLoader(what.data, batch_size=what.batch, shuffle=shuffle)
    validation = None if what.validation is None else DataLoader(what.validation, batch_size=what.batch)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=kind.startswith("checkpoint_heavy"), callbacks=callbacks, **what.options,
    )  # fmt: skip
    trainer.fit(Classifier(what.network, what.rate), loader, validation)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
