"""Runs in a directory of their own, with device locks of their own, one thread a rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisor.runs import Runs, fresh_runs


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    (tmp_path / "locks").mkdir()
    monkeypatch.setenv("SELFSCHED_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield from fresh_runs(tmp_path / "runs")
