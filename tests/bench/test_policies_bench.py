"""`bench.policies`: its form, and that a setting is what differs between two lines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench import policies
from bench._policies_lab import Case, cases, lab


def test_the_same_jobs_arrive_whatever_the_setting() -> None:
    usual, *others = cases()
    jobs = lab(usual, 1).jobs
    for case in others:
        there = lab(case, 1).jobs
        assert [job.name for job in there] == [job.name for job in jobs]
        if case.setting in ("term", "restart", "noise", "f", "rounds only"):
            assert there == jobs, case


def test_load_is_work_over_devices() -> None:
    sparse, dense = (lab(Case(setting="load", value="", load=load), 2).jobs for load in (0.5, 1.0))
    assert sparse[-1].arrival_seconds == pytest.approx(2 * dense[-1].arrival_seconds)


def test_elastic_parts() -> None:
    usual = next(iter(cases()))
    for part in (0.0, 1.0):
        jobs = lab(replace(usual, elastic=part), 1).jobs
        assert {job.resume == "elastic" for job in jobs} == {bool(part)}


@pytest.mark.slow
def test_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert policies.main(["--quick", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert {run["part"] for run in runs} == {"sensitivity"}
    assert {run["policy"] for run in runs} == {"selfsched", "themis"}
    assert all(0 < run["mean_completion_s"] <= run["makespan_s"] for run in runs)


def test_a_folder_without_traces_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert policies.main(["--traces", str(tmp_path)]) == 2
    assert "rigid_120_32gpu.csv" in capsys.readouterr().err


STEPS = """application,cluster,replicas,placement,local_batch,step_s,sync_s
toy,aws,1,1,64,0.1,0.0
toy,aws,1,1,128,0.2,0.0
toy,aws,2,2,64,0.12,0.02
toy,aws,2,2,128,0.22,0.02
"""
WORK = """application,global_batch,epoch,iteration
toy,128,0,100
toy,128,1,4000
"""
JOBS = """job,arrival_s,application,requested_replicas,global_batch
first,0,toy,1,128
second,30,toy,2,128
"""


def test_elastic_traces_are_run_by_their_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("elastic_pollux_1.csv", JOBS), ("steps.csv", STEPS), ("work.csv", WORK)):
        (tmp_path / name).write_text(text)
    tables = ["--steptimes", str(tmp_path / "steps.csv"), "--convergence", str(tmp_path / "work.csv")]
    assert policies.main(["--traces", str(tmp_path), *tables, "--only", "elastic", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["part"], run["policy"]) for run in runs] == [
        ("elastic", p) for p in policies.ELASTIC_POLICIES
    ]
    # 4,000 steps of 64 samples on each of two devices, and a restart; the second waits for a round, too.
    assert all(510 <= run["mean_completion_s"] <= 4000 * 0.12 + 30 + 60 for run in runs)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "policies"], "needs --traces"),
        (["--only", "elastic", "--traces", "."], "needs --steptimes"),
        (["--steptimes", "x.csv"], "go together"),
        (["--steptimes", "x.csv", "--convergence", "y.csv"], "there is no x.csv"),
    ],
)
def test_what_lacks_is_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert policies.main(arguments) == 2
    assert said in capsys.readouterr().err
