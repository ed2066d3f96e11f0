"""Uses `selfsched.Trainer` at its top level, with no guard: `trainer_program.py RESULT PLAN`."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import selfsched


class Line(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 1e-2)


warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pl.seed_everything(3, verbose=False)
data = DataLoader(TensorDataset(torch.randn(160, 8)), batch_size=8, shuffle=True)
model = Line()
trainer = selfsched.Trainer(
    1, 2, plan=sys.argv[2], max_epochs=1, logger=False, enable_checkpointing=False, accelerator="cpu",
    enable_model_summary=False, enable_progress_bar=False,
)  # fmt: skip
trainer.fit(model, data)
if trainer.is_global_zero:
    Path(sys.argv[1]).write_text(json.dumps([trainer.global_step, *model.layer.weight.flatten().tolist()]))
