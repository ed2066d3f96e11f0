"""The nodes' side of a simulation: what their agents report, and which of them are down."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable

from selfsched.protocol import DeviceReport, NodeReport
from selfsched_simulator.cluster import Cluster
from selfsched_simulator.faults import Outage


class Machines:
    """All nodes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sequences: Counter[str] = Counter()
        self._words: dict[str, tuple[tuple[DeviceReport, ...], tuple[DeviceReport, ...]]] = {
            node.name: (node.reports("empty"), node.reports("occupied")) for node in cluster.nodes
        }
        self._down_until: dict[str, float] = {}
        self._left: set[str] = set()

    def report(self, name: str, used: Collection[str]) -> NodeReport | None:
        """What a node says next; None: it is down.

        Args:
            name: the node.
            used: devices on which somebody sits, on this node or another.
        """
        if name in self._down_until:
            return None
        self._sequences[name] += 1
        empty, occupied = self._words[name]
        devices = tuple(o if o.id in used else e for e, o in zip(empty, occupied, strict=True))
        return NodeReport(incarnation=1, sequence=self._sequences[name], devices=devices)

    def note_left(self, devices: Iterable[str]) -> None:
        """Somebody left devices: their nodes are to say when they are empty."""
        self._left.update(self._cluster.node_of(device).name for device in devices)

    def take_left(self) -> list[str]:
        """Nodes that have been noted since."""
        left, self._left = sorted(self._left), set()
        return left

    def fall(self, outage: Outage) -> None:
        """A node dies (again): it comes back when the last outage is over."""
        self._down_until[outage.node] = max(outage.until_seconds, self._down_until.get(outage.node, 0.0))

    def rise(self, name: str, now: float) -> bool:
        """Whether a node is up again."""
        if self._down_until.get(name, math.inf) > now:
            return False
        del self._down_until[name]
        return True

    @property
    def any_comes_back(self) -> bool:
        """Whether a node is down that will be up again."""
        return any(math.isfinite(until) for until in self._down_until.values())

    def dead_among(self, devices: Iterable[str]) -> set[str]:
        """Devices whose node is down."""
        if not self._down_until:
            return set()
        return {device for device in devices if self._cluster.node_of(device).name in self._down_until}
