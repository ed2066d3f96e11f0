"""What a run left in its directory: its history, and its model's word on a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from selfsched.core.history import FILE_NAME, ForecastMade, JobHistory
from selfsched.core.job_model import JobModel
from selfsched.demo.result import DemoForecast, StepParts
from selfsched.errors import SelfschedError
from selfsched.job_record import read_history, read_model


@dataclass(frozen=True)
class RunEvidence:
    """One run, as it wrote itself down."""

    history: JobHistory
    forecasts: tuple[DemoForecast, ...]
    steps: tuple[StepParts, ...]


def read_run(runs: Path) -> RunEvidence:
    """The one run in a directory of runs.

    Raises:
        SelfschedError: there is none, or it kept no history.
    """
    found = sorted(runs.glob(f"*/{FILE_NAME}"))
    history = read_history(found[-1].parent) if found else None
    if history is None:
        raise SelfschedError(f"no run in {runs} left a {FILE_NAME} that can be read")
    model = read_model(found[-1].parent)
    return RunEvidence(
        history=history,
        forecasts=tuple(_forecast(made) for made in history.forecasts if made.actual_finish_s is not None),
        steps=tuple(_steps(model)) if model else (),
    )


def _forecast(made: ForecastMade) -> DemoForecast:
    values = made.model_dump()
    rounded = {name: round(value, 2) for name, value in values.items() if name.endswith("_s")}
    return DemoForecast.model_validate(values | rounded)


def _steps(model: JobModel) -> Iterator[StepParts]:
    """Parts of a step on each device count that was measured."""
    for point in model.explanation().measured:
        model.segment_started(point.devices, 0.0)
        told = model.explanation()
        parts = dict(told.parts)
        # Ranks wait for each other inside of the backward pass.
        parts["backward"] = max(parts.get("backward", 0.0) - parts.get("communication", 0.0), 0.0)
        yield StepParts(
            devices=point.devices, steps=told.steps[point.devices], step_seconds=point.seconds, parts=parts
        )
