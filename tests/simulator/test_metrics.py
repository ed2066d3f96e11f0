"""The figures of a trace small enough to follow by hand."""

from __future__ import annotations

import pytest

from selfsched_broker.core.policies import policy_named
from selfsched_simulator.cluster import one_node
from selfsched_simulator.engine import Simulation
from selfsched_simulator.job import Habits
from selfsched_simulator.metrics import Finished, Scale, finished, summarise
from selfsched_simulator.options import SimulationOptions
from selfsched_simulator.trace import rigid_job


def test_figures_by_hand() -> None:
    """Two GPUs. a: 0-100 on one; b: 0-100 waits, 100-150 on two; c: 40-60 on one."""
    jobs = [
        Finished(arrival_seconds=0, end_seconds=100, alone_seconds=100, gpus=1, busy_device_seconds=100),
        Finished(arrival_seconds=0, end_seconds=150, alone_seconds=50, gpus=2, busy_device_seconds=100),
        Finished(
            arrival_seconds=40, end_seconds=60, alone_seconds=20, gpus=1, starts=3, busy_device_seconds=20
        ),
    ]
    scale = Scale(kind="rigid", devices=2, jobs=3)
    figures = summarise(jobs, scale, policy="by hand", wall_seconds=0.5)
    assert figures.makespan_s == 150
    assert figures.mean_completion_s == pytest.approx((100 + 150 + 20) / 3)
    assert figures.median_completion_s == 100
    # k = 3 / 2: rho is 100/150, 150/75 and 20/30.
    assert figures.worst_rho_static == pytest.approx(2.0)
    assert figures.unfair_fraction == pytest.approx(1 / 3)
    # b lives 150 s with 100 + 150 + 20 job-seconds around it: 1.8 jobs on 2 GPUs, so k = 1.
    assert figures.worst_rho_themis == pytest.approx(3.0)
    assert figures.utilisation == pytest.approx((100 + 100 + 20) / (2 * 150))
    assert figures.restarts_per_job == pytest.approx(2 / 3)
    assert figures.jobs == 3
    assert figures.wall_s == 0.5


def test_rounds_restarts_and_the_queue_by_hand() -> None:
    """Rounds of 10 s, restarts of 2 s, first come first served on two GPUs.

    a (one GPU, 17 s): starts at 0, works from 2, ends at 19. b (two GPUs, 8 s, from 1): what
    frees at 19 is idle until the round at 20, works from 22, ends at 30. c (one GPU, 5 s, from
    3) comes at 30, works from 32, ends at 37.
    """
    trace = [
        rigid_job("a", 0, 1, 17),
        rigid_job("b", 1, 2, 8),
        rigid_job("c", 3, 1, 5),
    ]
    options = SimulationOptions(cluster=one_node(2), round_seconds=10, habits=Habits(restart_seconds=2))
    jobs = Simulation(trace, policy_named("fifo"), options).run()
    assert {job.row.name: job.finished_at for job in jobs} == pytest.approx({"a": 19, "b": 30, "c": 37})
    scale = Scale(kind="rigid", devices=2, jobs=3)
    figures = summarise(finished(jobs), scale, policy="fifo", wall_seconds=0)
    assert figures.makespan_s == pytest.approx(37)
    assert figures.mean_completion_s == pytest.approx((19 + 29 + 34) / 3)
    assert figures.restarts_per_job == 0


def test_without_rounds_what_frees_is_used_at_once() -> None:
    trace = [
        rigid_job("a", 0, 1, 17),
        rigid_job("b", 1, 2, 8),
    ]
    options = SimulationOptions(cluster=one_node(2), habits=Habits(restart_seconds=2))
    jobs = Simulation(trace, policy_named("fifo"), options).run()
    assert {job.row.name: job.finished_at for job in jobs} == pytest.approx({"a": 19, "b": 29})
