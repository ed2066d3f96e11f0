"""Odd traces and odd clusters: a clear message or a defined result, and always an end."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from selfsched.protocol import Resume
from selfsched_broker.core.policies import POLICIES, policy_named
from selfsched_simulator.cli import app
from selfsched_simulator.cluster import one_node, parse_cluster
from selfsched_simulator.engine import Simulation, SimulationStuck
from selfsched_simulator.faults import FaultOptions, Outage
from selfsched_simulator.job import Habits, SimulatedJob
from selfsched_simulator.metrics import Scale, finished, summarise
from selfsched_simulator.options import SimulationOptions
from selfsched_simulator.speeds import by_count
from selfsched_simulator.trace import TraceJob, rigid_job

QUICK = Habits(restart_seconds=2.0, checkpoint_seconds=20.0)


def ends(jobs: list[SimulatedJob]) -> dict[str, float | None]:
    return {job.row.name: job.finished_at for job in jobs}


def elastic(name: str, arrival: float, most: int, work: float) -> TraceJob:
    seconds = {n: work / n for n in range(1, most + 1)}
    cluster = parse_cluster("2x2")
    return TraceJob(
        name=name,
        arrival_seconds=arrival,
        speed=by_count(seconds, cluster),
        gpus=most,
        alone_seconds=work / most,
        resume=Resume.ELASTIC,
    )


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_all_jobs_equal(policy: str) -> None:
    options = SimulationOptions(cluster=one_node(2), round_seconds=30, habits=QUICK)
    jobs = Simulation([rigid_job(f"j{i}", 0, 1, 100) for i in range(6)], policy_named(policy), options).run()
    assert all(job.finished_at is not None for job in jobs)
    assert max(job.finished_at or 0 for job in jobs) >= 300


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_single_job_has_the_cluster_to_itself(policy: str) -> None:
    options = SimulationOptions(cluster=one_node(4), habits=QUICK)
    jobs = Simulation([rigid_job("only", 7, 4, 100)], policy_named(policy), options).run()
    assert ends(jobs) == {"only": pytest.approx(109)}


def test_no_job_is_no_run_and_no_figure() -> None:
    options = SimulationOptions(cluster=one_node(4))
    assert Simulation([], policy_named("themis"), options).run() == []
    scale = Scale(kind="rigid", devices=4, jobs=0)
    figures = summarise(finished([]), scale, policy="themis", wall_seconds=0.0)
    assert (figures.jobs, figures.makespan_s, figures.worst_rho_static) == (0, None, None)


def test_unsorted_arrivals_and_long_gaps(tmp_path: Path) -> None:
    path = tmp_path / "gaps.csv"
    path.write_text("job,arrival_s,gpus,exclusive_s\nlate,2000000,1,10\nfirst,0,1,10\n")
    options = ["--gpus", "1", "--restart", "0", "--term", "3600", "--policy", "fifo", "--json"]
    result = CliRunner().invoke(app, [str(path), *options])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["makespan_s"] == pytest.approx(2_000_010)


def test_ten_thousand_jobs_on_one_device_end_at_the_limit_with_what_there_is(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    path.write_text("arrival_s,gpus,exclusive_s\n" + "".join(f"{i * 60},1,50\n" for i in range(10_000)))
    options = ["--gpus", "1", "--restart", "1", "--policy", "fifo", "--limit", "1", "--json"]
    result = CliRunner().invoke(app, [str(path), *options])
    answer = json.loads(result.stdout)
    assert result.exit_code == 1
    assert answer["partial"] == "stopped after 1 s of real time"
    assert answer["jobs"] + answer["unfinished"] < 10_001
    assert answer["mean_completion_s"] == pytest.approx(51, abs=60)
    assert "the result is partial" in result.stderr


@pytest.mark.slow
def test_ten_thousand_jobs_at_once_on_one_device_end_at_the_limit() -> None:
    """What falls on one instant is not broken off: the limit of real time holds between two of them."""
    options = SimulationOptions(cluster=one_node(1), habits=QUICK, limit_seconds=0.5)
    simulation = Simulation(
        [rigid_job(f"j{n}", 0, 1, 50) for n in range(10_000)], policy_named("selfsched"), options
    )
    simulation.run()
    assert simulation.partial == "stopped after 0.5 s of real time"
    assert len(simulation.jobs) == 10_000
    assert simulation.books.auctions
    simulation.books.validate()


def test_a_wide_job_spans_nodes() -> None:
    cluster = parse_cluster("3x2")
    job = TraceJob(
        name="wide", arrival_seconds=0, speed=by_count({5: 100}, cluster), gpus=5, alone_seconds=100
    )
    for policy in ("selfsched", "themis", "fifo"):
        options = SimulationOptions(cluster=cluster, habits=QUICK)
        assert ends(Simulation([job], policy_named(policy), options).run()) == {"wide": pytest.approx(102)}


# --- nodes that die ----------------------------------------------------------------------


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("round_seconds", [60.0, None])
def test_half_the_nodes_die_within_a_round_and_everything_ends_all_the_same(
    policy: str, round_seconds: float | None
) -> None:
    cluster = parse_cluster("2x2")
    faults = FaultOptions(outages=(Outage("node-1", 90.0, float("inf")),))
    jobs = [elastic(f"j{i}", i * 5.0, 2, 300.0) for i in range(4)]
    options = SimulationOptions(cluster=cluster, round_seconds=round_seconds, habits=QUICK, faults=faults)
    simulation = Simulation(jobs, policy_named(policy), options)
    ended = simulation.run()
    simulation.books.validate()
    assert all(job.finished_at is not None for job in ended)
    dead = set(cluster.nodes[1].device_ids())
    assert not any(dead & set(job.devices) for job in ended), "nobody ends on a dead device"
    assert simulation.books.healthy_devices == 2


def test_a_job_that_lost_its_node_goes_on_from_its_last_checkpoint() -> None:
    """It runs from 2 to 50 and saves every 20 s: 8 s are lost, then the node is back at 200."""
    faults = FaultOptions(outages=(Outage("node", 50.0, 200.0),))
    options = SimulationOptions(cluster=one_node(1), habits=QUICK, faults=faults)
    jobs = Simulation([rigid_job("only", 0, 1, 100)], policy_named("fifo"), options).run()
    (job,) = jobs
    assert job.history[0] == (0.0, 1)
    assert job.history[1] == (50.0, 0)
    restarted, devices = job.history[2]
    assert devices == 1
    assert 200 <= restarted <= 202
    assert job.finished_at == pytest.approx(restarted + 2 + 60)
    assert job.busy_device_seconds == pytest.approx(100)


def test_a_job_that_nothing_is_left_for_is_named() -> None:
    faults = FaultOptions(outages=(Outage("node-1", 10.0, float("inf")),))
    cluster = parse_cluster("2x2")
    job = TraceJob(
        name="wide", arrival_seconds=50, speed=by_count({4: 100}, cluster), gpus=4, alone_seconds=1
    )
    options = SimulationOptions(cluster=cluster, round_seconds=60, habits=QUICK, faults=faults)
    with pytest.raises(SimulationStuck, match="nothing starts the jobs wide"):
        Simulation([job], policy_named("themis"), options).run()


def test_drawn_failures_are_the_same_for_every_policy_and_another_for_another_seed() -> None:
    def silences(policy: str, seed: int) -> list[str]:
        faults = FaultOptions(mtbf_seconds=300.0, repair_seconds=100.0)
        habits = Habits(restart_seconds=2.0, checkpoint_seconds=20.0, seed=seed)
        options = SimulationOptions(cluster=parse_cluster("2x2"), habits=habits, faults=faults)
        jobs = [elastic(f"j{i}", i * 5.0, 2, 400.0) for i in range(4)]
        simulation = Simulation(jobs, policy_named(policy), options)
        simulation.run()
        audits = simulation.books.audits.values()
        return [f"{a.at:.0f} {a.subject}" for a in audits if a.action == "node_silent" and a.at < 500]

    assert silences("themis", 1)
    assert silences("themis", 1) == silences("fifo", 1)
    assert silences("themis", 1) != silences("themis", 2)


# --- messages that are late or lost ------------------------------------------------------


@pytest.mark.parametrize("policy", ["selfsched", "themis", "fifo"])
def test_lost_and_late_messages_delay_jobs_and_lose_none(policy: str) -> None:
    jobs = [elastic(f"j{i}", i * 5.0, 2, 300.0) for i in range(5)]
    faults = FaultOptions(lost=0.3, late_seconds=3.0)
    options = SimulationOptions(cluster=parse_cluster("2x2"), habits=QUICK, faults=faults)
    simulation = Simulation(jobs, policy_named(policy), options)
    ended = simulation.run()
    simulation.books.validate()
    assert all(job.finished_at is not None for job in ended)
    assert sum(post.lost for post in simulation.posts.values()) > 10


def test_a_job_that_cannot_reach_its_broker_stops_before_the_devices_are_given_away() -> None:
    """Most reports are lost: leases expire, and whoever gets the devices never meets the other."""
    jobs = [rigid_job("a", 0, 2, 600), rigid_job("b", 1, 2, 600)]
    faults = FaultOptions(lost=0.75)
    options = SimulationOptions(cluster=one_node(2), term_seconds=60, habits=QUICK, faults=faults)
    simulation = Simulation(jobs, policy_named("themis"), options)
    ended = simulation.run()
    simulation.books.validate()
    expired = [a for a in simulation.books.audits.values() if a.action == "lease_expired"]
    assert expired, "the instance is too tame to show anything"
    spans = sorted(
        (since, until)
        for job in ended
        for (since, devices), (until, _) in zip(
            job.history, [*job.history[1:], (job.finished_at or 0, 0)], strict=True
        )
        if devices
    )
    assert all(earlier[1] <= later[0] + 1e-6 for earlier, later in pairwise(spans))
