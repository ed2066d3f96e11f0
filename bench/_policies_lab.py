"""The settings that `bench.policies` varies, and what comes of each in the room of `_labs`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace

from bench._labs import ROOM, mixed_jobs
from selfsched_broker.core.market import FairnessOptions
from selfsched_broker.core.policies import policy_named
from selfsched_simulator.cluster import parse_cluster
from selfsched_simulator.job import Habits
from selfsched_simulator.options import SimulationOptions
from selfsched_simulator.runs import run_all
from selfsched_simulator.scenario import Scenario
from selfsched_simulator.trace import Trace

JOBS = 60
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
    return mixed_jobs(case.jobs, seed, load=case.load, elastic=case.elastic)


def figures_of(case: Case, policy: str) -> dict[str, float]:
    """The means over the seeds."""
    total: dict[str, float] = {}
    for seed in range(1, case.seeds + 1):
        options = SimulationOptions(
            cluster=parse_cluster(ROOM), term_seconds=case.term_seconds, round_seconds=case.round_seconds,
            habits=replace(case.habits, seed=seed), fairness=case.fairness,
        )  # fmt: skip
        scenario = Scenario(trace=lab(case, seed), options=options, seeds=1)
        (run,) = run_all(scenario, [lambda: policy_named(policy)])
        for name, value in asdict(run.figures).items():
            if isinstance(value, float | int):
                total[name] = total.get(name, 0.0) + value / case.seeds
    return total
