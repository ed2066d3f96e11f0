"""The demo in short form, as people run it: real processes, a real broker, a real kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from selfsched.demo.processes import MARK_VARIABLE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The account of one short demo, and where its report is."""
    report = tmp_path_factory.mktemp("demo") / "report"
    done = subprocess.run(
        [sys.executable, "-m", "selfsched", "demo", "--quick", "--json", "--report", str(report)],
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    account: dict[str, Any] = json.loads(done.stdout)
    return account, report


@pytest.fixture(scope="module")
def jobs(demo: tuple[dict[str, Any], Path]) -> dict[str, Any]:
    return {job["account"]: job for job in demo[0]["jobs"]}


def devices(job: dict[str, Any]) -> list[int]:
    return [segment["devices"] for segment in job["segments"]]


def test_both_jobs_finished_and_saw_each_sample_once(jobs: dict[str, Any]) -> None:
    assert set(jobs) == {"notebook", "script"}
    assert all(job["finished"] for job in jobs.values())
    assert all(job["samples_seen_once"] for job in jobs.values())


def test_the_notebook_shrank_for_the_script_and_grew_back(jobs: dict[str, Any]) -> None:
    counts = devices(jobs["notebook"])
    turns = [b - a for a, b in pairwise(counts) if a != b]
    assert counts[-1] == 2
    assert turns[-2:] == [-1, 1], counts
    assert set(devices(jobs["script"])) == {1}


def test_segments_follow_one_another_and_hold_all_steps(jobs: dict[str, Any]) -> None:
    for job in jobs.values():
        assert all(segment["start_s"] < segment["end_s"] for segment in job["segments"])
        assert all(a["end_s"] <= b["start_s"] for a, b in pairwise(job["segments"]))
        assert all(segment["steps"] > 0 for segment in job["segments"])


def test_each_job_was_forecast_along_its_way(jobs: dict[str, Any]) -> None:
    for job in jobs.values():
        marks = {forecast["at"] for forecast in job["forecasts"]}
        assert {0.5, 0.75} <= marks, marks
        for forecast in job["forecasts"]:
            assert forecast["low_s"] <= forecast["predicted_finish_s"] <= forecast["high_s"]
            assert forecast["made_at_s"] < forecast["actual_finish_s"]


def test_each_job_has_a_final_rho(jobs: dict[str, Any]) -> None:
    assert all(job["rho"] > 0 for job in jobs.values())


def test_two_devices_were_faster_than_one(demo: tuple[dict[str, Any], Path]) -> None:
    assert demo[0]["speedup_two_devices"] > 1.0


def test_the_report_is_there_and_says_that_nothing_is_leased(demo: tuple[dict[str, Any], Path]) -> None:
    html = (demo[1] / "report.html").read_text()
    assert html.count("<svg") == 5
    assert "still live" not in html


def test_no_process_of_the_demo_is_left(demo: tuple[dict[str, Any], Path]) -> None:
    left = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK_VARIABLE}=".encode() in (entry / "environ").read_bytes():
                left.append(entry.name)
        except OSError:
            continue
    assert str(os.getpid()) not in left
    assert left == []
