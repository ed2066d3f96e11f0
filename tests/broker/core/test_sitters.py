"""A plain program on a GPU: its own CUDA context is there before it can ask for the device."""

from __future__ import annotations

import pytest
from broker.driver import Driver

from selfsched.protocol import (
    DeviceProcess,
    DeviceReport,
    JobState,
    NodeReport,
    ProcessOnNode,
    Resume,
    SetAccount,
)
from selfsched_broker.core import arbiter
from selfsched_broker.core.leases import LeaseOptions

OWN = ProcessOnNode(node="n", pid=100, session=90, started=1000)


def on_device(pid: int = 100, session: int = 90, started: int = 1000) -> DeviceProcess:
    return DeviceProcess(pid=pid, session=session, started=started, account="ann", used_bytes=3 * 2**28)


def reported(driver: Driver, *processes: tuple[DeviceProcess, ...], sequence: int = 1) -> None:
    devices = tuple(
        DeviceReport(
            id=f"GPU-{i}", index=i, model="A100", kind="gpu", processes=found,
            state="occupied" if found else "empty",
        )
        for i, found in enumerate(processes)
    )  # fmt: skip
    driver.do(arbiter.node_report, "n", NodeReport(incarnation=1, sequence=sequence, devices=devices))
    driver.settle()


def plain(driver: Driver, *devices: str, account: str = "ann", process: ProcessOnNode = OWN) -> str:
    job = driver.register(
        account, len(devices), len(devices), resume=Resume.NEVER, stated_seconds=600.0,
        wanted_devices=devices, process=process,
    )  # fmt: skip
    driver.report(job, state=JobState.WAITING)
    return job


@pytest.fixture
def driver() -> Driver:
    return Driver(options=LeaseOptions(term_seconds=60.0))


def test_it_is_given_the_device_that_its_own_process_is_on(driver: Driver) -> None:
    reported(driver, (on_device(),), ())
    job = plain(driver, "GPU-0")
    assert driver.held(job) == ["GPU-0"]
    [lease] = driver.books.leases_of(job)
    assert lease.term_ends_at == pytest.approx(driver.now + 600.0)


def test_it_is_given_it_also_when_the_stranger_beside_it_goes_later(driver: Driver) -> None:
    stranger = on_device(pid=55, session=50)
    reported(driver, (on_device(), stranger))
    job = plain(driver, "GPU-0")
    assert driver.held(job) == []
    reported(driver, (on_device(),), sequence=2)
    driver.now += driver.options.min_auction_seconds
    driver.settle()
    assert driver.held(job) == ["GPU-0"]


def test_ranks_begun_later_in_its_session_are_its_own(driver: Driver) -> None:
    reported(driver, (on_device(),), (on_device(pid=140, started=1200),))
    job = plain(driver, "GPU-0", "GPU-1")
    assert driver.held(job) == ["GPU-0", "GPU-1"]


@pytest.mark.parametrize(
    "processes",
    [
        (on_device(pid=55, session=50),),
        (on_device(), on_device(pid=55, session=50)),
        (on_device(started=999),),
        (on_device(pid=80, started=500),),
        (),
    ],
    ids=["a stranger", "a stranger beside it", "a reused pid", "an older one of its session", "nobody seen"],
)
def test_a_device_that_others_are_on_is_not_given(
    driver: Driver, processes: tuple[DeviceProcess, ...]
) -> None:
    devices = (
        DeviceReport(id="GPU-0", index=0, model="A100", kind="gpu", processes=processes, state="occupied"),
    )
    driver.do(arbiter.node_report, "n", NodeReport(incarnation=1, sequence=1, devices=devices))
    driver.settle()
    job = plain(driver, "GPU-0")
    driver.now += 120.0
    driver.settle()
    assert driver.held(job) == []


def test_a_process_of_the_same_number_on_another_node_is_a_stranger(driver: Driver) -> None:
    reported(driver, (on_device(),))
    assert driver.held(plain(driver, "GPU-0", process=OWN.model_copy(update={"node": "m"}))) == []


def test_a_limit_of_the_account_and_a_drained_device_stand(driver: Driver) -> None:
    reported(driver, (on_device(),), (on_device(pid=200, session=200),), ())
    driver.do(arbiter.set_account, "ann", SetAccount(max_devices=1), by="root")
    driver.do(arbiter.drain_device, "GPU-1", by="root")
    assert driver.held(driver.register("ann", 1, 1)) == ["GPU-2"]
    assert driver.held(plain(driver, "GPU-0")) == []
    other = ProcessOnNode(node="n", pid=200, session=200, started=1000)
    assert driver.held(plain(driver, "GPU-1", account="bob", process=other)) == []


def test_a_device_on_lease_is_given_to_nobody_else_whatever_is_on_it(driver: Driver) -> None:
    """S1: a second program cannot have it by sitting on it."""
    reported(driver, ())
    first = plain(
        driver, "GPU-0", account="bob", process=ProcessOnNode(node="n", pid=7, session=7, started=7)
    )
    reported(driver, (on_device(),), sequence=2)
    second = plain(driver, "GPU-0")
    assert (driver.held(first), driver.held(second)) == (["GPU-0"], [])
