"""A notebook's run that outlives its kernel, in real kernels: U10, and what else may happen to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from supervisor.runs import is_alive, wait_for

from selfsched.elastic.checkpoints import CheckpointStore
from selfsched.elastic.found_runs import going_on_of
from selfsched.elastic.job import JobDescription
from selfsched.elastic.run_directory import RunDirectory

notebooks = pytest.importorskip("end_to_end.test_plan_notebook", reason="needs jupyter_client")
pytestmark = pytest.mark.slow

SETUP = """
import logging, os, time, warnings
import torch
import lightning as L
import selfsched
from torch.utils.data import DataLoader, TensorDataset
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Data(L.LightningDataModule):
    def train_dataloader(self):
        inputs = torch.randn(240, 4, generator=torch.Generator().manual_seed(1))
        return DataLoader(TensorDataset(inputs), batch_size=8, shuffle=True)
    def test_dataloader(self):
        return DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=8)

class Model(L.LightningModule):
    "Of this notebook alone."
    def __init__(self, step_seconds=0.0, raise_at=-1, gate=None):
        super().__init__()
        self.step_seconds, self.raise_at, self.gate = step_seconds, raise_at, gate
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        if self.global_step == self.raise_at:
            raise ValueError("boom")
        if self.gate and self.global_step == 9:
            print("at the gate", flush=True)
            while not os.path.exists(self.gate):
                time.sleep(0.02)
        time.sleep(self.step_seconds)
        loss = (self.layer(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()
        self.log("loss", loss)
        return loss
    def test_step(self, batch, index):
        self.log("test_loss", (self.layer(batch[0]) - 4).square().mean())
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)

def fit(name=None, detach=None, epochs=1, plan="1@0", **of_the_model):
    L.seed_everything(7, verbose=False)
    global model, trainer
    model = Model(**of_the_model)
    trainer = selfsched.Trainer(
        1, 2, plan=plan, name=name, max_epochs=epochs, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_model_summary=False,
    )
    trainer.fit(model, datamodule=Data(), detach=detach)
"""


class House:
    """Where runs lie, and the kernels that start and follow them."""

    def __init__(self, root: Path) -> None:
        self.runs = root / "runs"
        self.root = root
        (root / "locks").mkdir()
        self.environment = {
            **os.environ, "SELFSCHED_RUNS_DIR": str(self.runs), "SELFSCHED_LOCK_DIR": str(root / "locks"),
            "OMP_NUM_THREADS": "1", "JPY_SESSION_NAME": str(root / "night.ipynb"),
        }  # fmt: skip
        self._kernels: list[Any] = []

    def kernel(self) -> Any:
        made = notebooks.Kernel(self.runs, self.environment)
        self._kernels.append(made)
        return made

    def has_told(self, name: str, kind: str) -> bool:
        events = self.runs / name / "events.jsonl"
        return events.exists() and kind in events.read_text()

    def wait_for_steps(self, name: str) -> None:
        wait_for(lambda: self.has_told(name, '"kind":"progressed"'), what=f"steps of {name}")

    def wait_at_gate(self, name: str) -> None:
        """Until its tenth step waits to be let through."""
        output = self.runs / name / "output.log"
        wait_for(lambda: output.exists() and "at the gate" in output.read_text(), what=f"{name} at its gate")

    def ended(self, name: str) -> RunDirectory:
        """The run, once its supervisor is gone."""
        directory = RunDirectory(self.runs / name)
        wait_for(lambda: directory.read_outcome() and not directory.is_held, what=f"the end of {name}")
        return directory

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "selfsched", *words], env=self.environment, text=True, capture_output=True,
            timeout=60,
        )  # fmt: skip

    def close(self) -> None:
        for kernel in self._kernels:
            kernel.client.stop_channels()
            kernel.manager.shutdown_kernel(now=True)
        for run in self.runs.glob("*"):
            for pid in notebooks.pids_of(run):
                if is_alive(pid):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("house"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def second(house: House) -> Any:
    """The kernel after the one that was killed; what a notebook defines is not defined in it at first."""
    return house.kernel()


@pytest.fixture(scope="module")
def notebook(second: Any) -> Any:
    """The same kernel, once it has run the notebook's first cell."""
    assert second.run(SETUP)[1] is None
    return second


@pytest.fixture(scope="module")
def night(house: House) -> RunDirectory:
    """A run in its tenth step, which goes on when its kernel has been killed."""
    first = house.kernel()
    first.run(SETUP)
    first.client.execute(f"fit('night', detach=True, gate={str(house.root / 'night')!r})")
    house.wait_at_gate("night")
    assert going_on_of(str(house.root / "night.ipynb"), house.runs) == ("night",)
    first.manager.provisioner.process.kill()
    wait_for(lambda: house.has_told("night", '"user_left"'), what="the kernel to be missed")
    found = RunDirectory(house.runs / "night")
    assert found.is_held
    (house.root / "night").touch()
    return found


def newest_weights(directory: RunDirectory) -> dict[str, Any]:
    """Of the run's newest checkpoint, read as plain Lightning reads it."""
    checkpoint = CheckpointStore(directory.path / "fits" / "1").newest()
    assert checkpoint is not None
    state: dict[str, Any] = torch.load(checkpoint.lightning_path, weights_only=False)["state_dict"]
    return state


def assert_weights(kernel: Any, expression: str, directory: RunDirectory) -> None:
    there = newest_weights(directory)
    here = kernel.value(f"{{name: weight.tolist() for name, weight in {expression}.state_dict().items()}}")
    assert here == {name: weight.tolist() for name, weight in there.items()}


def test_with_nothing_to_attach_to_it_says_so_in_one_line(second: Any) -> None:
    _text, error = second.run("import selfsched\nselfsched.attach()")
    assert error is not None
    assert error.startswith("Refused: there is no detached run in ")
    _text, error = second.run("selfsched.attach('never')")
    assert error is not None
    assert error.startswith("Refused: there is no run 'never' in ")
    assert len(error.splitlines()) == 1


def test_u10_a_killed_kernels_run_goes_on_and_the_next_kernel_has_its_model(
    house: House, night: RunDirectory, second: Any
) -> None:
    assert second.run("import selfsched")[1] is None
    text, error = second.run("run = selfsched.attach()")
    assert error is None, text + error
    pictures = [m["content"]["data"] for m in second.messages if m["msg_type"] == "update_display_data"]
    assert "30/30" in pictures[-1]["text/plain"]
    assert "finished after" in pictures[-1]["text/plain"]
    assert "run night, started" in text
    assert second.value("run.outcome") == "finished"
    assert not house.has_told("night", '"stop_asked"')
    assert_weights(second, "run.model", house.ended("night"))
    assert second.value("(type(run.model).__name__, run.trainer.global_step)") == ("Model", 30)
    assert second.value("run.trainer.state.status.name") == "FINISHED"
    assert second.value("list(run.callback_metrics)") == ["loss"]
    assert second.run("tested = run.trainer.test(verbose=False)")[1] is None
    assert second.value("list(tested[0])") == ["test_loss"]
    listed = house.command("runs")
    assert "night" in listed.stdout
    assert "finished" in listed.stdout


def test_stop_leaves_a_run_again_and_again_and_it_goes_on(house: House, notebook: Any) -> None:
    def stop_the_cell() -> None:
        house.wait_for_steps("left")
        notebook.manager.interrupt_kernel()

    text, error = notebook.run("fit('left', detach=True, epochs=40, step_seconds=0.2)", stop_the_cell)
    assert "the run left outlives this process" in text
    assert error is not None
    assert error.startswith("Detached: the run left goes on without this process; selfsched.attach('left')")
    assert "`selfsched stop left` ends it" in error
    assert len(error.splitlines()) == 1

    def interrupt() -> None:
        heard = notebook.client.get_iopub_msg
        wait_for(lambda: heard(timeout=60)["msg_type"] == "display_data", what="a picture")
        notebook.manager.interrupt_kernel()

    _text, error = notebook.run("selfsched.attach('left')", interrupt)
    assert error is not None
    assert error.startswith("Detached: ")
    directory = RunDirectory(house.runs / "left")
    assert directory.is_held
    assert not house.has_told("left", '"stop_asked"')
    _text, error = notebook.run("selfsched.attach('left', wait=False)")
    assert error is not None
    assert error.startswith("CheckpointUnusable: the run left has left no checkpoint yet")
    told = house.command("stop", "left")
    assert told.returncode == 0, told.stderr
    assert "stopped; checkpoint at step" in told.stderr
    text, error = notebook.run("run = selfsched.attach('left', Model())")
    assert error is None, text + error
    assert "the run was stopped; it is at step" in text
    assert_weights(notebook, "run.model", house.ended("left"))
    code = "run.model.step_seconds = 0.0; run.trainer.fit(run.model, run.datamodule)"
    assert notebook.run(code)[1] is None
    assert notebook.value("run.trainer.global_step") == 1200


def test_what_the_training_raises_is_raised_by_fit_and_by_attach_alike(house: House, notebook: Any) -> None:
    notebook.run("os.environ['SELFSCHED_DETACH'] = '1'")
    _text, at_fit = notebook.run("fit('raising', raise_at=5)")
    notebook.run("del os.environ['SELFSCHED_DETACH']")
    assert JobDescription.read(house.runs / "raising").detached
    _text, again = notebook.run("selfsched.attach('raising')")
    assert at_fit is not None
    assert at_fit.count('raise ValueError("boom")') == 1
    assert "raised ValueError: boom" in at_fit
    assert again == at_fit


def test_a_supervisor_that_was_killed_is_said_and_the_run_goes_on_when_asked(
    house: House, notebook: Any
) -> None:
    """As where the machine went down: no word of the end is left, and a checkpoint is (of step 7)."""

    def kill_the_supervisor() -> None:
        house.wait_at_gate("lost")
        os.kill(told("supervisor_started")[0]["pid"], signal.SIGKILL)

    def told(kind: str) -> list[dict[str, Any]]:
        path = house.runs / "lost" / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    gate = str(house.root / "lost")
    code = f"fit('lost', detach=True, plan='1@0,2@7', gate={gate!r})"
    _text, error = notebook.run(code, kill_the_supervisor)
    assert error is not None
    assert error.startswith("RankFailed: the run's supervisor died (signal 9); its ranks ended with it. ")
    _text, error = notebook.run("selfsched.attach('lost')")
    assert error is not None
    assert error.startswith("RankFailed: the run lost ended without a word: its supervisor was killed")
    assert len(told("segment_began")) == 2
    assert "selfsched.attach('lost', resume=True) goes on from step 7" in error
    Path(gate).touch()
    text, error = notebook.run("run = selfsched.attach('lost', resume=True)")
    assert error is None, text + error
    first, *later = [event["step"] for event in told("fit_started")]
    assert (first, set(later)) == (0, {7})
    assert notebook.value("(run.outcome, run.trainer.global_step)") == ("finished", 30)
    assert_weights(notebook, "run.model", house.ended("lost"))


def test_a_module_that_does_not_fit_and_a_payload_that_is_gone_are_said(
    night: RunDirectory, notebook: Any
) -> None:
    _text, error = notebook.run("selfsched.attach('night', torch.nn.Linear(2, 2))")
    assert error is not None
    assert error.startswith("Refused: these weights do not fit the module: ")
    night.payload.unlink()
    _text, error = notebook.run("selfsched.attach('night')")
    assert error is not None
    assert error.startswith("Refused: the module of the run night was not kept")
    _text, error = notebook.run("run = selfsched.attach('night', Model())")
    assert error is None
    assert_weights(notebook, "run.model", night)
