"""Processes that a script spawns find the script, however the script's own path was given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from supervisor.runs import Runs

pytestmark = pytest.mark.slow

SCRIPT = """
import multiprocessing, sys

def tell():
    print("spawned in", __name__, flush=True)

if __name__ == "__main__":
    print("forked" if "selfsched.elastic.worker" in sys.modules else "cold", flush=True)
    worker = multiprocessing.get_context("spawn").Process(target=tell)
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)
"""


def test_a_script_given_by_a_relative_path_can_spawn_workers(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    run = runs.start([sys.executable, "code/train.py"], plan="1@0")
    assert run.finish() == 0, run.output()
    assert "forked" in run.output()
    assert run.output().count("spawned in __mp_main__") == 1
