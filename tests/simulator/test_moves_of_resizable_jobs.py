"""When a job may be moved again: under `selfsched` a resizable one after two restarts' worth of steps."""

from __future__ import annotations

import pytest

from selfsched.protocol import Resume
from selfsched_broker.core.market import FairnessOptions, repay_factor
from selfsched_broker.core.policies import POLICIES, policy_named
from selfsched_simulator.cluster import one_node
from selfsched_simulator.engine import Simulation
from selfsched_simulator.job import Habits
from selfsched_simulator.options import SimulationOptions
from selfsched_simulator.speeds import by_count
from selfsched_simulator.trace import TraceJob

RESTART, TERM = 60.0, 30.0


def grows_at(policy: str, resume: Resume) -> float:
    """When a job gets its second device: a gang of one leaves the other after 10 s of work."""
    runs = {1: 9000.0, 2: 4600.0}
    jobs = [
        TraceJob(
            name="gang", arrival_seconds=0.0, speed=by_count({1: 10.0}), gpus=1, alone_seconds=10.0,
        ),
        TraceJob(
            name="grows", arrival_seconds=0.0, speed=by_count(runs), gpus=2, alone_seconds=runs[2],
            resume=resume,
        ),
    ]  # fmt: skip
    options = SimulationOptions(
        cluster=one_node(2), term_seconds=TERM, habits=Habits(restart_seconds=RESTART)
    )
    simulation = Simulation(jobs, policy_named(policy), options)
    simulation.run()
    (job,) = (job for job in simulation.jobs.values() if job.row.name == "grows")
    return next((at for at, devices in job.history if devices == 2), float("inf"))


def test_a_move_is_repaid_after_two_restarts_where_it_was_weighed_and_after_ten_elsewhere() -> None:
    assert 3 * RESTART <= grows_at("selfsched", Resume.ELASTIC) <= 3 * RESTART + 2 * TERM
    assert grows_at("themis", Resume.ELASTIC) >= 11 * RESTART


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_gangs_wait_for_what_the_settings_say_under_every_policy(name: str) -> None:
    policy = policy_named(name)
    for factor in (0.0, 1.0, 10.0):
        fairness = FairnessOptions(repay_factor=factor)
        assert repay_factor(policy, fairness, resizable=False) == factor
        assert repay_factor(policy, fairness, resizable=True) <= factor
