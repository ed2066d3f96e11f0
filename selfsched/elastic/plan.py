"""Allocations without a broker: a fixed list of them (`--plan`), or what this machine has.

A plan is a comma-separated list of `DEVICES@STEP`: `2@0,1@7,2@45` trains on two devices
from the start, on one from global step 7, on two again from step 45. `DEVICES@FIT:STEP`
names a later `fit` of the same script (`1@2:10`). A cut falls on the first step at or after
the one named at which the training can be left without changing it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from selfsched.elastic.allocation import Allocation, Device, SegmentEnd
from selfsched.elastic.job import JobDescription
from selfsched.errors import Refused
from selfsched.launch import local_devices
from selfsched.protocol import Outcome

_ENTRY = re.compile(r"^(?P<devices>\d+)@(?:(?P<fit>\d+):)?(?P<step>\d+)$")
_MOST_DEVICES = 1024


@dataclass(frozen=True)
class PlannedStretch:
    """From this point of the training on, so many devices."""

    devices: int
    fit: int
    step: int

    @property
    def start(self) -> tuple[int, int]:
        return self.fit, self.step


def parse_plan(text: str) -> tuple[PlannedStretch, ...]:
    """The stretches of a plan, in order.

    Raises:
        Refused: not a plan, no devices in an entry, or entries out of order.

    Example:
        >>> [s.devices for s in parse_plan("2@0,1@7")]
        [2, 1]
    """
    stretches = tuple(_parse_entry(text, entry.strip()) for entry in text.split(","))
    if stretches[0].start != (1, 0):
        raise Refused(f"the plan {text!r} must begin at step 0: {stretches[0].devices}@0,...")
    for earlier, later in pairwise(stretches):
        if later.start <= earlier.start:
            raise Refused(f"the plan {text!r} goes back from step {earlier.step} to {later.step}")
    return stretches


def planned_counts(plan: str | None) -> tuple[int, ...]:
    """The device counts that a plan uses, ascending; none where there is no plan.

    Raises:
        Refused: as `parse_plan`.
    """
    return () if plan is None else tuple(sorted({stretch.devices for stretch in parse_plan(plan)}))


def _parse_entry(text: str, entry: str) -> PlannedStretch:
    found = _ENTRY.match(entry)
    if not found:
        raise Refused(f"{entry!r} in the plan {text!r} is not DEVICES@STEP, as in 2@0,1@7,2@45")
    devices = int(found["devices"])
    if not 1 <= devices <= _MOST_DEVICES:
        raise Refused(f"{entry!r} in the plan {text!r}: a segment needs 1 to {_MOST_DEVICES} devices")
    return PlannedStretch(devices, int(found["fit"] or 1), int(found["step"]))


class Plan:
    """Plays a fixed list of allocations; nothing but the training's own progress moves it on."""

    def __init__(self, stretches: Sequence[PlannedStretch], devices: Sequence[Device]) -> None:
        self._stretches = tuple(stretches)
        self._devices = tuple(devices)
        self._current = 0

    def start(self, job: JobDescription, wake: Callable[[], None]) -> None:
        most = max(stretch.devices for stretch in self._stretches)
        if most > len(self._devices):
            raise Refused(f"the plan asks for {most} devices, but this machine has {len(self._devices)}")

    def wanted(self, now: float) -> Allocation:
        stretch = self._stretches[self._current]
        following = self._stretches[self._current + 1 : self._current + 2]
        return Allocation(
            devices=self._devices[: stretch.devices],
            reason="as planned",
            cut_at=following[0].start if following else None,
        )

    def handle(self, event: Any) -> None:
        """Nothing: the ranks cut themselves where `cut_at` says."""

    def segment_started(self, ordinal: int, devices: tuple[Device, ...]) -> None:
        """Nothing to remember."""

    def segment_ended(self, end: SegmentEnd) -> None:
        """Move on to the stretch in which the training now stands; never back."""
        if end.reason != "planned":
            return
        reached = [i for i, stretch in enumerate(self._stretches) if stretch.start <= (end.fit, end.step)]
        self._current = max([self._current, *reached])

    def status_line(self) -> str | None:
        return None

    def news(self) -> tuple[str, ...]:
        return ()

    def end(self, outcome: Outcome, reason: str) -> None:
        """Nothing is held anywhere."""


def planned(job: JobDescription) -> Plan:
    """The plan that a job names, on this machine.

    Raises:
        Refused: as `parse_plan`.
    """
    assert job.plan is not None
    stretches = parse_plan(job.plan)
    return Plan(stretches, _devices(job, max(stretch.devices for stretch in stretches)))


def unarbitrated(job: JobDescription) -> Plan:
    """All of `max_devices` from beginning to end, with nobody to ask."""
    return Plan([PlannedStretch(job.max_devices, 1, 0)], _devices(job, job.max_devices))


def _devices(job: JobDescription, count: int) -> tuple[Device, ...]:
    """GPUs where there are any; else processes on this machine's cores, as many as asked for."""
    gpus = () if job.accelerator == "cpu" else local_devices.gpus()
    if gpus or job.accelerator == "gpu":
        return gpus
    return local_devices.private_cpu_devices(count)
