"""Teach a small network to continue Python's own documentation, one character at a time.

    python examples/chars.py                                    # alone, in this process
    selfsched run --devices 1-2 -- python examples/chars.py     # on one or two devices

The only line about devices is `SelfScheduler()`.
"""

from __future__ import annotations

import argparse
from pydoc_data.topics import topics  # some 700 kB of text that every Python ships

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from selfsched import SelfScheduler


class NextCharacter(L.LightningModule):
    def __init__(self, characters: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, width)
        self.read = nn.GRU(width, 2 * width, batch_first=True)
        self.guess = nn.Linear(2 * width, characters)

    def training_step(self, batch: tuple[torch.Tensor], batch_index: int) -> torch.Tensor:
        (text,) = batch
        seen, _ = self.read(self.embed(text[:, :-1]))
        loss = nn.functional.cross_entropy(self.guess(seen).flatten(0, 1), text[:, 1:].flatten())
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def read_windows(length: int = 64) -> tuple[torch.Tensor, int]:
    """The text as numbers, cut into windows (n, length + 1), and how many characters it knows."""
    text = "\n".join(topics.values())
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    numbers = torch.tensor([alphabet[character] for character in text])
    return numbers.unfold(0, length + 1, length).contiguous(), len(alphabet)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=-1, help="stop after so many steps")
    options = parser.parse_args()

    L.seed_everything(1)
    windows, characters = read_windows()
    loader = DataLoader(TensorDataset(windows), batch_size=128, shuffle=True)
    trainer = L.Trainer(
        max_epochs=options.epochs, max_steps=options.steps, accelerator="cpu", logger=False,
        callbacks=[SelfScheduler()],
    )
    trainer.fit(NextCharacter(characters), loader)
    print(f"loss {trainer.callback_metrics['loss']:.3f} after {trainer.global_step} steps")


if __name__ == "__main__":
    main()
