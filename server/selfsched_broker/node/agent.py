"""The agent of one machine: says what its devices are, and proves them empty.

In the broker's own process when the broker serves its own machine; it needs no privilege. It
only looks: it ends no process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from selfsched.protocol import DeviceReport, NodeInstructions, NodeReport
from selfsched_broker.node.gpus import NvmlGpus
from selfsched_broker.node.processes import Processes
from selfsched_broker.node.slots import CpuSlots


class DeviceSource(Protocol):
    """A kind of devices of this machine."""

    def read(self) -> tuple[DeviceReport, ...]:
        """All of them as they are now."""
        ...


class Agent:
    """Speaks for the devices of one machine. Used by one thread.

    Args:
        name: of the node.
        sources: its devices.
        incarnation: number of this start, higher than at every start before; None: the time.
        processes: the machine's processes.
    """

    def __init__(
        self,
        name: str,
        sources: Sequence[DeviceSource],
        *,
        incarnation: int | None = None,
        processes: Processes | None = None,
    ) -> None:
        self._name = name
        self._sources = tuple(sources)
        # Wall-clock milliseconds: the one number that also rises over reboots. A clock set back
        # makes the broker wait for it; until then the node counts as silent, which is safe.
        self._incarnation = incarnation if incarnation is not None else time.time_ns() // 1_000_000
        self._processes = processes or Processes()
        self._sequence = 0
        self._watched = NodeInstructions(next_report_seconds=0.0)
        self._states: dict[str, tuple[str, float]] = {}

    @property
    def name(self) -> str:
        """Of the node."""
        return self._name

    def report(self) -> NodeReport:
        """What the node sees now, whole."""
        self._sequence += 1
        # First the processes, then the devices: what was gone stays gone while we look.
        ended = self._ended_leases()
        devices = [self._with_age(report) for source in self._sources for report in source.read()]
        return NodeReport(
            incarnation=self._incarnation,
            sequence=self._sequence,
            devices=tuple(devices),
            ended_leases=ended,
        )

    def follow(self, instructions: NodeInstructions) -> None:
        """Take the broker's answer: whose processes to look for."""
        self._watched = instructions

    def _ended_leases(self) -> tuple[str, ...]:
        alive = {
            watched.lease
            for watched in self._watched.watched
            if self._processes.is_gone(watched.process) is not True
        }
        return tuple(lease for lease in self._watched.watched_leases if lease not in alive)

    def _with_age(self, report: DeviceReport) -> DeviceReport:
        now = time.monotonic()
        state, since = self._states.get(report.id, ("", now))
        if state != report.state:
            since = now
        self._states[report.id] = (report.state, since)
        return report.model_copy(update={"since_seconds": now - since})


def local_agent(name: str, *, slots: int | None = None, incarnation: int | None = None) -> Agent:
    """The agent of this machine: its GPUs where the driver shows any, else its CPU slots.

    Args:
        name: of the node.
        slots: offer so many CPU slots, whatever GPUs there are.
        incarnation: see `Agent`.

    Raises:
        Refused: fewer than one slot.
    """
    if slots is None:
        gpus = NvmlGpus()
        if gpus.read():
            return Agent(name, [gpus], incarnation=incarnation)
    return Agent(name, [CpuSlots(name, slots)], incarnation=incarnation)
