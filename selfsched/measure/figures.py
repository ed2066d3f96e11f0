"""The figures that go to a Trainer's loggers, under names that stay.

What is not known is left out of a row: it is never logged as zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from selfsched.core.events import DeviceObserved
from selfsched.core.progress import Progress
from selfsched.measure.stopwatch import StepTimes
from selfsched.protocol import Forecast

PREFIX = "selfsched/"
LOGGED = (
    "devices",
    "step_seconds",
    "data_seconds",
    "forward_seconds",
    "backward_seconds",
    "optimiser_seconds",
    "communication_seconds",
    "samples_per_second",
    "fraction_done",
    "remaining_seconds_p10",
    "remaining_seconds_p50",
    "remaining_seconds_p90",
    "gpu_utilisation",
    "gpu_clock_ratio",
    "gpu_held_back",
)
"""Every name after the prefix, as `docs/training.md` explains them."""


def step_figures(times: StepTimes, communication_seconds: float | None, devices: int) -> dict[str, float]:
    """Of one optimiser step.

    Args:
        times: of the step.
        communication_seconds: exposed communication of a step, as last measured.
        devices: ranks that train.
    """
    cycle = times.cycle_seconds or times.seconds
    found = {
        "step_seconds": cycle,
        "data_seconds": times.data_seconds,
        "forward_seconds": times.forward_seconds,
        "backward_seconds": times.backward_seconds,
        "optimiser_seconds": times.optimiser_seconds,
        "communication_seconds": communication_seconds,
        "samples_per_second": times.local_samples * devices / cycle if cycle > 0 else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def end_figures(
    progress: Progress, step: int, forecast: Forecast | None, age_seconds: float
) -> dict[str, float]:
    """Of the way to the end.

    Args:
        progress: as the model last knew it; it hears of steps in batches.
        step: global step now.
        forecast: as last made, or None.
        age_seconds: since then.
    """
    planned = progress.planned_steps
    done = max(progress.fraction_done, min(1.0, step / planned) if planned else 0.0)
    if forecast is None:
        return {"fraction_done": done}
    left = {name: getattr(forecast, f"{name}_seconds") - age_seconds for name in ("p10", "p50", "p90")}
    return {"fraction_done": done} | {
        f"remaining_seconds_{name}": max(0.0, seconds) for name, seconds in left.items()
    }


def gpu_figures(seen: Sequence[DeviceObserved]) -> dict[str, float]:
    """Of the GPUs of this machine, the mean over those that say."""
    told = {
        "gpu_utilisation": [gpu.utilisation for gpu in seen],
        "gpu_clock_ratio": [gpu.clock_ratio for gpu in seen],
        "gpu_held_back": [_held_back(gpu) for gpu in seen],
    }
    known = {name: [value for value in values if value is not None] for name, values in told.items()}
    return {name: sum(values) / len(values) for name, values in known.items() if values}


def _held_back(gpu: DeviceObserved) -> float | None:
    return None if gpu.held_back is None else max(gpu.held_back.values(), default=0.0)
