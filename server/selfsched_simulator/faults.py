"""What goes wrong in a simulation: nodes that die, messages that come late or never.

Everything is drawn from the seed, for each node and each job by itself, so that a fault does not
depend on the policy that is simulated.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selfsched.errors import Refused
from selfsched_simulator.cluster import Cluster
from selfsched_simulator.tables import number, read_rows

_OUTAGE_COLUMNS = ("node", "at_s")


@dataclass(frozen=True, slots=True)
class Outage:
    """A node that is gone for a while."""

    node: str
    at_seconds: float
    until_seconds: float
    """Infinity: it never comes back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultOptions:
    """What goes wrong, and how often."""

    mtbf_seconds: float = math.inf
    """Mean time between the failures of one node."""
    repair_seconds: float = 3600.0
    outages: tuple[Outage, ...] = ()
    """Besides those that are drawn."""
    lost: float = 0.0
    """Part of the jobs' reports that never arrive."""
    late_seconds: float = 0.0
    """Mean delay of a report that arrives."""

    @property
    def any(self) -> bool:
        """Whether anything goes wrong at all."""
        return (
            math.isfinite(self.mtbf_seconds) or bool(self.outages) or self.lost > 0 or self.late_seconds > 0
        )


NO_FAULTS = FaultOptions()


def read_outages(path: Path, cluster: Cluster) -> tuple[Outage, ...]:
    """Read a list of failures: `node`, `at_s`, and perhaps `repair_s` (empty: it never comes back).

    Raises:
        Refused: it cannot be read, or names a node that is not there.
    """
    names = {node.name for node in cluster.nodes}
    outages = []
    for line, row in enumerate(read_rows(path, _OUTAGE_COLUMNS, "the list of failures"), start=2):
        node, at = (row["node"] or "").strip(), number(row, "at_s", line)
        if node not in names:
            known = ", ".join(sorted(names)[:4])
            raise Refused(f"line {line}: there is no node {node[:40]!r}; they are called {known} ...")
        repair = number(row, "repair_s", line) if (row.get("repair_s") or "").strip() else math.inf
        if at < 0 or repair <= 0:
            raise Refused(f"line {line}: at_s must not be negative, repair_s must be above 0")
        outages.append(Outage(node, at, at + repair))
    return tuple(sorted(outages, key=lambda outage: (outage.at_seconds, outage.node)))


def outages_of(cluster: Cluster, options: FaultOptions, seed: int) -> list[Iterator[Outage]]:
    """Each node's outages in order, without end where they are drawn."""
    streams: list[Iterator[Outage]] = [iter(options.outages)]
    if math.isfinite(options.mtbf_seconds):
        streams += [_drawn(node.name, options, seed) for node in cluster.nodes]
    return streams


def _drawn(node: str, options: FaultOptions, seed: int) -> Iterator[Outage]:
    rng, at = generator(node, seed), 0.0
    while True:
        at += float(rng.exponential(options.mtbf_seconds))
        yield Outage(node, at, at + options.repair_seconds)
        at += options.repair_seconds


def generator(name: str, seed: int) -> np.random.Generator:
    """Random numbers of one node or job."""
    return np.random.default_rng([seed, int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")])


@dataclass(slots=True)
class Post:
    """The way of one job's reports to the broker."""

    options: FaultOptions
    rng: np.random.Generator
    hears: bool = True
    """Its last report is at the broker, so an answer would reach it at once."""
    answered_at: float = 0.0
    """When it sent the last report that was answered: its own deadline counts from there."""
    lost: int = 0

    def delay_seconds(self) -> float | None:
        """How late the next report arrives; None: never."""
        if self.options.lost and self.rng.random() < self.options.lost:
            self.lost += 1
            return None
        late = self.options.late_seconds
        return float(self.rng.exponential(late)) if late else 0.0


def posts(names: Sequence[str], options: FaultOptions, seed: int) -> dict[str, Post]:
    """A post for each job, by its name in the trace."""
    return {name: Post(options, generator(f"post {name}", seed)) for name in names}
