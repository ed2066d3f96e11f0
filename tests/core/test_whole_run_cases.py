"""The one table of cases that also holds the panel's rules (`jupyter_ext/src/wholeRun.ts`) to these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selfsched.core.whole_run import times_by_hours, times_like
from selfsched.errors import Refused
from selfsched.protocol import BidRow, JobState, JobView, Placement, Resume, StandingBid

CASES = json.loads(Path(__file__).with_name("whole_run_cases.json").read_text())


def a_running_job(case: dict[str, Any]) -> JobView:
    rows = tuple(
        BidRow(placement=Placement(devices=devices, nodes=nodes), remaining_seconds=seconds)
        for devices, nodes, seconds in case["rows"]
    )
    return JobView(
        job="job-1", name="digits", account="ann", state=JobState.RUNNING, min_devices=1, max_devices=64,
        resume=Resume.ELASTIC, priority=1.0, age_seconds=1.0, fraction_done=case["fraction_done"],
        bid=StandingBid(rows=rows),
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES["by_hours"])
def test_times_by_hours_are_those_of_the_table(case: dict[str, Any]) -> None:
    asked = tuple(case["asked"])
    times = times_by_hours(case["hours"], case["on"], max(case["on"], *asked), asked)
    assert [n for n, _ in times] == [n for n, _ in case["times"]]
    assert [s for _, s in times] == pytest.approx([s for _, s in case["times"]])


@pytest.mark.parametrize("case", CASES["like_a_running_job"])
def test_times_like_a_running_job_are_those_of_the_table(case: dict[str, Any]) -> None:
    job = a_running_job(case)
    if case["times"] is None:
        with pytest.raises(Refused):
            times_like(job)
        return
    times = times_like(job)
    assert [n for n, _ in times] == [n for n, _ in case["times"]]
    assert [s for _, s in times] == pytest.approx([s for _, s in case["times"]])
