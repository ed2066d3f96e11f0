"""The house as a failing test: imports point one way, and what must stay light is light."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import selfsched.core
import selfsched_broker.core

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "lightning", "pytorch_lightning", "httpx", "fastapi", "uvicorn", "sqlalchemy", "starlette")
CORES = [
    found.name
    for package in (selfsched.core, selfsched_broker.core)
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
]


def loaded_by(*modules: str) -> set[str]:
    """Names of all modules that a fresh interpreter has after importing these."""
    program = f"import sys, json, {', '.join(modules)}; print(json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "server")])}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    return set(json.loads(done.stdout))


def heavy(modules: set[str]) -> set[str]:
    return {name for name in modules if name.split(".")[0] in HEAVY}


def test_import_linter_keeps_every_contract() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_cores_are_found() -> None:
    assert "selfsched.core.job_model" in CORES
    assert "selfsched_broker.core.books" in CORES


def test_protocol_and_all_cores_load_nothing_heavy() -> None:
    assert heavy(loaded_by("selfsched", "selfsched.protocol", "selfsched.errors", *CORES)) == set()


def test_importing_selfsched_alone_adds_a_handful_of_modules() -> None:
    added = loaded_by("selfsched") - loaded_by("importlib", "typing")
    assert heavy(added) == set()
    assert len(added) <= 10, sorted(added)


@pytest.mark.parametrize("module", ["selfsched.cli", "selfsched.settings", "selfsched.elastic.segment"])
def test_what_every_command_and_rank_loads_first_is_without_torch(module: str) -> None:
    assert heavy(loaded_by(module)) == set()
