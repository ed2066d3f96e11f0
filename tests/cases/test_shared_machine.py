"""Users of one machine through real brokers: simultaneous starts (U3), a card kept for nothing (U1, U8)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from end_to_end.broker_lab import LabHouse, LabJob, fresh_house, until

from selfsched.protocol import DeviceState, JobState

pytestmark = pytest.mark.slow
BURNING_RANK = Path(__file__).with_name("burning_rank.py")
WARNED_SECONDS, LOST_SECONDS = 0.8, 2.4


@pytest.fixture
def house() -> Iterator[LabHouse]:
    yield from fresh_house(
        idle_warned_seconds=str(WARNED_SECONDS), idle_lost_seconds=str(LOST_SECONDS), report_seconds="0.5",
        max_notice_seconds="1", calls_per_second="1000",
    )  # fmt: skip


def stretches(job: LabJob) -> dict[tuple[int, int], tuple[str, float, float]]:
    """For each rank of each segment: its device, and from when to when it made steps."""
    devices = {event["ordinal"]: event["devices"] for event in job.events("segment_began")}
    found: dict[tuple[int, int], tuple[str, float, float]] = {}
    for step in job.steps():
        key = (step.segment, step.rank)
        _, began, ended = found.get(key, ("", step.began_at, step.ended_at))
        device = devices[step.segment][step.rank]
        found[key] = (device, min(began, step.began_at), max(ended, step.ended_at))
    return found


def clashes(jobs: list[LabJob]) -> list[tuple[str, str, str]]:
    """Devices on which two jobs made steps at one time."""
    spans = [(job.name, *span) for job in jobs for span in stretches(job).values()]
    return [
        (device, one, other)
        for one, device, began, ended in spans
        for other, on, from_, to in spans
        if one < other and device == on and began < to and from_ < ended
    ]


def test_simultaneous_starts_of_two_users_never_meet_on_a_device(house: LabHouse) -> None:
    neighbours = fresh_house()
    neighbour = next(neighbours)
    try:
        neighbour.locks = house.locks  # one machine has one directory of device locks
        # Long enough that they would meet, if nothing kept them apart.
        jobs = [
            home.run(name, steps=240, devices="2") for name, home in (("mine", house), ("theirs", neighbour))
        ]
        assert [job.finish() for job in jobs] == [0, 0]
        used = {span[0] for job in jobs for span in stretches(job).values()}
        assert len(used) == 2
        assert clashes(jobs) == []
        assert house.private_pid() != neighbour.private_pid(), "two brokers that know nothing of each other"
    finally:
        next(neighbours, None)


def start_burning(house: LabHouse) -> LabJob:
    command = [sys.executable, str(BURNING_RANK), "40"]
    client = subprocess.Popen(
        [sys.executable, "-m", "selfsched", "run", "--devices", "1", "--name", "idler", "--", *command],
        env=house.environment, cwd=house.root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    job = LabJob("idler", house.root, client)
    house.jobs.append(job)
    return job


class Administrator:
    """Asks the lab's broker as the user who runs it."""

    def __init__(self, house: LabHouse) -> None:
        transport = httpx.HTTPTransport(uds=str(house.lab_socket))
        self._client = httpx.Client(transport=transport, base_url="http://broker")

    def get(self, path: str) -> Any:
        answer = self._client.get(f"/v1/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def actions(self) -> list[str]:
        """What is in the audit, oldest first."""
        entries = sorted(self.get("admin/audit"), key=lambda entry: -entry["ago_seconds"])
        return [entry["action"] for entry in entries if entry["action"].startswith("idle")]

    def idle_leases(self) -> list[float]:
        """Seconds without a step, for each lease."""
        return [lease["idle_seconds"] for lease in self.get("admin/leases")]

    def close(self) -> None:
        self._client.close()


def test_load_without_steps_is_warned_then_loses_its_device_and_is_charged(house: LabHouse) -> None:
    house.start_lab()
    with closing(Administrator(house)) as administrator:
        idler = start_burning(house)
        until(administrator.actions, "the warning")
        until(
            lambda: [s for s in administrator.idle_leases() if s >= WARNED_SECONDS],
            "administrators see how long a lease has been idle",
        )
        until(lambda: house.shown(house.lab_socket)["idler"].state is JobState.PAUSED, "its device is taken")
        until(lambda: len(house.devices_in(house.lab_socket, DeviceState.FREE)) == 2, "proven empty")
        assert administrator.actions() == ["idle_warned", "idle_lost"]
        assert any("made no step" in reason for reason in house.shown(house.lab_socket)["idler"].reasons)
        used = administrator.get("accounts/me")["used_device_seconds"]
        assert used >= LOST_SECONDS, "what was held for nothing is charged"
        idler.terminate()
