"""What people meet, in virtual time: the broker's own arbiter, policy and clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest

from selfsched.protocol import Resume
from selfsched_broker.core.policies import policy_named
from selfsched_simulator.cluster import one_node
from selfsched_simulator.engine import Simulation
from selfsched_simulator.job import Habits, SimulatedJob
from selfsched_simulator.options import SimulationOptions
from selfsched_simulator.speeds import by_count
from selfsched_simulator.trace import TraceJob

HABITS = Habits(restart_seconds=2.0)
REPAY_SECONDS = 60.0


def elastic(name: str, arrival: float, runs: Mapping[int, float], **fields: object) -> TraceJob:
    return TraceJob(
        name=name,
        arrival_seconds=arrival,
        speed=by_count(runs),
        gpus=max(runs),
        alone_seconds=runs[max(runs)],
        resume=Resume.ELASTIC,
        **fields,  # type: ignore[arg-type]
    )


def simulate(jobs: Sequence[TraceJob], gpus: int, *, term: float, policy: str = "themis") -> Simulation:
    options = SimulationOptions(cluster=one_node(gpus), term_seconds=term, habits=HABITS)
    ordered = sorted(jobs, key=lambda job: job.arrival_seconds)
    simulation = Simulation(ordered, policy_named(policy), options)
    simulation.run()
    simulation.books.validate()
    refused = [a.detail for a in simulation.books.audits.values() if a.action == "ruling_refused"]
    assert refused == []
    return simulation


def by_name(simulation: Simulation) -> dict[str, SimulatedJob]:
    return {job.row.name: job for job in simulation.jobs.values()}


def counts(job: SimulatedJob) -> list[int]:
    return [devices for _, devices in job.history]


def waits(job: SimulatedJob) -> list[float]:
    """Every stretch without a device, the one before the first start included."""
    assert job.finished_at is not None
    steps = [(job.row.arrival_seconds, 0), *job.history, (job.finished_at, -1)]
    return [until - since for (since, devices), (until, _) in pairwise(steps) if devices == 0]


def test_two_jobs_on_two_slots_share_them_and_give_them_back() -> None:
    """The demo: the first, alone, visits on both slots and keeps them; the second visits, keeps its
    share, ends; both slots again."""
    simulation = simulate(
        [
            elastic("notebook", 0, {1: 900, 2: 480}, knows_its_speed=False),
            elastic("script", 150, {1: 100}, knows_its_speed=False),
        ],
        2,
        term=30,
    )
    jobs = by_name(simulation)
    notebook, script = jobs["notebook"], jobs["script"]
    assert counts(notebook) == [2, 1, 2]
    assert counts(script) == [1], "the visitor keeps its share and is never stopped"
    (_, _), (shrunk_at, _), (regrown_at, _) = notebook.history
    assert script.history[0][0] == shrunk_at == 150
    assert regrown_at == script.finished_at
    reasons = "\n".join(simulation.books.jobs[notebook.id].reasons)
    assert "shrinks to 1 of 2: script makes a first visit" in reasons
    assert "grows to 2 of 2 devices: nobody else wants them" in reasons


def test_between_ticks_nothing_moves_unless_a_device_frees_or_somebody_arrives() -> None:
    """Eight ticks with two elastic jobs of other tastes: no move after the first division."""
    jobs = by_name(
        simulate(
            [elastic("a", 0, {1: 4000, 2: 2100, 3: 1500}), elastic("b", 0, {1: 3000, 2: 1900})], 4, term=60
        )
    )
    ends = sorted(job.finished_at or 0.0 for job in jobs.values())
    for job in jobs.values():
        moves = [at for at, _ in job.history]
        assert len(moves) <= 2
        assert all(at == 0 or at >= ends[0] for at in moves)


@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_moved_before_its_last_move_is_repaid(seed: int) -> None:
    """U12, T18: between two changes of a job's devices lie the restart and what repays it."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(9):
        work = float(rng.uniform(200, 900))
        top = int(rng.integers(1, 5))
        rows.append(
            elastic(f"j{number}", float(rng.uniform(0, 900)), {n: work / n**0.8 for n in range(1, top + 1)})
        )
    simulation = simulate(rows, 4, term=90)
    assert all(job.finished_at is not None for job in simulation.jobs.values())
    moves = 0
    for job in simulation.jobs.values():
        for (since, devices), (until, _) in pairwise(job.history):
            if devices:
                moves += 1
                assert until - since >= REPAY_SECONDS + HABITS.restart_seconds - 1e-6
    assert moves, "the instance is too tame to show anything"


def test_the_first_job_does_not_keep_all_devices_for_days() -> None:
    """U12: an arrival has its share within a term of the holder having repaid its start."""
    jobs = by_name(
        simulate(
            [elastic("greedy", 0, {n: 9000 / n for n in range(1, 9)}), elastic("late", 100, {4: 300})],
            8,
            term=300,
        )
    )
    assert jobs["late"].history[0][0] <= 300 + HABITS.restart_seconds
    assert counts(jobs["late"]) == [4]


def test_a_crowd_of_one_account_cannot_keep_another_from_its_share() -> None:
    """U7: ten jobs of one team, then one of another account: its share is one of two devices."""
    team = [elastic(f"team-{i}", i * 0.1, {1: 2000}, account="team") for i in range(10)]
    jobs = by_name(simulate([*team, elastic("guest", 500, {1: 400})], 2, term=300))
    assert sum(waits(jobs["guest"])) <= 300
    assert counts(jobs["guest"]) == [1], "nobody takes it away from a job on its share"


def test_a_share_below_one_device_is_withheld_for_a_bounded_time() -> None:
    """U7: six accounts, two devices: everybody's turn comes after at most their share's ticks."""
    term = 120.0
    jobs = by_name(simulate([elastic(f"j{i}", i * 1.0, {1: 700}) for i in range(6)], 2, term=term))
    ticks = 6 / 2
    assert max(max(waits(job), default=0.0) for job in jobs.values()) <= (ticks + 2) * term


def test_a_stream_of_narrow_jobs_does_not_starve_a_wide_one() -> None:
    """U14: passed over at one tick at most, then served within a term."""
    term = 100.0
    narrow = [elastic(f"n{i}", i * 22.0, {1: 90}) for i in range(45)]
    jobs = by_name(simulate([*narrow, elastic("wide", 130, {4: 200})], 4, term=term))
    assert waits(jobs["wide"])[0] <= 2 * term
    assert 4 in counts(jobs["wide"])


def test_fifo_serves_in_order_and_never_takes_away() -> None:
    simulation = simulate(
        [
            elastic("first", 0, {1: 100, 2: 60}),
            elastic("wide", 1, {3: 50}),
            elastic("small", 2, {1: 10}),
        ],
        3,
        term=30,
        policy="fifo",
    )
    jobs = by_name(simulation)
    assert [counts(jobs[name]) for name in ("first", "wide", "small")] == [[2], [3], [1]]
    assert jobs["wide"].history[0][0] == jobs["first"].finished_at
    assert jobs["small"].history[0][0] == jobs["wide"].finished_at, "no backfilling"
