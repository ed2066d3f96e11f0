"""How fast a job truly is: the seconds of its whole run wherever its devices lie.

This is the hidden truth. The broker never sees it, only what a job bids and reports. A job bids
for *placements* (so many devices on so many nodes), of which a layout is one instance: four
devices on two nodes may be 1+3 or 2+2. What it bids for a placement is the mean of the layouts
that were measured; what it gets is the time of the very layout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

from selfsched.protocol import Placement
from selfsched_simulator.cluster import Cluster, Layout

Counts = tuple[int, ...]
"""Devices on each node."""


class Speed(Protocol):
    """The truth about a job."""

    @property
    def placements(self) -> Mapping[Placement, float]:
        """What it can bid for, fewest devices first: seconds of the whole run there."""
        ...

    def run_seconds(self, layout: Layout) -> float:
        """Seconds of the whole run on a layout; infinity where it cannot run."""
        ...


@dataclass(frozen=True, slots=True)
class ByCount:
    """A job to which only the number of devices matters."""

    seconds: Mapping[int, float]
    placements: Mapping[Placement, float]

    def run_seconds(self, layout: Layout) -> float:
        """Seconds of the whole run; infinity on a number it cannot run on."""
        return self.seconds.get(sum(count for _, count in layout), math.inf)


def by_count(seconds: Mapping[int, float], cluster: Cluster | None = None) -> ByCount:
    """A job that does not care where its devices lie.

    Args:
        seconds: of the whole run, by device count.
        cluster: where it shall run: it bids for as few nodes as hold the devices, and one more. None:
            everything fits on one node.
    """
    placements: dict[Placement, float] = {}
    for count in sorted(seconds):
        fewest = cluster.fewest_nodes(count) if cluster else 1
        if fewest is None:
            continue
        most = min(count, fewest + 1, len(cluster.nodes)) if cluster else 1
        for nodes in range(fewest, most + 1):
            placements[Placement(devices=count, nodes=nodes)] = seconds[count]
    return ByCount(dict(seconds), placements)


@dataclass(frozen=True, slots=True)
class Measured:
    """A job whose time was measured on layouts, by model.

    A layout that was not measured has the time of the slowest measured one of as many devices, on as
    many nodes if there is one, else on the most. Devices of several models run in step with the
    slowest.
    """

    seconds: Mapping[tuple[str, Counts], float]
    """Of the whole run; the counts as `rotated` puts them."""
    placements: Mapping[Placement, float]
    _slowest: Mapping[tuple[str, int, int], float] = field(default_factory=dict)
    """By model, devices and nodes."""

    def run_seconds(self, layout: Layout) -> float:
        """Seconds of the whole run; infinity where it cannot run."""
        counts = tuple(count for _, count in layout)
        return max((self._on(model, counts) for model in {model for model, _ in layout}), default=math.inf)

    def _on(self, model: str, counts: Counts) -> float:
        exact = self.seconds.get((model, rotated(counts)))
        if exact is not None:
            return exact
        alike = self._slowest.get((model, sum(counts), len(counts)))
        if alike is not None:
            return alike
        others = [
            (nodes, seconds)
            for (kind, devices, nodes), seconds in self._slowest.items()
            if (kind, devices) == (model, sum(counts))
        ]
        return max(others)[1] if others else math.inf


def measured(seconds: Mapping[tuple[str, Counts], float], *, several_models: bool) -> Measured:
    """A job measured on layouts.

    Args:
        seconds: of the whole run, by model and devices on each node.
        several_models: whether its bid must name the model.
    """
    groups: dict[tuple[str, int, int], list[float]] = {}
    for (model, counts), value in seconds.items():
        groups.setdefault((model, sum(counts), len(counts)), []).append(value)
    placements = {
        Placement(devices=devices, nodes=nodes, model=model if several_models else None): fmean(values)
        for (model, devices, nodes), values in sorted(groups.items(), key=lambda item: (item[0][1:], item[0]))
    }
    known = {(model, rotated(counts)): value for (model, counts), value in seconds.items()}
    return Measured(known, placements, {key: max(values) for key, values in groups.items()})


def rotated(counts: Counts) -> Counts:
    """The smallest rotation: a ring of all-reduce looks the same from each of its nodes."""
    return min(counts[at:] + counts[:at] for at in range(len(counts))) if counts else counts
