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
