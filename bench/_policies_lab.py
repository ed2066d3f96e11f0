"""Random labs for `bench.policies`, and the settings that are varied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from selfsched.protocol import Resume
from selfsched_broker.core.market import FairnessOptions
from selfsched_broker.core.policies import policy_named
from selfsched_simulator.cluster import parse_cluster
from selfsched_simulator.job import Habits
from selfsched_simulator.options import SimulationOptions
from selfsched_simulator.runs import run_all
from selfsched_simulator.scenario import Scenario
from selfsched_simulator.speeds import by_count
from selfsched_simulator.trace import Trace, TraceJob

CLUSTER = "2x8"
DEVICES = 16
JOBS = 60
MEDIAN_SECONDS, SPREAD = 1500.0, 1.1
"""Of the time on one device, or of a gang's: lognormal."""
GANG_SIZES, GANG_PARTS = (1, 2, 4, 8), (0.5, 0.25, 0.17, 0.08)
ELASTIC_COUNTS = (1, 2, 4, 8)
POLICIES = ("selfsched", "themis")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One setting with one value; times in seconds."""

    setting: str
    value: str
    policies: tuple[str, ...] = POLICIES
    jobs: int = JOBS
    seeds: int = 3
    load: float = 0.9
    """Work that arrives, over what the devices can do."""
    elastic: float = 0.5
    """Part of the jobs that may be resized."""
    term_seconds: float = 300.0
    round_seconds: float | None = None
    habits: Habits = field(default_factory=lambda: Habits(restart_seconds=20.0, noise=0.2))
    fairness: FairnessOptions = field(default_factory=FairnessOptions)


def cases(quick: bool = False) -> Iterator[Case]:
    """All that are compared; the first is how things are unless something is said."""
    every = list(_cases())
    if quick:
        every = [replace(case, jobs=20, seeds=1) for case in every[:2]]
    yield from every


def _cases() -> Iterator[Case]:
    usual = Case(setting="usual", value="")
    yield usual
    for knob in (0.0, 0.5, 0.95):
        fairness = FairnessOptions(fairness_knob=knob)
        yield replace(usual, setting="f", value=f"{knob:g}", policies=("themis",), fairness=fairness)
    for term in (60.0, 120.0, 900.0, 1800.0):
        yield replace(usual, setting="term", value=f"{term:g} s", term_seconds=term)
    for length in (120.0, 300.0, 900.0):
        yield replace(usual, setting="rounds only", value=f"{length:g} s", round_seconds=length)
    for restart in (2.0, 60.0, 180.0):
        habits = replace(usual.habits, restart_seconds=restart)
        yield replace(usual, setting="restart", value=f"{restart:g} s", habits=habits)
    for noise in (0.0, 0.5, 1.0):
        yield replace(usual, setting="noise", value=f"{noise:g}", habits=replace(usual.habits, noise=noise))
    for part in (0.0, 1.0):
        yield replace(usual, setting="elastic", value=f"{part:.0%}", elastic=part)
    for load in (0.5, 0.7, 1.2):
        yield replace(usual, setting="load", value=f"{load:g}", load=load)


def lab(case: Case, seed: int) -> Trace:
    """The jobs of a seed. The same draws whatever the setting: only what it says is different."""
    rng = np.random.default_rng(seed)
    draws = [
        (
            rng.exponential(), rng.normal(), rng.random(), rng.choice(GANG_SIZES, p=GANG_PARTS),
            rng.uniform(0.6, 0.95),
        )
        for _ in range(case.jobs)
    ]  # fmt: skip
    seconds = [float(MEDIAN_SECONDS * np.exp(SPREAD * normal)) for _, normal, *_ in draws]
    work = sum(
        time * (1 if chance < case.elastic else size)
        for time, (_, _, chance, size, _) in zip(seconds, draws, strict=True)
    )
    gap = work / case.jobs / DEVICES / case.load
    now, jobs = 0.0, []
    for number, (wait, _, chance, size, exponent) in enumerate(draws):
        is_elastic = chance < case.elastic
        # An elastic job's time is that on one device: it has as much work as a gang of the same draw.
        times = {n: seconds[number] / n**exponent for n in ELASTIC_COUNTS} if is_elastic else {}
        gpus = 2 if is_elastic else int(size)
        times = times or {gpus: seconds[number]}
        jobs.append(
            TraceJob(
                name=f"job-{number:03d}", arrival_seconds=now, gpus=gpus, alone_seconds=times[gpus],
                speed=by_count(times, parse_cluster(CLUSTER)),
                resume=Resume.ELASTIC if is_elastic else Resume.SAME_SIZE,
            )
        )  # fmt: skip
        now += float(wait) * gap
    return Trace(kind="elastic" if case.elastic else "rigid", jobs=tuple(jobs))


def figures_of(case: Case, policy: str) -> dict[str, float]:
    """The means over the seeds."""
    total: dict[str, float] = {}
    for seed in range(1, case.seeds + 1):
        options = SimulationOptions(
            cluster=parse_cluster(CLUSTER), term_seconds=case.term_seconds, round_seconds=case.round_seconds,
            habits=replace(case.habits, seed=seed), fairness=case.fairness,
        )  # fmt: skip
        scenario = Scenario(trace=lab(case, seed), options=options, seeds=1)
        (run,) = run_all(scenario, [lambda: policy_named(policy)])
        for name, value in asdict(run.figures).items():
            if isinstance(value, float | int):
                total[name] = total.get(name, 0.0) + value / case.seeds
    return total
