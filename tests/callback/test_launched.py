"""Under a launcher: what rank 0 measures reaches the supervisor's socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from callback.fits import PACKAGES, loader, module, trainer

from selfsched import SelfScheduler
from selfsched.core.job_model import JobModel
from selfsched.elastic.segment import SEGMENT_VARIABLE, ControlBlock, SegmentSpec, event_from_line


class Supervisor:
    """Listens where the supervisor would, until the rank hangs up."""

    def __init__(self, path: Path) -> None:
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen(1)
        self._lines: list[bytes] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        connection, _ = self._server.accept()
        with connection, connection.makefile("rb") as lines:
            self._lines.extend(lines)

    def events(self) -> list[Any]:
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._server.close()
        return [event_from_line(line) for line in self._lines]


def test_what_rank_0_measures_makes_a_model_at_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ) | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
    supervisor = Supervisor(tmp_path / "events")
    ControlBlock(tmp_path / "control", create=True).close()
    spec = SegmentSpec(
        run_directory=tmp_path, ordinal=0, world_size=1, max_devices=2,
        events_socket=tmp_path / "events", control_block=tmp_path / "control",
    )  # fmt: skip
    spec.write(tmp_path / "segment.json")
    os.environ[SEGMENT_VARIABLE] = str(tmp_path / "segment.json")
    callback = SelfScheduler()
    fit = trainer(PACKAGES[0], tmp_path / "logs", callback, max_epochs=2)
    fit.fit(module(step_seconds=0.003), loader(60), loader(2))

    from selfsched.elastic import hooks

    hooks.uninstall()  # the rank hangs up
    events = supervisor.events()
    model = JobModel(hardware="cpu", min_devices=1, max_devices=2)
    model.segment_started(1, events[0].at if hasattr(events[0], "at") else 0.0)
    for event in events:
        model.observe(event, 1e6)
    kinds = {event.kind for event in events}
    assert {"fit_started", "steps_timed", "progressed", "stretch_timed", "fit_finished"} <= kinds
    timed = [timing.step for event in events if event.kind == "steps_timed" for timing in event.timings]
    assert timed == list(range(1, 121))
    assert [e.stretch for e in events if e.kind == "stretch_timed"].count("validation") == 2
    assert [event.kind for event in events].count("steps_timed") <= 8  # in batches, not one a step
    progressed = [event for event in events if event.kind == "progressed"]
    assert {event.fit for event in progressed} == {1}
    assert (progressed[-1].samples, progressed[-1].epoch) == (480, 2)
    assert "loss" in progressed[-1].metrics
    assert model.progress().step == 120
    assert model.step_time(1) is not None
    assert "A step takes" not in capsys.readouterr().out  # the supervisor says it, once a run


@pytest.mark.slow
def test_two_ranks_make_as_many_collectives_with_the_callback_as_without(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("counted_ddp.py")), str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "counts.json").read_text())
    assert found["without"] == found["with"]
    assert found["with"]["all_reduce"] + found["with"]["broadcast"] > 0
    assert found["communication_seconds"] > 0
