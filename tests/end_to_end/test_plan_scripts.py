"""2-1-2 by plan equals an uninterrupted run, for one script however it is started."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from end_to_end.plan_program import SAMPLES
from supervisor.runs import Runs, fresh_runs

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent / "plan_program.py"
TRAINER_PROGRAM = Path(__file__).parent / "trainer_program.py"
PLAN = "2@0,1@7,2@22"
SHORT_PLAN = "1@0,2@20"
"""For the way that starts each rank from nothing."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("plans")
    (root / "locks").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELFSCHED_LOCK_DIR", str(root / "locks"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(PROGRAM.parent)]))
        yield from fresh_runs(root / "runs")


def trained(runs: Runs, tmp_path: Path, command: list[str], name: str, plan: str) -> dict[str, Any]:
    result = tmp_path / "result.json"
    command = [part.replace("RESULT", str(result)) for part in command]
    run = runs.start(command, name=name, plan=plan)
    assert run.finish() == 0, run.output()
    assert run.output().count("trained to the end") == 1
    run.assert_nothing_left()
    return {**json.loads(result.read_text()), "seen": samples_seen(result), "run": run}


def samples_seen(result: Path) -> dict[int, collections.Counter[int]]:
    seen: dict[int, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for path in result.parent.glob("result.json.seen.*"):
        for line in path.read_text().splitlines():
            epoch, sample = map(int, line.split())
            seen[epoch][sample] += 1
    return seen


@pytest.fixture(scope="module")
def uninterrupted(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAM), "--result", "RESULT"]
    return trained(runs, tmp_path_factory.mktemp("uninterrupted"), command, "uninterrupted", "2@0")


WAYS = {
    "script": [sys.executable, str(PROGRAM), "--result", "RESULT", "--workers", "1"],
    "module": [sys.executable, "-m", "plan_program", "--result", "RESULT", "--package", "pytorch_lightning"],
    "shell": ["bash", "-c", f"{sys.executable} {PROGRAM} --result RESULT && echo done"],
}


@pytest.mark.parametrize("way", WAYS)
def test_two_one_two_equals_uninterrupted(
    runs: Runs, tmp_path: Path, uninterrupted: dict[str, Any], way: str
) -> None:
    plan, devices = (SHORT_PLAN, [1, 2]) if way == "shell" else (PLAN, [2, 1, 2])
    planned = trained(runs, tmp_path, WAYS[way], way, plan)
    began = [len(event["devices"]) for event in planned["run"].events("segment_began")]
    assert began == devices
    planned_steps = {event["planned_steps"] for event in planned["run"].events("fit_started")}
    assert len(planned_steps) == 1, "in the middle of an epoch the rest of it is to come, not all of it"
    assert "the same on 1, 2 device(s)" in planned["run"].output(), "what the plan says, not --devices"
    differences = [abs(a - b) for a, b in zip(planned["weights"], uninterrupted["weights"], strict=True)]
    assert max(differences) <= 1e-6
    for same in ("step", "epoch", "best"):
        assert planned[same] == uninterrupted[same]
    assert planned["tested"] == pytest.approx(uninterrupted["tested"], abs=1e-5)
    assert sorted(planned["seen"]) == [0, 1, 2]
    for seen in planned["seen"].values():
        assert len(seen) == SAMPLES
        assert set(seen.values()) == {1}, "each sample once an epoch"


def test_the_elastic_trainer_in_a_script_is_the_same_alone_and_under_the_launcher(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELFSCHED_RUNS_DIR", str(tmp_path / "runs"))
    alone, launched = tmp_path / "alone.json", tmp_path / "launched.json"
    command = [sys.executable, str(TRAINER_PROGRAM)]
    done = subprocess.run([*command, str(alone), "1@0,2@5"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = runs.start([*command, str(launched), "1@0"], name="launched", plan="2@0,1@7", max_devices=2)
    assert run.finish() == 0, run.output()
    assert len(run.events("segment_began")) == 2
    assert json.loads(launched.read_text()) == pytest.approx(json.loads(alone.read_text()), abs=1e-6)
    run.assert_nothing_left()
