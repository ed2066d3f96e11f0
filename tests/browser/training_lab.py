"""A user's machine with a lab's broker, a JupyterLab, and a notebook that really trains in it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from end_to_end.broker_lab import LabHouse, fresh_house, is_alive, until
from jupyter.jupyter_process import JupyterProcess, jupyter_process

from browser.page import EXPOSED, without_news
from selfsched.protocol import DeviceState

BASE_URL = "/user/ada/"
_OWN = ("SELFSCHED_", "XDG_")
SETUP = '''
import logging, os, pathlib, time, warnings
import torch
import lightning as L
import selfsched
from torch.utils.data import DataLoader
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pathlib.Path("kernel.pid").write_text(str(os.getpid()))
hurry = str(pathlib.Path("hurry").absolute())

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        if not os.path.exists(hurry):
            time.sleep(0.01 * len(batch))  # twice the devices, twice as fast
        if self.global_step % 40 == 0 and self.trainer.is_global_zero:
            print(f"at step {self.global_step}", flush=True)
        loss = (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-2)

def train(name, most=2, steps=2400, **how):
    data = DataLoader([torch.randn(4) for _ in range(8 * steps)], batch_size=8)
    trainer = selfsched.Trainer(
        1, most, name=name, max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_model_summary=False, **how,
    )
    trainer.fit(Model(), data)
print("ready")
'''
"""Each run ends within moments once there is a file `hurry` beside the notebook."""


@dataclass
class TrainingLab:
    """JupyterLab, and the machine whose broker its notebooks train through."""

    house: LabHouse
    jupyter: JupyterProcess
    kernels: set[int] = field(default_factory=set)

    @property
    def home(self) -> Path:
        return self.jupyter.home

    def write_notebook(self, name: str, *cells: str) -> None:
        """A notebook with the class to train in its first cell."""
        made = nbformat.v4.new_notebook()
        made.cells = [nbformat.v4.new_code_cell(text) for text in (SETUP.strip(), *cells)]
        made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(made, self.home / name)

    def hurry(self) -> None:
        """Let what trains come to its end."""
        (self.home / "hurry").touch()

    def kernel_pid(self) -> int:
        """Of the kernel that ran the first cell last."""
        return int((self.home / "kernel.pid").read_text())

    def free_devices(self) -> int:
        return len(self.house.devices_in(self.house.lab_socket, DeviceState.FREE))

    def until_all_is_free(self) -> None:
        until(lambda: self.free_devices() == 2, "every device is free again")
        (self.home / "hurry").unlink(missing_ok=True)

    def kill_kernel(self) -> None:
        os.kill(self.kernel_pid(), signal.SIGKILL)

    def close(self) -> None:
        """End the supervisors of runs that a failed test has left."""
        for supervisor in self._supervisors():
            with suppress(ProcessLookupError):
                os.kill(supervisor, signal.SIGTERM)
        for supervisor in self._supervisors():
            until(lambda pid=supervisor: not is_alive(pid), "a supervisor has ended")  # type: ignore[misc]

    def _supervisors(self) -> list[int]:
        found = []
        for path in (self.house.root / "runs").glob("*/events.jsonl"):
            lines = path.read_text().splitlines()
            found += [int(json.loads(line)["pid"]) for line in lines if '"supervisor_started"' in line]
        return [pid for pid in found if is_alive(pid)]


@contextmanager
def training_lab(home: Path) -> Iterator[TrainingLab]:
    """Run one; its broker has two CPU slots and decides within seconds."""
    without_news(home)
    houses = fresh_house(calls_per_second="1000")
    house = next(houses)
    house.start_lab()
    own = {name: value for name, value in house.environment.items() if name.startswith(_OWN)}
    kept = {name: value for name, value in own.items() if not name.startswith("SELFSCHED_BROKER_")}
    try:
        with jupyter_process(
            home, base_url=BASE_URL, environment=kept | {"OMP_NUM_THREADS": "1"}, options=EXPOSED
        ) as jupyter:
            lab = TrainingLab(house, jupyter)
            try:
                yield lab
            finally:
                lab.close()
    finally:
        next(houses, None)
