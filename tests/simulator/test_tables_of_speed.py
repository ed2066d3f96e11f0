"""Elastic and mixed jobs: their truth from tables, by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from selfsched.errors import Refused
from selfsched.protocol import Placement, Resume
from selfsched_broker.core.policies import policy_named
from selfsched_simulator.cluster import parse_cluster
from selfsched_simulator.elastic import read_elastic, read_step_times, read_work
from selfsched_simulator.engine import Simulation
from selfsched_simulator.job import Habits
from selfsched_simulator.metrics import Scale, finished, rhos_static, rhos_themis
from selfsched_simulator.mixed import isolated_seconds, read_mixed, read_throughput
from selfsched_simulator.options import SimulationOptions
from selfsched_simulator.speeds import rotated
from selfsched_simulator.trace import Trace, kind_of

STEPS = """application,cluster,replicas,placement,local_batch,step_s,sync_s
net,t4,1,1,8,1.0,0.0
net,t4,1,1,16,2.0,0.0
net,t4,2,2,8,1.2,0.2
net,t4,2,2,16,2.2,0.2
net,t4,2,1+1,8,1.5,0.5
net,t4,2,1+1,16,2.5,0.5
net,t4,3,1+2,8,1.4,0.4
net,t4,3,1+2,16,2.4,0.4
net,a100,1,1,8,0.1,0.0
net,a100,1,1,16,0.2,0.0
"""
WORK = """application,global_batch,epoch,iteration
net,16,0,50
net,16,1,100
net,32,0,30
net,32,1,60
"""
TRACE = "job,arrival_s,application,requested_replicas,global_batch\n"
RATES = """gpu_type,consolidated,model,batch_size,num_gpus,steps_per_s
fast,1,net,8,1,4.0
slow,1,net,8,1,1.0
fast,1,net,8,2,7.0
fast,0,net,8,2,5.0
slow,1,net,8,2,0.0
"""
MIXED = "job_id,arrival_s,model,batch_size,num_gpus,total_steps\n"


def elastic(tmp_path: Path, rows: str, *, cluster: str = "2x2:t4", requested_only: bool = False) -> Trace:
    for name, text in (("steps.csv", STEPS), ("work.csv", WORK), ("trace.csv", TRACE + rows)):
        (tmp_path / name).write_text(text)
    steps, work = read_step_times(tmp_path / "steps.csv"), read_work(tmp_path / "work.csv")
    return read_elastic(
        tmp_path / "trace.csv", parse_cluster(cluster), steps, work, requested_only=requested_only
    )


def mixed(tmp_path: Path, rows: str, *, cluster: str = "2:fast,4:slow") -> Trace:
    (tmp_path / "rates.csv").write_text(RATES)
    (tmp_path / "trace.csv").write_text(MIXED + rows)
    return read_mixed(tmp_path / "trace.csv", parse_cluster(cluster), read_throughput(tmp_path / "rates.csv"))


def test_a_job_takes_its_iterations_at_the_step_time_of_its_layout(tmp_path: Path) -> None:
    speed = elastic(tmp_path, "a,0,net,2,32\n").jobs[0].speed
    # 32 samples on one replica: two passes of 16, the table's largest: 2.0 + 1 x (2.0 - 0.0) s.
    assert speed.run_seconds((("t4", 1),)) == pytest.approx(60 * 4.0)
    # 16 on each of two: one pass. Spread costs the longer synchronisation.
    assert speed.run_seconds((("t4", 2),)) == pytest.approx(60 * 2.2)
    assert speed.run_seconds((("t4", 1), ("t4", 1))) == pytest.approx(60 * 2.5)
    # 11 on each of three: between 8 and 16.
    assert speed.run_seconds((("t4", 1), ("t4", 2))) == pytest.approx(60 * (1.4 + 3 / 8))
    assert speed.run_seconds((("t4", 2), ("t4", 1))) == speed.run_seconds((("t4", 1), ("t4", 2)))
    assert set(speed.placements) == {
        Placement(devices=1),
        Placement(devices=2),
        Placement(devices=2, nodes=2),
        Placement(devices=3, nodes=2),
    }


def test_a_count_that_leaves_a_replica_too_few_samples_is_not_bid_for(tmp_path: Path) -> None:
    speed = elastic(tmp_path, "a,0,net,2,16\n").jobs[0].speed
    assert {place.devices for place in speed.placements} == {1, 2}, "16 / 3 is less than 8"
    assert speed.run_seconds((("t4", 1), ("t4", 2))) == math.inf


def test_iterations_between_two_batches_are_interpolated(tmp_path: Path) -> None:
    speed = elastic(tmp_path, "a,0,net,1,24\n").jobs[0].speed
    assert speed.run_seconds((("t4", 2),)) == pytest.approx(80 * (1.2 + 4 / 8))


def test_alone_is_on_the_requested_replicas_packed(tmp_path: Path) -> None:
    trace = elastic(tmp_path, "a,0,net,2,32\nb,1,net,9,32\n")
    assert trace.jobs[0].alone_seconds == pytest.approx(60 * 2.2)
    assert trace.jobs[1].gpus == 3
    assert trace.jobs[1].alone_seconds == pytest.approx(60 * (1.4 + 3 / 8))
    assert "b (9 to 3)" in trace.notes[0]
    assert trace.jobs[0].resume is Resume.ELASTIC


def test_requested_only_means_one_count(tmp_path: Path) -> None:
    job = elastic(tmp_path, "a,0,net,2,32\n", requested_only=True).jobs[0]
    assert {place.devices for place in job.speed.placements} == {2}
    assert job.resume is Resume.SAME_SIZE


def test_several_models_are_named_in_the_bid_and_never_mixed_for_free(tmp_path: Path) -> None:
    speed = elastic(tmp_path, "a,0,net,1,16\n", cluster="1x2:t4,1x2:a100").jobs[0].speed
    assert Placement(devices=1, model="a100") in speed.placements
    assert speed.run_seconds((("a100", 1),)) == pytest.approx(100 * 0.2)
    assert speed.run_seconds((("a100", 1), ("t4", 1))) == math.inf, "two devices were not measured on a100"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("a,0,other,1,16\n", "line 2: nothing is known of 'other' at a global batch of 16"),
        ("a,0,net,1,64\n", "at a global batch of 64"),
        ("a,0,net,0,16\n", "requested_replicas is 0"),
        ("a,0,net,1,16\na,3,net,1,16\n", "the job 'a' is there already"),
    ],
)
def test_a_bad_elastic_row_is_refused_with_its_line(tmp_path: Path, rows: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        elastic(tmp_path, rows)


def test_a_model_that_the_table_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="measured on v100"):
        elastic(tmp_path, "a,0,net,1,16\n", cluster="2x2:v100")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("net,t4,2,1+2,8,1,0", "the placement '1\\+2' is not of 2 replicas"),
        ("net,t4,2,x,8,1,0", "placement is 'x'"),
        ("net,t4,1,1,8,0,0", "step_s is 0"),
        ("net,t4,1,1,8,1,2", "sync_s is 2"),
        ("net,t4,1,1,8,nan,0", "out of range"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "steps.csv").write_text(STEPS.splitlines()[0] + "\n" + text + "\n")
    with pytest.raises(Refused, match=f"line 2: .*{words}"):
        read_step_times(tmp_path / "steps.csv")


def test_an_elastic_trace_runs_to_its_end_at_the_true_speed(tmp_path: Path) -> None:
    trace = elastic(tmp_path, "a,0,net,2,32\n")
    cluster = parse_cluster("2x2:t4")
    options = SimulationOptions(cluster=cluster, round_seconds=10, habits=Habits(restart_seconds=3))
    jobs = Simulation(trace.jobs, policy_named("themis"), options).run()
    fastest = min(trace.jobs[0].speed.placements.values())
    assert jobs[0].finished_at == pytest.approx(3 + fastest)


# --- mixed models ------------------------------------------------------------------------


def test_rotations_of_a_ring_are_one_layout() -> None:
    assert rotated((2, 1, 3)) == (1, 3, 2)
    assert rotated((3, 1, 2)) == (1, 2, 3)


def test_a_mixed_job_bids_for_each_model_it_runs_on(tmp_path: Path) -> None:
    one, two = mixed(tmp_path, "0,0,net,8,1,400\n1,0,net,8,2,700\n").jobs
    assert one.speed.placements == {
        Placement(devices=1, model="fast"): 100.0,
        Placement(devices=1, model="slow"): 400.0,
    }
    assert two.speed.placements == {Placement(devices=2, model="fast"): 100.0}
    assert two.speed.run_seconds((("slow", 2),)) == math.inf


def test_alone_on_mixed_models_is_a_part_of_each(tmp_path: Path) -> None:
    """Two jobs: half of 2 fast and of 4 slow, 1 + 2 devices for one that uses one: a third, two thirds."""
    job = mixed(tmp_path, "0,0,net,8,1,400\n1,0,net,8,2,700\n").jobs[0]
    assert job.alone_seconds == pytest.approx(400 / (4.0 / 3 + 1.0 * 2 / 3))
    rates = {("fast", True): 4.0, ("slow", True): 1.0}
    many = isolated_seconds(400, 1, rates, parse_cluster("2:fast,4:slow"), 100)
    assert many == pytest.approx(400 / (0.02 * 4.0 + 0.04 * 1.0))


def test_a_mixed_run_puts_the_wide_job_where_it_can_run(tmp_path: Path) -> None:
    trace = mixed(tmp_path, "0,0,net,8,1,400\n1,0,net,8,2,700\n")
    cluster = parse_cluster("2:fast,4:slow")
    options = SimulationOptions(cluster=cluster, round_seconds=60, habits=Habits(restart_seconds=0))
    jobs = Simulation(trace.jobs, policy_named("themis"), options).run()
    rows = finished(jobs)
    assert len(rows) == 2
    scale = Scale(kind="mixed", devices=6, jobs=2)
    assert rhos_static(rows, scale) == [row.completion_seconds / row.alone_seconds for row in rows]
    assert rhos_themis(rows, scale) == []


@pytest.mark.parametrize(
    ("rows", "cluster", "words"),
    [
        ("0,0,net,8,1,400\n", "4:tpu", "runs on none of the cluster's models tpu"),
        ("0,0,net,8,2,400\n", "4:slow", "runs on none"),
        ("0,0,net,9,1,400\n", "2:fast", "no throughput of 'net', batch 9, 1 GPUs"),
        ("0,0,net,8,1,0\n", "2:fast", "total_steps is 0"),
        ("0,0,net,8,2,5\n", "1:fast", "needs 2 GPUs, the cluster has 1"),
    ],
)
def test_a_bad_mixed_row_is_refused_with_its_line(
    tmp_path: Path, rows: str, cluster: str, words: str
) -> None:
    with pytest.raises(Refused, match=f"line 2: .*{words}"):
        mixed(tmp_path, rows, cluster=cluster)


def test_the_kind_of_a_trace_is_told_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    for header, kind in ((TRACE, "elastic"), (MIXED, "mixed"), ("arrival_s,gpus,exclusive_s\n", "rigid")):
        path.write_text(header)
        assert kind_of(path) == kind
    path.write_text("submit_s,duration_s,num_gpus\n")
    with pytest.raises(Refused, match="selfsched-broker replay"):
        kind_of(path)
