"""Logs of jobs that have run: Philly's, Slurm's, and a broker's own books."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from selfsched.errors import Refused
from selfsched.protocol import Resume
from selfsched_broker.core.past_runs import seconds_by_count
from selfsched_broker.core.policies import policy_named
from selfsched_broker.service import Rules, Service
from selfsched_broker.store.sql import SqlStore
from selfsched_simulator.cli import replay_app
from selfsched_simulator.cluster import one_node, parse_cluster
from selfsched_simulator.engine import Simulation
from selfsched_simulator.job import Habits
from selfsched_simulator.logs import LogOptions, count_gpus, format_of, read_log
from selfsched_simulator.options import SimulationOptions
from selfsched_simulator.speeds import by_count
from selfsched_simulator.trace import TraceJob
from selfsched_simulator.wire import Said, perform

PHILLY = "submit_s,duration_s,num_gpus,vc\n1000,50,1,a\n1010,30,4,b\n1005,0,1,a\n1020,40,0,b\n"
SLURM = """JobID|User|Submit|ElapsedRaw|AllocTRES|State
7|ada|2026-05-01T10:00:00|600|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=8G|COMPLETED
7.batch||2026-05-01T10:00:00|600|cpu=8|COMPLETED
8_3|bob|2026-05-01T10:05:00|60|cpu=4,gres/gpu=1|CANCELLED by 1001
9|bob|2026-05-01T10:06:00|0|gres/gpu=1|CANCELLED
10|ada|2026-05-01T10:07:00|100|cpu=4|COMPLETED
11|eve x|2026-05-01T10:08:00|100|gres/gpu=1|RUNNING
"""


def test_a_philly_log_becomes_a_trace_from_its_first_submission(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    path.write_text(PHILLY)
    trace = read_log(path, one_node(4), LogOptions())
    rows = [(job.name, job.arrival_seconds, job.gpus, job.alone_seconds, job.account) for job in trace.jobs]
    assert rows == [("0", 0.0, 1, 50.0, "a"), ("1", 10.0, 4, 30.0, "b")]
    assert trace.notes == (
        "1 rows left out: jobs that ran for no time",
        "1 rows left out: jobs without a GPU",
    )


def test_a_job_wider_than_the_cluster_is_capped_or_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    path.write_text(PHILLY)
    capped = read_log(path, one_node(2), LogOptions())
    assert (capped.jobs[1].gpus, capped.jobs[1].alone_seconds) == (2, 60.0)
    assert "1 jobs are wider than the 2 devices, and capped" in capped.notes[-1]
    without = read_log(path, one_node(2), LogOptions(wider="leave-out"))
    assert [job.name for job in without.jobs] == ["0"]
    assert "left out: 1 (4)" in without.notes[-1]
    path.write_text(PHILLY.splitlines()[0] + "\n0,10,4,a\n")
    with pytest.raises(Refused, match=r"nothing of .* can be replayed on 2 devices: 1 are wider"):
        read_log(path, one_node(2), LogOptions(wider="leave-out"))


def test_jobs_may_be_taken_as_elastic(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    path.write_text("submit_s,duration_s,num_gpus\n0,30,6\n")
    (job,) = read_log(path, one_node(8), LogOptions(elastic=0.5)).jobs
    seconds = {place.devices: value for place, value in job.speed.placements.items()}
    assert seconds == pytest.approx({1: 30 * 6**0.5, 2: 30 * 3**0.5, 4: 30 * 1.5**0.5, 6: 30})
    assert job.resume is Resume.ELASTIC


def test_sacct_output_is_read_by_its_header(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(SLURM)
    assert format_of(path) == "slurm"
    trace = read_log(path, one_node(8), LogOptions())
    rows = [(j.name, j.arrival_seconds, j.gpus, j.alone_seconds, j.account) for j in trace.jobs]
    assert rows == [("7", 0.0, 2, 600.0, "ada"), ("8_3", 300.0, 1, 60.0, "bob")]
    assert set(trace.notes) == {
        "1 rows left out: jobs that ran for no time",
        "1 rows left out: jobs without a GPU",
        "1 rows left out: jobs that have not ended",
    }


def test_elapsed_may_be_written_in_words_or_as_start_and_end(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text("JobID|Submit|Elapsed|ReqGRES\n1|2026-05-01T10:00:00|1-02:03:04|gpu:a100:2(S:0-1)\n")
    (job,) = read_log(path, one_node(8), LogOptions()).jobs
    assert (job.gpus, job.alone_seconds) == (2, 93784.0)
    path.write_text(
        "JobID|Submit|Start|End|AllocTRES\n"
        "1|2026-05-01T10:00:00|2026-05-01T10:30:00|2026-05-01T11:00:00|gres/gpu=1\n"
        "2|2026-05-01T10:00:00|Unknown|Unknown|gres/gpu=1\n"
    )
    (job,) = read_log(path, one_node(8), LogOptions()).jobs
    assert job.alone_seconds == 1800.0


def test_a_job_that_was_requeued_has_a_name_for_each_of_its_runs(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    line = "5|ada|2026-05-01T10:00:00|60|gres/gpu=1|REQUEUED\n"
    path.write_text(SLURM.splitlines()[0] + "\n" + line * 2)
    assert [job.name for job in read_log(path, one_node(1), LogOptions()).jobs] == ["5", "5-2"]


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("", 0),
        ("cpu=4,mem=1G", 0),
        ("gres/gpu=4", 4),
        ("gres/gpu:v100=3,cpu=2", 3),
        ("gres/gpu:a=1,gres/gpu:b=2", 3),
        ("cpu=1,gres/gpu=3,gres/gpu:a=1,gres/gpu:b=2", 3),
        ("gpu:2", 2),
        ("gpu:tesla:2(IDX:0-1)", 2),
    ],
)
def test_gpus_in_the_words_of_slurm(text: str, gpus: int) -> None:
    assert count_gpus(text) == gpus


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "is no log that is known"),
        ("JobID|User\n1|a\n", "lacks Submit, ElapsedRaw"),
        ("JobID|Submit|ElapsedRaw|AllocTRES\n1|yesterday|5|gres/gpu=1\n", "line 2 .*'yesterday' is no time"),
        (
            "JobID|Submit|Elapsed|AllocTRES\n1|2026-05-01T10:00:00|long|gres/gpu=1\n",
            "line 2 .*Elapsed is 'long'",
        ),
        ("submit_s,duration_s,num_gpus\n1,x,1\n", "line 2: duration_s is 'x'"),
        ("submit_s,duration_s,num_gpus\n1,5,-1\n", "num_gpus is -1"),
        ("submit_s,duration_s,num_gpus\n", "has no rows"),
    ],
)
def test_a_bad_log_is_refused_in_plain_words(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(Refused, match=words):
        read_log(path, one_node(4), LogOptions())


def test_what_is_not_there_or_not_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"cannot read the log .*none: No such file or directory$"):
        format_of(tmp_path / "none")
    with pytest.raises(Refused, match=r"is a directory without books\.sqlite: name a log, or"):
        format_of(tmp_path)
    (tmp_path / "books.sqlite").write_bytes(b"SQLite format 3\x00" + bytes(100))
    with pytest.raises(Refused, match="cannot read the books"):
        read_log(tmp_path, one_node(1), LogOptions())


def test_held_devices_become_seconds_by_count() -> None:
    """One device from 0 to 10, another from 4 to 7, and alone again after a pause."""
    assert seconds_by_count([(0, 10), (4, 7), (12, 13)]) == {1: 4 + 3 + 1, 2: 3}
    assert seconds_by_count([(0, 5), (5, 9)]) == {1: 9}


def test_a_format_that_the_file_plainly_is_not_is_refused(tmp_path: Path) -> None:
    books, text = tmp_path / "books.sqlite", tmp_path / "sacct.txt"
    books.write_bytes(b"SQLite format 3\x00" + bytes(100))
    text.write_text(SLURM)
    for path, kind, words in (
        (books, "slurm", "is a broker's books, not a slurm log: leave --format out"),
        (tmp_path, "philly", "is a broker's books, not a philly log"),
        (text, "own", "is no broker's books"),
    ):
        refused = CliRunner().invoke(replay_app, [str(path), "--format", kind, "--gpus", "2"])
        assert refused.exit_code == 2
        assert words in " ".join(refused.stderr.split())
    books.unlink()
    refused = CliRunner().invoke(replay_app, [str(tmp_path), "--format", "slurm", "--gpus", "2"])
    assert refused.exit_code == 2
    assert "Errno" not in refused.stderr


def test_a_brokers_own_books_are_replayed_at_the_speed_they_show(tmp_path: Path) -> None:
    """A run is written into books as a broker writes them, then read back as a log."""
    truth = {"narrow": {1: 100.0}, "wide": {1: 400.0, 2: 200.0}}
    state = books_of_a_run(tmp_path, truth, devices=2)

    trace = read_log(state, one_node(2), LogOptions())
    assert [job.account for job in trace.jobs] == ["account-narrow", "account-wide"]
    assert [job.arrival_seconds for job in trace.jobs] == pytest.approx([0.0, 1.0])
    for job, (_, seconds) in zip(trace.jobs, truth.items(), strict=True):
        found = {place.devices: value for place, value in job.speed.placements.items()}
        assert found == pytest.approx(seconds, rel=0.05)
    assert trace.notes == ()


def test_own_jobs_run_on_fewer_devices_at_the_speed_they_bid_for(tmp_path: Path) -> None:
    """It held four devices all its life; what it bid for two is known, and is not twice its time on four."""
    state = books_of_a_run(tmp_path, {"wide": {1: 400.0, 2: 250.0, 4: 180.0}}, devices=4)
    trace = read_log(state, one_node(3), LogOptions())
    (job,) = trace.jobs
    found = {place.devices: value for place, value in job.speed.placements.items()}
    assert found == pytest.approx({1: 400.0, 2: 250.0}, rel=0.01)
    assert (job.gpus, job.resume) == (2, Resume.ELASTIC)
    assert trace.notes == (
        "1 jobs are wider than the 3 devices, and run on fewer at the speed they bid for: job-1 (4)",
    )


def test_a_brokers_own_books_know_their_devices(tmp_path: Path) -> None:
    state = books_of_a_run(tmp_path, {"narrow": {1: 100.0}, "wide": {1: 400.0, 2: 200.0}}, devices=2)
    common = ["--policy", "fifo", "--restart", "0", "--json"]
    alike = [CliRunner().invoke(replay_app, [str(state), *common, *given]) for given in ([], ["--gpus", "2"])]
    assert [result.exit_code for result in alike] == [0, 0]
    first, second = (json.loads(result.stdout) | {"wall_s": 0} for result in alike)
    assert first == second
    (tmp_path / "philly.csv").write_text(PHILLY)
    refused = CliRunner().invoke(replay_app, [str(tmp_path / "philly.csv"), *common])
    assert refused.exit_code == 2
    assert "--gpus is missing" in refused.stderr


def books_of_a_run(tmp_path: Path, truth: dict[str, dict[int, float]], *, devices: int) -> Path:
    """The state directory of a broker under which these elastic jobs ran, one after the other."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    jobs = [
        TraceJob(
            name=name,
            account=f"account-{name}",
            arrival_seconds=at,
            speed=by_count(seconds),
            gpus=max(seconds),
            alone_seconds=min(seconds.values()),
            resume=Resume.ELASTIC,
        )
        for at, (name, seconds) in enumerate(truth.items())
    ]
    history: list[Said] = []
    options = SimulationOptions(
        cluster=one_node(devices), term_seconds=60.0, habits=Habits(restart_seconds=0.5), report_seconds=5.0
    )
    simulation = Simulation(jobs, policy_named("themis"), options, listener=history.append)
    simulation.run()
    write_books(state, history, simulation.rules)
    return state


def write_books(state: Path, history: list[Said], rules: Rules) -> None:
    now = 0.0
    service = Service(SqlStore(f"sqlite:///{state / 'books.sqlite'}"), rules, monotonic=lambda: now)
    for said in history:
        now = said.at_seconds
        perform(service, said.call, said.arguments)
    service.close()


def test_the_command_says_what_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    path.write_text(PHILLY)
    common = [str(path), "--gpus", "2", "--policy", "fifo", "--restart", "0"]
    shown = CliRunner().invoke(replay_app, common)
    assert shown.exit_code == 0, shown.stderr
    assert "wider than the 2 devices, and capped" in shown.stdout
    answer = json.loads(CliRunner().invoke(replay_app, [*common, "--json"]).stdout)
    assert (answer["policy"], answer["jobs"]) == ("fifo", 2)
    for wrong, words in (
        (["--wider", "stretch"], "--wider is 'stretch'"),
        (["--format", "pbs"], "--format is 'pbs'"),
        (["--first", "0"], "--first is 0"),
        (["--elastic", "2"], "--elastic is 2"),
    ):
        refused = CliRunner().invoke(replay_app, [*common, *wrong])
        assert refused.exit_code == 2
        assert words in " ".join(refused.stderr.split())


def test_a_log_fits_a_cluster_of_several_nodes(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    path.write_text(PHILLY)
    cluster = parse_cluster("2x2")
    trace = read_log(path, cluster, LogOptions())
    options = SimulationOptions(cluster=cluster, habits=Habits(restart_seconds=0))
    ended = Simulation(trace.jobs, policy_named("themis"), options).run()
    assert all(job.finished_at is not None for job in ended)
