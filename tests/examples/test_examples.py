"""The examples do what they say, in short: alone, without a launcher or a broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def environment(directory: Path) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "SELFSCHED_RUNS_DIR": str(directory / "runs")}


@pytest.mark.slow
def test_the_script_trains_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "chars.py"), "--steps", "12"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "after 12 steps" in done.stdout


@pytest.mark.slow
def test_the_notebook_runs_in_a_kernel_and_leaves_its_trained_model(tmp_path: Path) -> None:
    import nbformat

    target = tmp_path / "out.ipynb"
    command = [
        sys.executable,
        "-m",
        "selfsched.demo.notebook",
        str(EXAMPLES / "digits.ipynb"),
        str(target),
        "10",
    ]
    done = subprocess.run(
        command,
        env=environment(tmp_path) | {"SELFSCHED_OFF": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of unseen digits read, 30 steps" in done.stdout
    assert any("30 steps" in json.dumps(cell.get("outputs", ())) for cell in nbformat.read(target, 4).cells)


def test_the_notebook_is_one_cell_without_outputs() -> None:
    cells = json.loads((EXAMPLES / "digits.ipynb").read_text())["cells"]
    (code,) = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code["outputs"] == []
    assert code["execution_count"] is None
