"""A notebook on a shared machine: a real kernel that trains through the lab's broker.

T24 and U1 (an idle kernel holds nothing), U2 (a closed browser), U11 (what a notebook defines
travels, nothing is forked off it), T10 to T12 (Stop, and Stop again), T14 (one bar).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from end_to_end.broker_lab import LabHouse, fresh_house, is_alive, until

from selfsched.client import BrokerClient
from selfsched.launch.locks import MachineLocks
from selfsched.protocol import ControlJob, DeviceState, JobState, Outcome
from selfsched.settings import BrokerAddress

test_plan_notebook = pytest.importorskip("end_to_end.test_plan_notebook", reason="needs jupyter_client")
pytestmark = pytest.mark.slow

SETUP = """
import os
forks = []
os.register_at_fork(before=lambda: forks.append(1))

import logging, time, warnings
import torch
torch.set_num_threads(2)
(torch.randn(600, 600) @ torch.randn(600, 600)).sum()  # threads that no fork would survive
import lightning as L
import selfsched
from torch.utils.data import DataLoader
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

scale = 0.5
half = lambda values: scale * values  # of the notebook alone, as is all below

class Model(L.LightningModule):
    def __init__(self, step_seconds=0.0, hangs_at=-1):
        super().__init__()
        self.step_seconds, self.hangs_at = step_seconds, hangs_at
        self.layer = torch.nn.Linear(4, 1)
        self.activation = lambda values: torch.tanh(half(values))
    def training_step(self, batch, index):
        while self.global_step == self.hangs_at:
            print("hanging", flush=True)
            time.sleep(0.05)
        time.sleep(self.step_seconds)
        loss = (self.activation(self.layer(batch)) - batch.sum(1, keepdim=True)).square().mean()
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-2)

def make(name, most=2, steps=24, **of_the_model):
    class Own(Model):
        "A class of a function."
    global model, data, trainer
    L.seed_everything(7, verbose=False)
    model = Own(**of_the_model)
    numbers = [torch.randn(4) for _ in range(8 * steps)]
    data = DataLoader(numbers, batch_size=8, shuffle=True, collate_fn=lambda rows: torch.stack(rows))
    trainer = selfsched.Trainer(
        1, most, name=name, max_epochs=1, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_model_summary=False,
    )
"""


class Notebook:
    """A kernel in a house with a lab's broker."""

    def __init__(self, house: LabHouse) -> None:
        self.house = house
        self.kernel = test_plan_notebook.Kernel(house.root / "runs", house.environment)
        self.shown: list[dict[str, Any]] = []

    def run(self, code: str, while_running: Any = None) -> tuple[str, str | None]:
        found: tuple[str, str | None] = self.kernel.run(code, while_running)
        self.shown = self.kernel.messages
        return found

    def control(self, name: str, action: str) -> None:
        """Tell the broker what its owner wants of a job."""
        with BrokerClient(BrokerAddress(url="http://broker", socket=self.house.lab_socket)) as client:
            job = self.house.shown(self.house.lab_socket)[name].job
            client.control(job, ControlJob(action=action), key=uuid.uuid4().hex)  # type: ignore[arg-type]

    def value(self, expression: str) -> Any:
        return self.kernel.value(expression)

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        path = self.house.root / "runs" / name / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def held(self) -> list[str]:
        """Devices that are anybody's."""
        free = self.house.devices_in(self.house.lab_socket, DeviceState.FREE)
        return sorted({"0", "1"} - {device[-1] for device in free})

    def bars(self) -> list[dict[str, Any]]:
        """What the last cell displayed."""
        kinds = ("display_data", "update_display_data")
        return [message["content"] for message in self.shown if message["msg_type"] in kinds]

    def heads(self) -> list[str]:
        """Where the run stood, as the picture in the last cell said it, one after the other."""
        states = [
            message["content"]["data"].get("state", {})
            for message in self.shown
            if message["msg_type"] in ("comm_open", "comm_msg")
        ]
        return [state["head"] for state in states if "head" in state]

    def close(self) -> None:
        self.kernel.client.stop_channels()
        self.kernel.manager.shutdown_kernel(now=True)
        for path in (self.house.root / "runs").glob("*/events.jsonl"):
            for started in self.events(path.parent.name, "supervisor_started"):
                if is_alive(started["pid"]):
                    self.house.kill(started["pid"])


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    houses = fresh_house(calls_per_second="1000")  # a test asks more often than people do
    house = next(houses)
    house.start_lab()
    made = Notebook(house)
    text, error = made.run(SETUP)
    assert error is None, text + error
    yield made
    made.close()
    next(houses, None)


def test_an_open_kernel_holds_devices_only_while_fit_runs(notebook: Notebook) -> None:
    house = notebook.house
    _, error = notebook.run("make('plain', steps=100, step_seconds=0.04)")
    assert error is None, error
    assert notebook.held() == []
    assert house.shown(house.lab_socket) == {}, "a Trainer that was only made is nobody's job"

    def pause_for_a_moment() -> None:
        until(notebook.held, "devices are held while it trains")
        until(lambda: notebook.events("plain", "progressed"), "steps")
        notebook.control("plain", "pause")
        until(lambda: notebook.held() == [], "a job that pauses holds nothing")
        notebook.control("plain", "resume")

    text, error = notebook.run("trainer.fit(model, data)", pause_for_a_moment)
    assert error is None, text + error
    shown = notebook.bars()
    until(lambda: notebook.held() == [], "every device is free again")
    job = house.shown(house.lab_socket)["plain"]
    assert (job.state, job.outcome) == (JobState.ENDED, Outcome.FINISHED)
    locks = MachineLocks(house.locks)
    devices = {name for began in notebook.events("plain", "segment_began") for name in began["devices"]}
    assert devices
    assert all(locks.is_free(device) for device in devices)
    assert notebook.value("trainer.global_step") == 100, "the kernel lives, with its variables"
    assert notebook.value("len(forks)") == 0, "nothing was forked off a process with threads"
    assert_one_picture(shown, notebook.heads())
    assert len(notebook.events("plain", "segment_began")) >= 2


def assert_one_picture(shown: list[dict[str, Any]], heads: list[str]) -> None:
    """One display over all segments, that never goes back, with the time that remains; still at the end.

    A second one keeps the picture for who reloads the page, and is empty in the end.
    """
    lasts = {content["transient"]["display_id"]: content["data"] for content in shown}
    (last,) = (data for data in lasts.values() if data["text/plain"])
    assert all(set(data.values()) == {""} for data in lasts.values() if data is not last)
    assert len(lasts) <= 2
    steps = [int(head.partition("step ")[2].partition("/")[0]) for head in heads if "step " in head]
    assert len(steps) > 2
    assert steps == sorted(steps)
    said = [head for head in heads if "done about" in head or " left (" in head]
    assert said, "when it is done is the forecast's"
    assert "100/100" in last["text/plain"]
    assert "<svg" in last["text/html"], "a picture stays in the notebook without its kernel"
    assert "application/vnd.jupyter.widget-view+json" not in last


def test_stop_twice_ends_what_hangs_and_nothing_else(notebook: Notebook) -> None:
    run = notebook.house.root / "runs" / "hanging"

    def stop_twice() -> None:
        output = run / "output.log"
        until(lambda: output.exists() and "hanging" in output.read_text(), "a step that hangs")
        notebook.kernel.manager.interrupt_kernel()
        until(lambda: notebook.events("hanging", "stop_asked"), "the first Stop arrives")
        notebook.kernel.manager.interrupt_kernel()

    text, error = notebook.run("kept = 41\nmake('hanging', most=1, hangs_at=3)\ntrainer.fit(model, data)",
                               stop_twice)  # fmt: skip
    assert error is not None, text
    assert error.startswith("Stopped: "), error
    assert "\n" not in error, "one named line"
    for noise in ("Traceback", "KeyboardInterrupt", "ImportError", "Exception ignored"):
        assert noise not in text + error
    assert "once more ends it at once" in text
    until(lambda: not [pid for pid in test_plan_notebook.pids_of(run) if is_alive(pid)], "no process is left")
    until(lambda: notebook.held() == [], "every device is free again")
    stopped_cell = notebook.shown[0]["parent_header"]["msg_id"]
    client = notebook.kernel.client
    asked, parents = client.execute("print(kept + 1)"), []
    while not parents or parents[-1] != (asked, "idle"):
        heard = client.get_iopub_msg(timeout=60)
        state = heard["content"].get("execution_state", heard["content"].get("text"))
        parents.append((heard["parent_header"].get("msg_id"), state))
    assert (asked, "42\n") in parents, "the kernel lives, with its variables"
    assert stopped_cell not in {parent for parent, _ in parents}, "a dead run prints no more"


def test_a_closed_browser_stops_nothing_and_is_not_idle(notebook: Notebook) -> None:
    kernel, house = notebook.kernel, notebook.house
    kernel.client.execute("make('unwatched', most=1, steps=40, step_seconds=0.03)\ntrainer.fit(model, data)")
    until(lambda: notebook.events("unwatched", "progressed"), "steps")
    kernel.client.stop_channels()
    until((house.root / "runs" / "unwatched" / "outcome.json").exists, "it trains to its end")
    kernel.client = kernel.manager.client()
    kernel.client.start_channels()
    kernel.client.wait_for_ready(timeout=60)
    assert notebook.value("trainer.global_step") == 40
    assert house.shown(house.lab_socket)["unwatched"].outcome is Outcome.FINISHED
