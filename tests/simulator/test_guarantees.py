"""What `themis` and `selfsched` guarantee over many auctions, in virtual time, against the broker's own code.

*Sharing incentive*: jobs that are all there at the start are held against a static division, in which each
would have had its share (4 devices over 6 jobs) from beginning to end. The bounds are those of
docs/policies.md. *No starvation*: a long run ends although shorter ones keep coming.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from selfsched.protocol import Resume
from selfsched_broker.core.market import Policy
from selfsched_broker.core.policies import policy_named
from selfsched_broker.core.policies.selfsched import Selfsched, Weights
from selfsched_simulator.cluster import one_node
from selfsched_simulator.engine import Simulation
from selfsched_simulator.job import Habits, SimulatedJob
from selfsched_simulator.options import SimulationOptions
from selfsched_simulator.speeds import by_count
from selfsched_simulator.trace import TraceJob

DEVICES, JOBS, TERM = 4, 6, 120.0
SHARE = DEVICES / JOBS


def trace_job(name: str, arrival: float, seconds: Mapping[int, float]) -> TraceJob:
    return TraceJob(
        name=name, arrival_seconds=arrival, speed=by_count(seconds), gpus=max(seconds),
        alone_seconds=seconds[max(seconds)],
        resume=Resume.ELASTIC if len(seconds) > 1 else Resume.SAME_SIZE,
    )  # fmt: skip


def simulate(jobs: list[TraceJob], policy: Policy, devices: int) -> dict[str, SimulatedJob]:
    options = SimulationOptions(
        cluster=one_node(devices), term_seconds=TERM, habits=Habits(restart_seconds=5.0)
    )
    simulation = Simulation(jobs, policy, options)
    return {job.row.name: job for job in simulation.run()}


def table(kind: str, rng: np.random.Generator) -> dict[int, float]:
    """Seconds of a whole run by device count."""
    seconds, scaling = float(rng.uniform(300, 6000)), float(rng.uniform(0.5, 0.95))
    if kind == "narrow":
        return {1: seconds}
    if kind == "gangs":
        return {int(rng.choice([1, 1, 2, 4])): seconds}
    return {count: seconds / count**scaling for count in (1, 2, 4)}


def on_its_share(seconds: Mapping[int, float]) -> float:
    """Of the whole run on two thirds of a device: its smallest count, for that part of the time."""
    smallest = min(seconds)
    return seconds[smallest] * smallest / SHARE


# Times its share's time that a run may take, besides two terms.
BOUNDS = {
    ("narrow", "themis"): 1.1, ("narrow", "selfsched"): 2.3,
    ("gangs", "themis"): 3.5, ("gangs", "selfsched"): 2.9,
    ("elastic", "themis"): 3.0, ("elastic", "selfsched"): 1.0,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "policy"), BOUNDS)
def test_no_job_is_worse_off_than_on_a_static_share_beyond_a_bound(kind: str, policy: str) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        tables = {f"j{n}": table(kind, rng) for n in range(JOBS)}
        jobs = simulate([trace_job(n, 0.0, t) for n, t in tables.items()], policy_named(policy), DEVICES)
        for name, seconds in tables.items():
            latest = BOUNDS[kind, policy] * on_its_share(seconds) + 2 * TERM
            assert (jobs[name].finished_at or np.inf) <= latest, f"{name} of seed {seed}"


def lateness(job: SimulatedJob, jobs: Mapping[str, SimulatedJob], devices: int) -> float:
    """Its completion over the time alone, times the jobs per device that lived meanwhile, on average."""
    since, until = job.row.arrival_seconds, job.finished_at or np.inf
    lived = sum(
        max(0.0, min(until, other.finished_at or np.inf) - max(since, other.row.arrival_seconds))
        for other in jobs.values()
    )
    crowd = max(1.0, lived / (until - since) / devices)
    return (until - since) / (job.row.alone_seconds * crowd)


@pytest.mark.slow
def test_long_runs_end_although_shorter_ones_keep_coming() -> None:
    """Two long runs on a device that others use to 96 %, each of them a tenth as long."""

    def late(rule: Policy) -> tuple[float, float]:
        """(of the long ones, of all)."""
        stream = [trace_job(f"short-{n}", n * 104.0, {1: 100.0}) for n in range(120)]
        long = [trace_job(f"long-{n}", 0.0, {1: 1000.0}) for n in range(2)]
        jobs = simulate([*long, *stream], rule, 1)
        found = {name: lateness(job, jobs, 1) for name, job in jobs.items()}
        return max(found["long-0"], found["long-1"]), max(found.values())

    starved, _ = late(Selfsched(Weights(late_from=1e9)))
    assert starved > 3.5, "the instance is too tame to show anything"
    assert late(policy_named("selfsched"))[1] <= 2.3
    long, worst = late(policy_named("themis"))
    assert long <= 1.1, "its turn comes as often as its share says"
    assert worst <= 3.0


def test_gangs_that_exclude_each_other_run_one_after_the_other() -> None:
    """Each is as late as the other while it waits: to exchange them at every term would serve nobody."""
    jobs = simulate([trace_job(n, 0.0, {4: 3000.0}) for n in ("a", "b")], policy_named("selfsched"), DEVICES)
    assert sorted(job.finished_at or np.inf for job in jobs.values()) == pytest.approx([3005, 6010])
    assert [job.starts for job in jobs.values()] == [1, 1]
