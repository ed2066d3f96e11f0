"""Who is said to be on a device without a lease, and what is said to free it."""

from __future__ import annotations

from typing import Any

import pytest
from broker.driver import Driver

from selfsched.protocol import (
    DeviceProcess,
    DeviceReport,
    DeviceView,
    NodeReport,
    ProcessOnNode,
    ReleaseDevices,
)
from selfsched_broker.core import arbiter
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.core.views import cluster_view

GIB = 2**30
SUPERVISOR = ProcessOnNode(node="n", pid=100, session=90, started=1000)


def process(pid: int, account: str | None = "eve", **said: Any) -> DeviceProcess:
    return DeviceProcess(pid=pid, started=1, account=account, **said)


def says(driver: Driver, *processes: DeviceProcess, **said: Any) -> DeviceView:
    """The one device of the node, after the node has said this of it."""
    driver.node_sequence["n"] = driver.node_sequence.get("n", 0) + 1
    state = said.pop("state", "occupied" if processes else "empty")
    device = DeviceReport(
        id="GPU-0", index=0, model="A100", kind="gpu", state=state, processes=processes,
        memory_bytes=80 * GIB, **said,
    )  # fmt: skip
    message = NodeReport(incarnation=1, sequence=driver.node_sequence["n"], devices=(device,))
    driver.do(arbiter.node_report, "n", message)
    driver.settle()
    return view(driver)


def view(driver: Driver) -> DeviceView:
    (found,) = cluster_view(driver.books, driver.ctx).devices
    return found


@pytest.fixture
def driver() -> Driver:
    made = Driver(options=LeaseOptions(term_seconds=60.0))
    says(made)
    return made


def test_u15_whoever_is_on_a_device_that_nobody_holds_is_a_stranger(driver: Driver) -> None:
    small, large = process(7, used_bytes=1), process(8, used_bytes=2, command="python")
    device = says(driver, small, large, memory_used_bytes=3)
    assert device.strangers == (8, 7)
    assert device.state == "quarantined"
    assert device.free_when == "process 8 (python) of eve and 1 more have ended"
    assert (device.memory_used_bytes, device.memory_bytes) == (3, 80 * GIB)


@pytest.mark.parametrize(
    ("job_process", "others", "strangers"),
    [
        (None, (process(5, "ann"), process(7)), (7,)),
        (SUPERVISOR, (process(5, "ada-unix", parents=(101, 100)), process(7, parents=(50,))), (7,)),
        (SUPERVISOR, (process(5, None, session=90), process(7, None, session=91)), (7,)),
        (SUPERVISOR, (process(100, "ada-unix"),), ()),
        (SUPERVISOR, (process(7),), (7,)),
        (None, (process(5, "jovyan"), process(7, "jovyan")), ()),
        (SUPERVISOR.model_copy(update={"node": "pod-3"}), (process(5, "jovyan"),), ()),
    ],
    ids=[
        "another owner", "no descendant", "another session", "the job itself", "alone on it",
        "nobody's name is an account's", "a process elsewhere tells nothing",
    ],
)  # fmt: skip
def test_u4_on_a_held_device_a_stranger_is_who_is_known_to_be_one(
    driver: Driver,
    job_process: ProcessOnNode | None,
    others: tuple[DeviceProcess, ...],
    strangers: tuple[int, ...],
) -> None:
    driver.register("ann", 1, 1, process=job_process)
    device = says(driver, *others)
    assert (device.state, device.account) == ("held", "ann")
    assert device.strangers == strangers
    assert device.free_when == ""
    assert all(shown.parents == () for shown in device.processes)


def test_u9_memory_that_nobody_shows_is_said_with_what_to_do(driver: Driver) -> None:
    device = says(driver, state="occupied", memory_used_bytes=GIB, detail="1024 MiB are in use by no process")
    assert device.free_when.startswith("its memory is given back. If it stays so, an administrator")
    assert says(driver).free_when == ""


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("sick", "an administrator has seen to it, and its node sees it well for 1 min 00 s"),
        ("unknown", "its node can tell again what is on it"),
        ("occupied", "the process that has its lock has ended"),
    ],
)
def test_what_frees_a_device_is_said(driver: Driver, state: str, words: str) -> None:
    assert says(driver, state=state).free_when == words


def test_a_device_that_was_sick_is_watched_for_a_while(driver: Driver) -> None:
    says(driver, state="sick")
    device = says(driver)
    assert device.state == "free"
    assert device.free_when == "it was sick: its node sees it well for 1 min 00 s"


def test_a_silent_node_must_report_again(driver: Driver) -> None:
    driver.now += 60.0
    driver.settle()
    assert view(driver).free_when == "its node reports again"


def test_after_a_restart_nothing_is_known_until_the_node_reports(driver: Driver) -> None:
    driver.books.pulses.clear()
    assert view(driver).free_when == "its node reports"


def test_a_drained_device_names_the_command_that_puts_it_back(driver: Driver) -> None:
    driver.do(arbiter.drain_device, "GPU-0", by="root")
    assert view(driver).free_when.endswith("selfsched-broker devices undrain GPU-0")


def test_d11_a_device_taken_from_the_dead_names_the_process_that_must_be_gone(driver: Driver) -> None:
    driver.register("ann", 1, 1, process=SUPERVISOR)
    driver.now += 46.0
    driver.settle()
    device = says(driver)
    assert device.state == "quarantined"
    assert device.free_when == "its node sees that process 100 of the job that lost it is gone"


def test_a_device_that_was_left_waits_for_one_more_report(driver: Driver) -> None:
    job = driver.register("ann", 1, 1)
    (lease,) = driver.books.leases_of(job)
    message = ReleaseDevices(fence=lease.fence, devices=("GPU-0",))
    driver.do(arbiter.release, lease.id, message)
    assert view(driver).free_when == "its node reports once more that it is empty"
