"""Real trainings: their forecasts along the way, beside the mean rate's, against their real end.

Still ones are a script with the callback, whose own model is asked. Those that are moved between
device counts run under a real supervisor with a plan, as `selfsched run --plan` does, and a model
beside it hears what the supervisor hears; what is asked is the forecast over the plan.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench._forecast_score import MILESTONES, Noted, Row, RunName, mean_rate_seconds, rows_of
from selfsched.core.events import FitFinished, FitStarted, StepsTimed
from selfsched.core.job_model import JobModel
from selfsched.elastic import channel
from selfsched.elastic.allocation import Device, SegmentEnd
from selfsched.elastic.job import JobDescription
from selfsched.elastic.plan import Plan, PlannedStretch
from selfsched.elastic.run_directory import RunDirectory
from selfsched.elastic.segment import boottime
from selfsched.elastic.supervisor import Supervisor
from selfsched.launch.local_devices import private_cpu_devices
from selfsched.launch.locks import MachineLocks
from selfsched.protocol import Forecast

PROGRAM = Path(__file__).with_name("_forecast_program.py")
STILL = (
    "mlp", "cnn", "transformer", "slow_loader", "validation_heavy", "early_stopping", "unknown_length",
    "checkpoint_heavy",
)  # fmt: skip
MOVED: dict[str, tuple[tuple[int, float], ...]] = {
    "mlp-there_and_back": ((1, 0.0), (2, 0.06), (1, 0.5)),
    "cnn-to_a_new_count": ((1, 0.0), (2, 0.4)),
    "transformer-there_and_back": ((2, 0.0), (1, 0.06), (2, 0.6)),
    "slow_loader-back_and_forth": ((2, 0.0), (1, 0.3)),
}
"""(devices, from this part of the steps on)."""
TOO_LONG_SECONDS = 400.0


@dataclass(frozen=True)
class Moment:
    """What was known at one moment of a run."""

    at: float
    step: int
    forecast: Forecast | None
    end_is_unknown: bool


def still_rows(kind: str, seed: int, scale: float) -> list[Row]:
    """Train once on one device."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notes"
        command = [sys.executable, str(PROGRAM), kind, str(seed), str(scale), str(path)]
        subprocess.run(
            command, check=True, env=_environment(), cwd=folder, timeout=TOO_LONG_SECONDS,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        first, *lines, last = map(json.loads, path.read_text().splitlines())
    moments = [
        Moment(
            at=line["at"], step=line["step"], end_is_unknown=line["unknown"],
            forecast=None if line["forecast"] is None else Forecast.model_validate(line["forecast"]),
        )
        for line in lines
    ]  # fmt: skip
    name = RunName(name=f"{kind}-{seed}", kind=kind, source="real", resized=False, seed=seed)
    return _rows(moments, name, first["began"], first["limit"], last)


def moved_rows(kind: str, seed: int, scale: float) -> list[Row]:
    """Train once, moved between device counts."""
    steps = planned_steps(kind, seed, scale)
    plan = [(devices, round(part * steps)) for devices, part in MOVED[kind]]
    with tempfile.TemporaryDirectory() as folder:
        source = NotedPlan(plan)
        run = Path(folder) / "run"
        run.mkdir(mode=0o700)
        job = JobDescription(
            run_directory=run, program="command", working_directory=Path(folder), max_devices=2,
            command=(sys.executable, str(PROGRAM), kind, str(seed), str(scale)),
        )  # fmt: skip
        _supervise(job, source, Path(folder))
    if source.ended is None:
        raise RuntimeError(f"{kind} did not come to its end")
    name = RunName(name=f"{kind}-{seed}", kind=kind, source="real", resized=True, seed=seed)
    return _rows(source.moments, name, source.began, source.limit, source.ended)


class NotedPlan(Plan):
    """Plays a plan, and asks a model for the forecast over what is left of it."""

    def __init__(self, plan: list[tuple[int, int]]) -> None:
        most = max(devices for devices, _ in plan)
        super().__init__([PlannedStretch(n, 1, step) for n, step in plan], private_cpu_devices(most))
        self.model = JobModel(hardware="cpu", min_devices=1, max_devices=most)
        self.moments: list[Moment] = []
        self.began = 0.0
        self.limit: int | None = None
        self.ended: dict[str, Any] | None = None
        self._plan = plan

    def segment_started(self, ordinal: int, devices: tuple[Device, ...]) -> None:
        self.model.segment_started(len(devices), boottime())
        super().segment_started(ordinal, devices)

    def segment_ended(self, end: SegmentEnd) -> None:
        self.model.segment_ended(boottime())
        super().segment_ended(end)

    def handle(self, event: Any) -> None:
        now, model = boottime(), self.model
        model.observe(event, now)
        if isinstance(event, FitStarted) and not self.began:
            self.began, self.limit = now, event.planned_steps
        elif isinstance(event, FitFinished):
            self.ended = {"ended": now, "step": event.step}
        elif isinstance(event, StepsTimed) and model.devices:
            progress = model.progress(now)
            later = self._plan[self._current + 1 :]
            forecast = model.forecast_over(later, now) if later else model.forecast(model.devices, now)
            self.moments.append(Moment(now, progress.step, forecast, progress.end_is_unknown))


def planned_steps(kind: str, seed: int, scale: float) -> int:
    """Steps of a training with a known limit, on one device."""
    from bench._forecast_program import training

    what = training(kind, seed, scale)
    if "max_steps" in what.options:
        return int(what.options["max_steps"])
    return int(what.options["max_epochs"]) * -(-len(what.data) // what.batch)


def _rows(
    moments: list[Moment], run: RunName, began: float, limit: int | None, last: dict[str, Any]
) -> list[Row]:
    """Hold what was known nearest to each milestone against the end."""
    noted = []
    for at in MILESTONES:
        moment = min(moments, key=lambda moment: abs(moment.step - at * last["step"]))
        noted.append(
            Noted(
                at=at, made_at=moment.at, ours=moment.forecast, end_is_unknown=moment.end_is_unknown,
                mean_rate_seconds=mean_rate_seconds(moment.at - began, moment.step, limit),
            )
        )  # fmt: skip
    return rows_of(noted, last["ended"], run)


def _supervise(job: JobDescription, source: NotedPlan, folder: Path) -> None:
    supervisor = Supervisor(job, source, locks=MachineLocks(folder))
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    connection = channel.connect(RunDirectory(job.run_directory).supervisor_socket)
    if connection is None:
        raise RuntimeError("the supervisor cannot be reached")
    with connection:
        while connection.recv(65536):
            pass
    thread.join()


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parent.parent)
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
