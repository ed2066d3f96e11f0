"""One trace under several policies and seeds: what came out, and what was cut short."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from selfsched_broker.core.market import Policy
from selfsched_simulator.engine import Simulation
from selfsched_simulator.metrics import Figures, Finished, Scale, average, finished, summarise
from selfsched_simulator.scenario import Scenario

INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One policy over all seeds."""

    figures: Figures
    """The means over the seeds."""
    spread: dict[str, float]
    """Standard deviations over the seeds, where there are several."""
    ended: tuple[tuple[int, tuple[Finished, ...]], ...]
    """Jobs that have ended, by seed."""
    unfinished: int = 0
    """Jobs that have not ended, over all seeds."""
    partial: str = ""
    """Why it was cut short; empty: it was not."""


def run_all(scenario: Scenario, policies: Sequence[Callable[[], Policy]]) -> list[Run]:
    """Simulate a trace under each policy; a bar on the terminal's stderr shows how far it is.

    An interrupt ends the simulation under way; what has ended by then is in the last run.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    runs: list[Run] = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        for make in policies:
            policy = make()
            task = bar.add_task(policy.name, total=len(scenario.trace.jobs) * scenario.seeds)
            run = _run(scenario, policy, lambda done, task=task: bar.update(task, completed=done))  # type: ignore[misc]
            runs.append(run)
            if run.partial == INTERRUPTED:
                break
    return runs


@contextmanager
def native_output_aside() -> Iterator[None]:
    """HiGHS now and then writes a line to the process's standard output, past Python: to stderr with it."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for cyclic garbage rarely: books are full of what stays, and make next to none."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _run(scenario: Scenario, policy: Policy, progress: Callable[[int], None]) -> Run:
    trace, devices = scenario.trace, scenario.options.cluster.devices
    scale = Scale(kind=trace.kind, devices=devices, jobs=len(trace.jobs))
    figures, ended, partial = [], [], ""
    for number in range(scenario.seeds):
        options, began = scenario.seeded(number), time.monotonic()
        simulation = Simulation(trace.jobs, policy, options)
        before = number * len(trace.jobs)
        try:
            with _rare_collections():
                simulation.run(lambda count, before=before: progress(before + count))  # type: ignore[misc]
            partial = simulation.partial
        except KeyboardInterrupt:
            partial = INTERRUPTED
        rows = finished(list(simulation.jobs.values()))
        wall = time.monotonic() - began
        figures.append(summarise(rows, scale, policy=policy.name, wall_seconds=wall))
        ended.append((options.seed, tuple(rows)))
        if partial:
            break
    means, spread = average(figures)
    return Run(
        figures=means,
        spread=spread,
        ended=tuple(ended),
        unfinished=len(trace.jobs) * len(ended) - sum(len(rows) for _, rows in ended),
        partial=partial,
    )
