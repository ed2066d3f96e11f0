"""Elastic jobs: their truth is a table of measured step times.

A job's work is all epochs of its application, in iterations at its global batch, which is the same on
every placement. On K replicas each takes ceil(batch / K) samples a step. Where that is more than a
replica holds at once (the largest local batch measured there), it accumulates: p passes of ceil(samples
/ p), each but the last without synchronising, so that a step takes step_s + (p - 1) (step_s - sync_s);
step_s and sync_s are interpolated linearly between the local batches measured on that very layout. A
count that would leave a replica fewer samples than were ever measured there cannot be used. So does
Pollux's simulator (OSDI 2021), where the numbers come from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfsched.errors import Refused
from selfsched.protocol import Resume
from selfsched_simulator.cluster import Cluster
from selfsched_simulator.speeds import Counts, Measured, measured, rotated
from selfsched_simulator.tables import number, positive, read_rows, whole
from selfsched_simulator.trace import Trace, TraceJob, in_order, read_common

ELASTIC_COLUMNS = ("arrival_s", "application", "requested_replicas", "global_batch")
_STEP_COLUMNS = ("application", "cluster", "replicas", "placement", "local_batch", "step_s", "sync_s")
_WORK_COLUMNS = ("application", "global_batch", "epoch", "iteration")
_ROUNDING = 1e-8
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """Step and synchronisation seconds over the local batch, on one layout."""

    batches: Floats
    steps: Floats
    syncs: Floats

    def step_seconds(self, samples: int) -> float | None:
        """Of one optimiser step over so many samples a replica; None: fewer than were measured."""
        if samples < float(self.batches[0]):
            return None
        passes = math.ceil(samples / float(self.batches[-1]) - _ROUNDING)
        held = math.ceil(samples / passes - _ROUNDING)
        step, sync = (float(np.interp(held, self.batches, of)) for of in (self.steps, self.syncs))
        return step + (passes - 1) * (step - sync)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """All curves, by (application, model of the cluster, devices on each node)."""

    curves: Mapping[tuple[str, str], Mapping[Counts, Curve]]


@dataclass(frozen=True, slots=True)
class Work:
    """Iterations of a whole run, by application and global batch."""

    iterations: Mapping[str, tuple[Floats, Floats]]

    def of(self, application: str, batch: int) -> float | None:
        """Iterations at a global batch, interpolated; None: outside of what is known."""
        batches, counts = self.iterations.get(application, (np.empty(0), np.empty(0)))
        if not batches.size or not batches[0] <= batch <= batches[-1]:
            return None
        return float(np.interp(batch, batches, counts))


def read_step_times(path: Path) -> StepTimes:
    """Read a table of step times.

    Raises:
        Refused: it cannot be read; the message names line and column.
    """
    points: dict[tuple[str, str], dict[Counts, dict[int, tuple[float, float]]]] = {}
    for line, row in enumerate(read_rows(path, _STEP_COLUMNS, "the table of step times"), start=2):
        step, sync = positive(row, "step_s", line), number(row, "sync_s", line)
        if not 0 <= sync <= step:
            raise Refused(f"line {line}: sync_s is {sync:g}, it must be between 0 and step_s")
        counts = _counts(row["placement"] or "", line)
        if sum(counts) != whole(row, "replicas", line):
            raise Refused(
                f"line {line}: the placement {row['placement']!r} is not of {row['replicas']} replicas"
            )
        key = (row["application"] or "", row["cluster"] or "")
        layout = points.setdefault(key, {}).setdefault(rotated(counts), {})
        layout[whole(row, "local_batch", line)] = (step, sync)
    return StepTimes(
        {key: {counts: _curve(found) for counts, found in layouts.items()} for key, layouts in points.items()}
    )


def _counts(text: str, line: int) -> Counts:
    parts = text.split("+")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise Refused(f"line {line}: placement is {text[:40]!r}, it must be as 1+3: replicas on each node")
    return tuple(int(part) for part in parts)


def _curve(points: Mapping[int, tuple[float, float]]) -> Curve:
    batches = sorted(points)
    steps, syncs = zip(*(points[batch] for batch in batches), strict=True)
    return Curve(np.array(batches, float), np.array(steps, float), np.array(syncs, float))


def read_work(path: Path) -> Work:
    """Read how many iterations each application's epochs take.

    Raises:
        Refused: it cannot be read; the message names line and column.
    """
    ends: dict[str, dict[int, float]] = {}
    for line, row in enumerate(read_rows(path, _WORK_COLUMNS, "the table of convergence"), start=2):
        known = ends.setdefault(row["application"] or "", {})
        batch = whole(row, "global_batch", line)
        known[batch] = max(known.get(batch, 0.0), positive(row, "iteration", line))
    return Work(
        {
            application: (np.array(sorted(known), float), np.array([known[batch] for batch in sorted(known)]))
            for application, known in ends.items()
        }
    )


@dataclass(slots=True)
class _Workshop:
    """Turns rows into jobs; jobs of one application and batch share a truth."""

    steps: StepTimes
    work: Work
    cluster: Cluster
    requested_only: bool
    made: dict[tuple[str, int, int | None], Measured] = field(default_factory=dict)

    def speed(self, application: str, batch: int, only: int | None, line: int) -> Measured:
        """The truth about such a job."""
        key = (application, batch, only)
        if key not in self.made:
            seconds = self._seconds(application, batch, line)
            if only is not None:
                seconds = {where: value for where, value in seconds.items() if sum(where[1]) == only}
            self.made[key] = measured(seconds, several_models=len(self.cluster.models) > 1)
        return self.made[key]

    def _seconds(self, application: str, batch: int, line: int) -> dict[tuple[str, Counts], float]:
        iterations = self.work.of(application, batch)
        if iterations is None:
            raise Refused(f"line {line}: nothing is known of {application!r} at a global batch of {batch}")
        found: dict[tuple[str, Counts], float] = {}
        for model in self.cluster.models:
            for counts, curve in self.steps.curves.get((application, model), {}).items():
                step = curve.step_seconds(math.ceil(batch / sum(counts) - _ROUNDING))
                if step is not None and self._fits(model, counts):
                    found[model, counts] = iterations * step
        if not found:
            models = ", ".join(self.cluster.models)
            raise Refused(
                f"line {line}: no step time of {application!r} at a global batch of {batch} was measured on"
                f" {models} (the cluster's model names a cluster of the table)"
            )
        return found

    def _fits(self, model: str, counts: Counts) -> bool:
        rooms = sorted((n.devices for n in self.cluster.nodes if n.model == model), reverse=True)
        needs = sorted(counts, reverse=True)
        return len(needs) <= len(rooms) and all(
            need <= room for need, room in zip(needs, rooms, strict=False)
        )


def read_elastic(
    path: Path, cluster: Cluster, steps: StepTimes, work: Work, *, requested_only: bool = False
) -> Trace:
    """Read a trace of elastic jobs.

    A job that requests more replicas than the table holds requests the most it holds; the notes say so.

    Args:
        path: the CSV file.
        cluster: its models name clusters of the table of step times.
        steps: the measured step times.
        work: iterations of a whole run.
        requested_only: whether jobs run on the replicas they request and no others.

    Raises:
        Refused: something is wrong with it; the message names line and column.
    """
    workshop = _Workshop(steps, work, cluster, requested_only)
    jobs, lowered = [], []
    for line, row in enumerate(read_rows(path, ELASTIC_COLUMNS, "the trace"), start=2):
        common = read_common(row, line)
        application = (row["application"] or "").strip()
        asked, batch = whole(row, "requested_replicas", line), whole(row, "global_batch", line)
        everywhere = workshop.speed(application, batch, None, line)
        counts = sorted({placement.devices for placement in everywhere.placements})
        gpus = max((n for n in counts if n <= asked), default=counts[0])
        if gpus != asked:
            lowered.append(f"{common.name} ({asked} to {gpus})")
        speed = workshop.speed(application, batch, gpus, line) if requested_only else everywhere
        alone = min(_packed(everywhere, gpus))
        jobs.append(
            TraceJob(
                name=common.name,
                arrival_seconds=common.arrival_seconds,
                account=common.account,
                restart_seconds=common.restart_seconds,
                speed=speed,
                gpus=gpus,
                alone_seconds=alone,
                resume=Resume.SAME_SIZE if requested_only else Resume.ELASTIC,
            )
        )
    notes = []
    if lowered:
        notes.append(
            f"{len(lowered)} jobs request more replicas than were measured, and get the most there are:"
            f" {', '.join(lowered[:5])}{' ...' if len(lowered) > 5 else ''}"
        )
    return Trace(kind="elastic", jobs=in_order(jobs), notes=tuple(notes))


def _packed(speed: Measured, gpus: int) -> list[float]:
    """Seconds on so many devices on as few nodes as were measured."""
    layouts = {where: value for where, value in speed.seconds.items() if sum(where[1]) == gpus}
    fewest = min(len(counts) for _, counts in layouts)
    return [value for (_, counts), value in layouts.items() if len(counts) == fewest]
