"""Plain Trainers against a real broker with two slots."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from end_to_end.broker_lab import LabHouse, fresh_house, until

from selfsched.protocol import DeviceState, JobState, JobView, Outcome, Resume

PROGRAM = Path(__file__).with_name("held_program.py")
TESTS = PROGRAM.parents[1]
# On whatever cores the tests may use themselves: the broker's slots are of these.
CORES = sorted(os.sched_getaffinity(0))


class Training:
    """One run of the program; its job is named after its directory."""

    def __init__(self, house: LabHouse, name: str, *, devices: int = 1, stated: str = "60s") -> None:
        self.house, self.name, self.directory = house, name, house.root / name
        self.directory.mkdir()
        environment = house.environment | {
            "SELFSCHED_BROKER": f"unix:{house.lab_socket}",
            "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
        }
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(self.directory), "100000", str(devices), stated],
            env=environment, cwd=house.root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def steps(self, rank: int = 0) -> list[str]:
        path = self.directory / f"steps-{rank}"
        return path.read_text().splitlines() if path.exists() else []

    def view(self) -> JobView | None:
        return self.house.shown(self.house.lab_socket).get(self.name)

    def interrupt(self) -> str:
        """Ctrl-C; what it printed."""
        self.process.send_signal(signal.SIGINT)
        return self.ends()

    def ends(self) -> str:
        """What it printed, once it has ended."""
        return self.process.communicate(timeout=60)[0]

    def ends_now(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@dataclass
class Machine:
    """A broker's machine and the trainings on it."""

    house: LabHouse
    trainings: list[Training] = field(default_factory=list)

    def train(self, name: str, **how: Any) -> Training:
        self.trainings.append(Training(self.house, name, **how))
        return self.trainings[-1]


@pytest.fixture
def machine() -> Iterator[Machine]:
    for house in fresh_house(term_seconds="1", min_auction_seconds="0.2"):
        made = Machine(house)
        house.start_lab()
        yield made
        for training in made.trainings:
            training.ends_now()


def held(house: LabHouse) -> int:
    return len(house.devices_in(house.lab_socket, DeviceState.HELD))


@pytest.mark.slow
def test_it_holds_one_slot_beside_another_job_and_leaves_when_its_time_is_over_and_a_third_waits(
    machine: Machine,
) -> None:
    house = machine.house
    ours = machine.train("ours", stated="2s")
    beside = machine.train("beside")
    until(lambda: ours.steps() and beside.steps(), "a first step of both")
    view = until(lambda: (v := ours.view()) and v.state is JobState.RUNNING and v, "shown as running")
    assert (view.resume, len(view.devices)) == (Resume.NEVER, 1)
    cores = [list(v.devices[0].cores) for v in (view, beside.view()) if v is not None]
    assert sorted(cores) == [[core] for core in CORES[:2]]
    assert [training.steps()[0].split(" ", 1)[1] for training in (ours, beside)] == list(map(str, cores))
    until(lambda: (v := ours.view()) and v.forecast is not None and v.step > 0, "its forecast is shown")
    third = machine.train("third")
    said = [line for line in ours.ends().splitlines() if "The training stopped" in line]
    assert "its stated time is over and others wait" in said[0]
    assert (ours.directory / f"selfsched-{view.job}.ckpt").exists()
    until(third.steps, "a step of the one that waited")
    ended = ours.view()
    assert ended is not None
    assert (ended.state, ended.outcome, ended.devices) == (JobState.ENDED, Outcome.CANCELLED, ())
    third.interrupt()
    until(lambda: held(house) == 1, "its slot is given back")
    shown = third.view()
    assert shown is not None
    assert (shown.state, shown.outcome) == (JobState.ENDED, Outcome.CANCELLED)


@pytest.mark.slow
def test_the_ranks_of_one_trainer_hold_a_slot_each_and_leave_at_the_same_step(machine: Machine) -> None:
    wide = machine.train("wide", devices=2, stated="2s")
    until(lambda: wide.steps(0) and wide.steps(1), "a step of both ranks")
    assert held(machine.house) == 2
    assert {steps[0].split(" ", 1)[1] for steps in (wide.steps(0), wide.steps(1))} == {
        str([core]) for core in CORES[:2]
    }
    waits = machine.train("waits")
    said = wide.ends()
    last = wide.steps(0)[-1].split()[0]
    assert wide.steps(1)[-1].split()[0] == last
    assert f"rank 0 ended after step {last}" in said
    assert f"rank 1 ended after step {last}" in said
    assert list(wide.directory.glob("selfsched-*.ckpt"))
    until(waits.steps, "a step of the one that waited")
