"""What devices do, in the panel and in `show()`: a real agent on GPUs of the stand-in library."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from broker.live_broker import register, until_leased
from broker.node.stand_in_gpus import Locks, Machine, build_library, own_pynvml

import selfsched
from browser.conftest import Lab, a_lab
from browser.page import Page
from selfsched.protocol import NodeInstructions, ProcessOnNode
from selfsched_broker.node.agent import Agent
from selfsched_broker.node.gpus import NvmlGpus
from selfsched_broker.node.processes import Processes

pytestmark = pytest.mark.slow

BOX = "box"
FIRST, SECOND = "GPU-8f6c2f6e-aaaa-0000", "GPU-1d2c3b4a-bbbb-1111"
EMPTY = (f"{FIRST} A100 3 0 -", f"{SECOND} A100 3 0 -")
TROUBLED = "Devices that are not as they should be"


class Owned(Processes):
    """The machine's processes, some of which are another user's."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: dict[int, str] = {}

    def account_of(self, pid: int) -> str | None:
        return self.owners.get(pid) or super().account_of(pid)


@dataclass
class Box:
    """A node with two GPUs and its agent, which reports when the test says so."""

    lab: Lab
    machine: Machine
    processes: Owned
    agent: Agent

    def reports(self, *gpus: str) -> None:
        """The driver shows these GPUs (`Machine.has`), and the agent says so."""
        self.machine.has(*gpus)
        answer = self.lab.broker.admin.post(f"/v1/nodes/{BOX}/report", content=self.agent.report().to_json())
        assert answer.status_code == 200, answer.text
        self.agent.follow(NodeInstructions.model_validate_json(answer.content))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab before a broker whose own machine has nothing to lease."""
    with a_lab(tmp_path_factory, devices=0) as made:
        yield made


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def box(lab: Lab, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "machine"))
    processes = Owned()
    gpus = NvmlGpus(locks=Locks(), processes=processes, library=own_pynvml(library, monkeypatch))
    box = Box(lab, Machine(tmp_path / "machine"), processes, Agent(BOX, [gpus], processes=processes))
    yield box
    box.reports(*EMPTY)


@contextmanager
def a_process() -> Iterator[int]:
    """The pid of a process in a session of its own."""
    command = [sys.executable, "-c", "import time; time.sleep(300)"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def holder() -> Iterator[int]:
    """The process of a job."""
    with a_process() as pid:
        yield pid


@pytest.fixture
def another() -> Iterator[int]:
    """The process of a stranger."""
    with a_process() as pid:
        yield pid


def test_t22_where_no_device_was_reported_the_panel_says_so(tab: Page) -> None:
    tab.open_panel()
    tab.sees("No machine has reported a device to the broker.")
    tab.sees("A machine without a GPU is offered as CPU slots")
    tab.sees("None runs or waits.")
    tab.panel.get_by_text("Which broker").click()
    tab.sees(re.compile("the one of your lab on this machine"))
    tab.sees(re.compile("^To ask another one, set SELFSCHED_BROKER"))


def test_u4_u5_u15_whose_memory_it_is_is_said_of_a_held_gpu(
    box: Box, tab: Page, holder: int, another: int, axe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.reports(*EMPTY)
    process = ProcessOnNode(node=BOX, pid=holder, session=holder, started=1)
    job = register(box.lab.broker.admin, "train", process=process, wanted_devices=(FIRST,))
    until_leased(box.lab.broker.admin, job)
    box.processes.owners[another] = "eve"
    box.reports(f"{FIRST} A100 43008 0 {holder},{another}", EMPTY[1])
    panel = tab.open_panel()
    told = panel.get_by_label(TROUBLED)
    stranger = rf"process {another} \(python.*\) of eve"
    told.get_by_text(re.compile(rf"1\.0 GiB of its 80\.0 GiB of memory .*: {stranger}")).wait_for()
    told.get_by_text("GPU 0 on box (A100) GPU-8f6c2f6e").wait_for()
    tab.sees(re.compile("cannot be taken over"))
    panel.locator("summary").get_by_text("Devices", exact=True).click()
    tab.sees(re.compile(r"held by .+, job .*train"))
    tab.sees("42.0 GiB of 80.0 GiB of memory in use, 50% busy")
    tab.sees(re.compile(rf"process {holder} .*: 1\.0 GiB$"))
    tab.shoot("devices")
    tab.page.add_script_tag(path=str(axe))
    found = tab.page.evaluate("() => axe.run('#selfsched-panel', {resultTypes: ['violations']})")
    assert [(fault["id"], fault["nodes"][0]["html"][:120]) for fault in found["violations"]] == []
    monkeypatch.setenv("SELFSCHED_LAB_SOCKET", str(box.lab.broker.running.addresses.socket))
    shown = repr(selfsched.show())
    assert "GPU 0 on box (A100, GPU-8f6c2f6e): 42.0 GiB of 80.0 GiB of memory in use; 50% busy" in shown
    assert re.search(stranger + ", 1.0 GiB, without a lease", shown)


def test_u9_u15_a_device_that_is_left_out_says_since_when_why_and_what_frees_it(
    box: Box, tab: Page, another: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.processes.owners[another] = "eve"
    box.reports(f"{FIRST} A100 900 0 {another}", f"{SECOND} A100 20480 0 -")
    panel = tab.open_panel()
    told = panel.get_by_label(TROUBLED)
    told.get_by_text(re.compile("left out of offers for .+, until it is proven empty")).first.wait_for()
    stranger = rf"process {another} \(python.*\) of eve"
    told.get_by_text(re.compile(f"Offered again when: {stranger} has ended")).wait_for()
    told.get_by_text("20480 MiB are in use by no process that can be seen").wait_for()
    told.get_by_text(re.compile("its memory is given back. If it stays so, an administrator")).wait_for()
    monkeypatch.setenv("SELFSCHED_LAB_SOCKET", str(box.lab.broker.running.addresses.socket))
    markup = selfsched.show()._repr_html_()
    assert "<caption>Left out of offers</caption>" in markup
    assert "in use without a lease: " in markup
    box.reports(*EMPTY)
    told.wait_for(state="detached")
    tab.sees(re.compile("2 of 2 devices free"))


def test_who_is_no_administrator_is_told_how_many_devices_are_left_out(
    box: Box, tab: Page, another: int
) -> None:
    def as_a_user(route: Any) -> None:
        hello = route.fetch().json()
        route.fulfill(json={**hello, "account": {**hello["account"], "admin": False}})

    tab.page.route("**/selfsched/api/hello", as_a_user)
    box.reports(f"{FIRST} A100 900 0 {another}", EMPTY[1])
    tab.open()
    panel = tab.open_panel()
    tab.sees("1 device is left out of offers, or has somebody on it without a lease; see Devices.")
    assert panel.get_by_label(TROUBLED).count() == 0
    tab.page.unroute_all(behavior="wait")
