"""`selfsched.Trainer` in a real kernel that has used threads and a process group before."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor.runs import is_alive, wait_for

jupyter_client = pytest.importorskip("jupyter_client")
pytestmark = pytest.mark.slow

SETUP = """
import logging, os, time, warnings
import torch
matrix = torch.randn(600, 600)
torch.set_num_threads(2)
(matrix @ matrix).sum()
import torch.distributed
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
torch.distributed.init_process_group(
    "gloo", rank=0, world_size=1, init_method="file://" + os.environ["GLOO_FILE"]
)
import lightning as L
import selfsched
from torch.utils.data import DataLoader, Dataset
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Numbers(Dataset):
    def __init__(self, count):
        self.inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))
    def __len__(self):
        return len(self.inputs)
    def __getitem__(self, index):
        return self.inputs[index], self.inputs[index].sum()

class Data(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Numbers(240), batch_size=16, shuffle=True)
    def val_dataloader(self):
        return DataLoader(Numbers(32), batch_size=16)
    test_dataloader = val_dataloader

class Model(L.LightningModule):
    def __init__(self, step_seconds=0.0, raise_at=-1):
        super().__init__()
        self.step_seconds, self.raise_at = step_seconds, raise_at
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    def loss(self, batch):
        return ((self.layers(batch[0]).squeeze(-1) - batch[1]) ** 2).mean()
    def training_step(self, batch, index):
        if self.global_step == self.raise_at:
            raise ValueError("boom")
        time.sleep(self.step_seconds)
        loss = self.loss(batch)
        self.log("loss", loss)
        self.log("steps_before", float(self.global_step))
        return loss
    def validation_step(self, batch, index):
        self.log("validation_loss", self.loss(batch))
    def test_step(self, batch, index):
        self.log("test_loss", self.loss(batch))
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)

def weights(model):
    return torch.cat([w.detach().flatten() for w in model.parameters()])

def fit(plan, name=None, epochs=3, logger=False, **model_arguments):
    L.seed_everything(7, verbose=False)
    global model, trainer, best
    model = Model(**model_arguments)
    best = L.pytorch.callbacks.ModelCheckpoint(dirpath=os.environ["BEST"] + plan, monitor="validation_loss")
    trainer = selfsched.Trainer(
        1, 2, plan=plan, name=name, max_epochs=epochs, accelerator="cpu", logger=logger, callbacks=[best],
        enable_model_summary=False, log_every_n_steps=1,
    )
    trainer.fit(model, datamodule=Data())
"""


class Kernel:
    """A Jupyter kernel, and what its cells printed."""

    def __init__(self, runs: Path, environment: dict[str, str]) -> None:
        self.runs = runs
        self.manager, self.client = jupyter_client.manager.start_new_kernel(
            kernel_name="python3", env=environment
        )

    def run(self, code: str, while_running: Callable[[], None] | None = None) -> tuple[str, str | None]:
        """Execute a cell: its text output, and its error as the cell shows it."""
        outputs: list[dict[str, Any]] = []
        message = self.client.execute(code)
        if while_running is not None:
            while_running()
        while True:
            heard = self.client.get_iopub_msg(timeout=120)
            if heard["parent_header"].get("msg_id") != message:
                continue
            outputs.append(heard)
            if heard["msg_type"] == "status" and heard["content"]["execution_state"] == "idle":
                break
        self.messages = outputs
        text = "".join(o["content"]["text"] for o in outputs if o["msg_type"] == "stream")
        errors = [o["content"] for o in outputs if o["msg_type"] == "error"]
        return text, "\n".join(errors[0]["traceback"]) if errors else None

    def value(self, expression: str) -> Any:
        text, error = self.run(f"print(repr({expression}))")
        assert error is None, error
        return eval(text)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    root = tmp_path_factory.mktemp("kernel")
    (root / "locks").mkdir()
    environment = {
        **os.environ, "SELFSCHED_RUNS_DIR": str(root / "runs"), "SELFSCHED_LOCK_DIR": str(root / "locks"),
        "BEST": str(root / "best"), "GLOO_FILE": str(root / "gloo"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    made = Kernel(root / "runs", environment)
    _text, error = made.run(SETUP)
    assert error is None, error
    yield made
    made.client.stop_channels()
    made.manager.shutdown_kernel(now=True)


def pids_of(run: Path) -> set[int]:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return {event[key] for event in events for key in ("pid", "warden_pid") if key in event}


def assert_nothing_left(run: Path) -> None:
    pids = pids_of(run)
    assert pids
    wait_for(lambda: not [pid for pid in pids if is_alive(pid)], what="no process left", seconds=20)


def test_a_cell_trains_through_two_one_two_as_without_a_change(kernel: Kernel) -> None:
    text, error = kernel.run("fit('1@0'); uninterrupted = weights(model).clone()")
    assert error is None, text + error
    state = "(trainer.global_step, trainer.current_epoch, best.best_model_path[-20:])"
    uninterrupted = kernel.value(state)
    logger = "L.pytorch.loggers.CSVLogger(os.environ['BEST'] + '-logs')"
    text, error = kernel.run(f"fit('2@0,1@7,2@22', name='changing', logger={logger})")
    assert error is None, text + error
    assert kernel.value("float((weights(model) - uninterrupted).abs().max())") <= 1e-6
    assert kernel.value(state) == uninterrupted
    assert kernel.value("trainer.checkpoint_callback.best_model_path == best.best_model_path")
    assert kernel.value("sorted(trainer.callback_metrics)") == ["loss", "steps_before", "validation_loss"]
    assert kernel.value("trainer.state.status.name") == "FINISHED"
    assert kernel.value("trainer.log_dir == trainer.logger.log_dir") is True
    rows = "open(trainer.log_dir + '/metrics.csv').read().splitlines()"
    assert kernel.value(f"[row for row in {rows} if ',44.0,' in row]"), "the log of the last step is there"
    assert kernel.value("torch.cuda.is_initialized()") is False
    bars = [m for m in kernel.messages if m["msg_type"] == "update_display_data"]
    assert len(bars) < 100
    assert_nothing_left(kernel.runs / "changing")


def test_afterwards_it_tests_validates_and_saves_here(kernel: Kernel) -> None:
    kernel.run("fit('2@0', name='after', epochs=1)")
    here = kernel.value("trainer.test(verbose=False)[0]['test_loss']")
    assert here == pytest.approx(kernel.value("float(trainer.validate(verbose=False)[0]['validation_loss'])"))
    kernel.run("trainer.save_checkpoint(os.environ['BEST'] + '.ckpt')")
    saved = "torch.load(os.environ['BEST'] + '.ckpt', weights_only=False)"
    assert kernel.value(f"{saved}['global_step']") == 15
    assert kernel.value(f"bool(({saved}['state_dict']['layers.2.bias'] == model.layers[2].bias).all())")


def test_a_rank_that_raises_shows_its_own_traceback_once_and_the_kernel_lives(kernel: Kernel) -> None:
    text, error = kernel.run("fit('2@0', name='raising', raise_at=5)")
    assert error is not None
    assert error.count('raise ValueError("boom")') == 1
    assert 'raise ValueError("boom")' not in text
    assert "RankFailed: rank" in error
    assert "raised ValueError: boom" in error
    assert "selfsched/elastic/trainer.py" not in error
    assert kernel.value("1 + 1") == 2
    assert_nothing_left(kernel.runs / "raising")


def test_stop_checkpoints_and_the_next_fit_goes_on(kernel: Kernel) -> None:
    run = kernel.runs / "stopped"
    events = run / "events.jsonl"

    def stop_after_some_steps() -> None:
        wait_for(lambda: events.exists() and '"progressed"' in events.read_text(), what="steps")
        kernel.manager.interrupt_kernel()

    text, error = kernel.run("fit('2@0', name='stopped', epochs=5, step_seconds=0.1)", stop_after_some_steps)
    assert error is not None, text
    words = "Stopped: a Stop ended the run; fit() on the same Trainer goes on from the checkpoint at step"
    assert error.startswith(words)
    assert "KeyboardInterrupt" not in error
    assert_nothing_left(run)
    stopped_at = kernel.value("(trainer.global_step, trainer.current_epoch)")
    assert 0 < stopped_at[0] < 75
    assert stopped_at == (int(error.split("at step")[1]), stopped_at[0] // 15)
    assert kernel.value("float(trainer.callback_metrics['steps_before'])") == stopped_at[0] - 1
    assert kernel.value("(trainer.interrupted, trainer.state.status.name)") == (True, "INTERRUPTED")
    _text, error = kernel.run("model.step_seconds = 0.0; trainer.fit(model, datamodule=Data())")
    assert error is None
    assert kernel.value("trainer.global_step") == 75
    started = [line for line in events.read_text().splitlines() if '"fit_started"' in line]
    assert '"step":0,' not in started[-1]


def test_what_cannot_travel_is_refused_by_name(kernel: Kernel) -> None:
    _text, error = kernel.run(
        "import threading\nmodel.guard = threading.Lock()\ntrainer.fit(model, datamodule=Data())"
    )
    assert error is not None
    assert error.startswith("Refused: module.guard (a _thread.lock) cannot travel")
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("selfsched.Trainer(0)", "Refused: min_devices is 0: a job needs at least 1"),
        ("selfsched.Trainer(3, 2)", "Refused: min_devices (3) is more than max_devices (2)"),
        (
            "selfsched.Trainer(64, 64, plan='64@0', max_epochs=1, accelerator='cpu').fit(Model(), Data())",
            "Unsupported: ",
        ),
        (
            "selfsched.Trainer(2, 2, plan='2@0', max_epochs=1, accelerator='cpu', logger=False)"
            ".fit(Model(), DataLoader(Numbers(8), batch_size=1))",
            "Unsupported: a global batch of 1 (batch_size x 1 device(s)) is divided by no number",
        ),
    ],
    ids=["none", "turned round", "more than there are", "an undividable batch"],
)
def test_wrong_use_is_one_line_in_the_cell(kernel: Kernel, cell: str, shown: str) -> None:
    text, error = kernel.run(cell)
    assert error is not None
    assert error.startswith(shown)
    assert len(error.splitlines()) == 1
    assert "Traceback" not in text


def test_a_killed_kernel_leaves_a_checkpoint_and_no_process(kernel: Kernel) -> None:
    run = kernel.runs / "killed"
    kernel.client.execute("fit('2@0', name='killed', epochs=50, step_seconds=0.1)")
    events = run / "events.jsonl"
    wait_for(lambda: events.exists() and '"progressed"' in events.read_text(), what="steps")
    kernel.manager.provisioner.process.kill()
    wait_for((run / "outcome.json").exists, what="the supervisor to end")
    assert json.loads((run / "outcome.json").read_text())["outcome"] == "stopped"
    assert '"checkpoint_saved"' in events.read_text()
    assert_nothing_left(run)
