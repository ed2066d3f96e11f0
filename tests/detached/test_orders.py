"""A detached run before a broker: its lease is its supervisor's, and orders reach it as any other."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Literal

import pytest
from end_to_end.broker_lab import LabHouse, fresh_house, until

from selfsched.client import BrokerClient
from selfsched.elastic.run_directory import RunDirectory
from selfsched.protocol import ControlJob, DeviceState, JobState, JobView, Outcome
from selfsched.settings import BrokerAddress

pytestmark = pytest.mark.slow


@pytest.fixture
def house() -> Iterator[LabHouse]:
    yield from fresh_house(calls_per_second="1000")  # a test asks more often than people do


def view(house: LabHouse) -> JobView:
    return house.shown(house.lab_socket)["night"]


def order(house: LabHouse, action: Literal["pause", "resume", "stop"]) -> None:
    """What the panel sends when its owner asks for it."""
    with BrokerClient(BrokerAddress(url="http://broker", socket=house.lab_socket)) as client:
        client.control(view(house).job, ControlJob(action=action), key=uuid.uuid4().hex)


def test_a_run_without_its_client_keeps_its_lease_and_obeys_the_panel(house: LabHouse) -> None:
    house.start_lab()
    job = house.run("night", steps=50_000, options=("--detach",))
    until(job.steps, "steps")
    job.client.kill()
    job.finish()
    until(lambda: job.events("user_left"), "its client to be missed")
    made = len(job.steps())
    until(lambda: len(job.steps()) > made, "more steps")
    assert view(house).devices, "nothing was released"
    order(house, "pause")
    until(lambda: len(house.devices_in(house.lab_socket, DeviceState.FREE)) == 2, "a pause frees its devices")
    made = len(job.steps())
    order(house, "resume")
    until(lambda: len(job.steps()) > made, "steps after the pause")
    order(house, "stop")
    directory = RunDirectory(job.directory)
    until(lambda: not directory.is_held, "its end")
    outcome = directory.read_outcome()
    assert outcome is not None
    assert outcome.message == "stopped by its owner"
    assert outcome.step > 0, "with a checkpoint"
    assert (view(house).state, view(house).outcome) == (JobState.ENDED, Outcome.CANCELLED)
    until(lambda: len(house.devices_in(house.lab_socket, DeviceState.FREE)) == 2, "every device is free")
