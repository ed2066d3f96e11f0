"""Runs the command line as a person does: in a process of its own, with its own home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def selfsched(*arguments: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`selfsched ARGUMENTS` with nothing set but what is given here."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    env = {
        **kept,
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home),
        "SELFSCHED_LAB_SOCKET": str(home / "no-lab.sock"),
        "COLUMNS": "200",
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-m", "selfsched", *arguments],
        capture_output=True, text=True, env=env, cwd=home, timeout=200,
    )  # fmt: skip
