"""From the words of a command to what is simulated: the trace, the cluster, the times, the faults."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from selfsched.errors import Refused
from selfsched_simulator.cluster import MOST_DEVICES, Cluster, one_node, parse_cluster
from selfsched_simulator.elastic import read_elastic, read_step_times, read_work
from selfsched_simulator.faults import FaultOptions, read_outages
from selfsched_simulator.job import Habits
from selfsched_simulator.logs import Format, LogOptions, format_of, read_log
from selfsched_simulator.mixed import read_mixed, read_throughput
from selfsched_simulator.options import SimulationOptions
from selfsched_simulator.trace import Kind, Trace, kind_of, read_rigid

MOST_SECONDS = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """What a person asked for, unchecked. Seconds, where nothing else is said."""

    gpus: int | None = None
    cluster: str | None = None
    steptimes: Path | None = None
    convergence: Path | None = None
    throughput: Path | None = None
    requested: bool = False
    visits: bool = False
    round_seconds: float | None = None
    term: float | None = None
    report: float | None = None
    report_change: float = 0.0
    skips_calm_ticks: bool = False
    restart: float = 20.0
    noise: float = 0.0
    row_noise: float = 0.0
    seed: int = 1
    seeds: int = 1
    mtbf: float | None = None
    repair: float = 3600.0
    failures: Path | None = None
    lost: float = 0.0
    late: float = 0.0
    checkpoint: float = 600.0
    limit: float = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A trace and how it is simulated; `options` are those of the first seed."""

    trace: Trace
    options: SimulationOptions
    seeds: int

    def seeded(self, number: int) -> SimulationOptions:
        """The options of one of the seeds, from 0."""
        habits = replace(self.options.habits, seed=self.options.habits.seed + number)
        return replace(self.options, habits=habits)


def build_scenario(path: Path, words: Words) -> Scenario:
    """Read the trace and check everything.

    Raises:
        Refused: something is wrong; the message says what.
    """
    _check_numbers(words)
    cluster = choose_cluster(words.gpus, words.cluster)
    trace = _read(path, kind_of(path), cluster, words)
    if words.visits:
        jobs = tuple(replace(job, knows_its_speed=False) for job in trace.jobs)
        trace = replace(trace, jobs=jobs)
    return Scenario(trace=trace, options=build_options(cluster, words), seeds=words.seeds)


def build_replay(path: Path, words: Words, options: LogOptions, kind: Format | None) -> Scenario:
    """Read a log of jobs that have run and check everything.

    Raises:
        Refused: something is wrong; the message says what.
    """
    from selfsched_simulator.history import read_devices  # brings the store's tables along

    _check_numbers(words)
    _between("--first", options.first, 1, 1e8)
    _between("--elastic", options.elastic, 0, 1)
    kind = kind or format_of(path)
    if kind == "own" and words.gpus is None and words.cluster is None:
        cluster = read_devices(path)
    else:
        cluster = choose_cluster(words.gpus, words.cluster)
    trace = read_log(path, cluster, options, kind)
    return Scenario(trace=trace, options=build_options(cluster, words), seeds=words.seeds)


def build_options(cluster: Cluster, words: Words) -> SimulationOptions:
    """What is simulated, besides the trace."""
    defaults = SimulationOptions(cluster=cluster)
    return SimulationOptions(
        cluster=cluster,
        round_seconds=words.round_seconds,
        term_seconds=words.term or defaults.term_seconds,
        report_seconds=defaults.report_seconds if words.report is None else words.report,
        report_change=words.report_change,
        skips_calm_ticks=words.skips_calm_ticks,
        habits=Habits(
            restart_seconds=words.restart,
            noise=words.noise,
            row_noise=words.row_noise,
            seed=words.seed,
            checkpoint_seconds=words.checkpoint,
        ),
        faults=FaultOptions(
            mtbf_seconds=math.inf if words.mtbf is None else words.mtbf,
            repair_seconds=words.repair,
            outages=read_outages(words.failures, cluster) if words.failures else (),
            lost=words.lost,
            late_seconds=words.late,
        ),
        limit_seconds=words.limit,
    )


def choose_cluster(gpus: int | None, cluster: str | None) -> Cluster:
    """The cluster of `--gpus` or `--cluster`.

    Raises:
        Refused: neither or both were given, or one is wrong.
    """
    if gpus is not None and cluster is not None:
        raise Refused("--gpus and --cluster both say how large the cluster is: give one of them")
    if cluster is not None:
        return parse_cluster(cluster)
    if gpus is None:
        raise Refused("--gpus is missing: say how many devices the cluster has, or --cluster, as 16x4:aws")
    if not 1 <= gpus <= MOST_DEVICES:
        raise Refused(f"--gpus is {gpus}, it must be between 1 and {MOST_DEVICES}")
    return one_node(gpus)


def _read(path: Path, kind: Kind, cluster: Cluster, words: Words) -> Trace:
    tables = {"steptimes": words.steptimes, "convergence": words.convergence, "throughput": words.throughput}
    needed = {"rigid": (), "elastic": ("steptimes", "convergence"), "mixed": ("throughput",)}[kind]
    for name, table in tables.items():
        if table is None and name in needed:
            raise Refused(f"{path} is a trace of {kind} jobs, which need --{name} FILE (and --cluster)")
        if table is not None and name not in needed:
            raise Refused(f"--{name} is of no use for {path}, a trace of {kind} jobs")
    if kind != "rigid" and words.cluster is None:
        raise Refused(f"{path} is a trace of {kind} jobs, which need --cluster: its models are the table's")
    if words.requested and kind != "elastic":
        raise Refused(f"--requested is of no use for {path}: jobs of {kind} traces run on one size only")
    if kind == "rigid":
        return read_rigid(path, cluster)
    if kind == "elastic":
        assert words.steptimes is not None
        assert words.convergence is not None
        steps, work = read_step_times(words.steptimes), read_work(words.convergence)
        return read_elastic(path, cluster, steps, work, requested_only=words.requested)
    assert words.throughput is not None
    return read_mixed(path, cluster, read_throughput(words.throughput))


def _check_numbers(words: Words) -> None:
    _between("--round", words.round_seconds, 1, 1e6, "seconds")
    _between("--term", words.term, 1, 1e6, "seconds")
    _between("--report", words.report, 1, 1e6, "seconds")
    _between("--restart", words.restart, 0, 1e6, "seconds")
    _between("--mtbf", words.mtbf, 60, MOST_SECONDS, "seconds")
    _between("--repair", words.repair, 1, MOST_SECONDS, "seconds")
    _between("--checkpoint", words.checkpoint, 0, 1e6, "seconds")
    _between("--late", words.late, 0, 3600, "seconds")
    _between("--limit", words.limit, 0.1, 1e7, "seconds")
    _between("--noise", words.noise, 0, 5)
    _between("--row-noise", words.row_noise, 0, 5)
    _between("--lost", words.lost, 0, 0.9)
    _between("--seeds", words.seeds, 1, 1000)
    if words.round_seconds is not None and words.term is not None:
        raise Refused("--round and --term both say how long a term is: give one of them")
    if words.round_seconds is not None and words.restart >= words.round_seconds:
        raise Refused(
            f"--restart {words.restart:g} is not shorter than --round {words.round_seconds:g}: nothing would"
            " advance"
        )
    if words.seed < 0:
        raise Refused(f"--seed is {words.seed}, it must not be negative")


def _between(name: str, value: float | None, least: float, most: float, unit: str = "") -> None:
    if value is not None and not least <= value <= most:
        raise Refused(f"{name} is {value:g}, it must be between {least:g} and {most:.10g} {unit}".rstrip())
