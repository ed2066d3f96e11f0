"""The engine: reproducible, complete, and honest about what the policy may know."""

from __future__ import annotations

import numpy as np
import pytest

from selfsched_broker.core.market import Award, Market, Ruling
from selfsched_broker.core.policies import policy_named
from selfsched_simulator.cluster import one_node
from selfsched_simulator.engine import Simulation, SimulationStuck
from selfsched_simulator.job import Habits
from selfsched_simulator.metrics import Figures, Scale, finished, summarise
from selfsched_simulator.options import SimulationOptions
from selfsched_simulator.trace import TraceJob, rigid_job
from selfsched_simulator.truth import claim_factor


def synthetic(jobs: int, seed: int) -> list[TraceJob]:
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.uniform(0, 600, jobs))
    return [
        rigid_job(f"j{i}", float(at), int(rng.choice([1, 1, 2, 4])), float(rng.lognormal(5.5, 0.7)))
        for i, at in enumerate(arrivals)
    ]


def run(policy: str, *, noise: float = 0.0, seed: int = 1, round_seconds: float | None = 120) -> Figures:
    trace = synthetic(14, 3)
    options = SimulationOptions(
        cluster=one_node(4), round_seconds=round_seconds, habits=Habits(noise=noise, seed=seed)
    )
    simulation = Simulation(trace, policy_named(policy), options)
    jobs = simulation.run()
    simulation.books.validate()
    assert not [a for a in simulation.books.audits.values() if a.action == "ruling_refused"]
    assert all(job.fraction_done == pytest.approx(1.0, abs=1e-6) for job in jobs)
    scale = Scale(kind="rigid", devices=4, jobs=len(trace))
    return summarise(finished(jobs), scale, policy=policy, wall_seconds=0.0)


@pytest.mark.parametrize("round_seconds", [120.0, None])
@pytest.mark.parametrize("policy", ["themis", "fifo"])
def test_every_job_ends_and_the_same_seed_gives_the_same_run(
    policy: str, round_seconds: float | None
) -> None:
    first = run(policy, noise=0.3, round_seconds=round_seconds)
    assert first == run(policy, noise=0.3, round_seconds=round_seconds)
    work = sum(job.gpus * job.alone_seconds for job in synthetic(14, 3))
    assert first.makespan_s >= work / 4
    assert first.utilisation is not None
    assert 0 < first.utilisation <= 1


def test_the_auction_is_fairer_than_the_queue() -> None:
    themis, fifo = run("themis"), run("fifo")
    assert themis.worst_rho_static is not None
    assert fifo.worst_rho_static is not None
    assert themis.worst_rho_static < fifo.worst_rho_static


def test_noise_is_a_fixed_factor_of_a_job_for_its_life() -> None:
    assert claim_factor("a", noise=0.0, seed=1) == 1.0
    assert claim_factor("a", noise=0.2, seed=1) == claim_factor("a", noise=0.2, seed=1)
    assert claim_factor("a", noise=0.2, seed=1) != claim_factor("b", noise=0.2, seed=1)
    assert claim_factor("a", noise=0.2, seed=1) != claim_factor("a", noise=0.2, seed=2)
    logs = np.log([claim_factor(f"job-{i}", noise=0.2, seed=7) for i in range(2000)])
    assert abs(logs.mean()) < 0.02
    assert logs.std() == pytest.approx(0.2, rel=0.06)


def test_the_policy_sees_claims_and_never_the_truth() -> None:
    seen: list[tuple[float, float]] = []

    class Spy:
        name = "spy"

        def rule(self, market: Market, rng: np.random.Generator) -> Ruling:
            for contender in market.contenders:
                assert contender.bid is not None
                claimed = contender.bid.rows[0].remaining_seconds
                assert claimed is not None
                seen.append((contender.fraction_done, claimed))
            return policy_named("fifo").rule(market, rng)

    factor = claim_factor("only", noise=0.5, seed=4)
    options = SimulationOptions(
        cluster=one_node(1), round_seconds=10, habits=Habits(restart_seconds=1, noise=0.5, seed=4)
    )
    Simulation([rigid_job("only", 0, 1, 100)], Spy(), options).run()
    assert len(seen) > 5
    for done, claimed in seen:
        assert claimed == pytest.approx(100 * (1 - done) * factor)


def test_a_policy_that_starves_a_job_is_named_and_does_not_loop() -> None:
    class Miser:
        name = "miser"

        def rule(self, market: Market, rng: np.random.Generator) -> Ruling:
            awards = {c.job: Award(job=c.job, devices=(), reason="no") for c in market.contenders}
            return Ruling(awards=awards)

    options = SimulationOptions(cluster=one_node(1), round_seconds=100, habits=Habits(restart_seconds=1))
    with pytest.raises(SimulationStuck, match="only"):
        Simulation([rigid_job("only", 0, 1, 10)], Miser(), options).run()


@pytest.mark.parametrize("policy", ["themis", "fifo", "srtf"])
def test_ticks_that_change_nothing_may_be_left_out(policy: str) -> None:
    """Long jobs with long pauses between their arrivals: the same ends from far fewer auctions."""
    rng = np.random.default_rng(5)
    trace = [
        rigid_job(f"j{i}", float(at), int(rng.choice([1, 2])), float(rng.uniform(100, 9000)))
        for i, at in enumerate(np.sort(rng.uniform(0, 40_000, 12)))
    ]

    def run(skips: bool) -> tuple[dict[str, float | None], int]:
        options = SimulationOptions(cluster=one_node(4), skips_calm_ticks=skips)
        simulation = Simulation(trace, policy_named(policy), options)
        ends = {job.row.name: job.finished_at for job in simulation.run()}
        return ends, simulation.books.broker.next_auction

    every, some = run(skips=False), run(skips=True)
    assert some[0] == pytest.approx(every[0])
    assert some[1] < every[1] * 0.7
