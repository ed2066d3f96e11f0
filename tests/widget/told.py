"""Messages of a run, made up: what a cell is told of it over hours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfsched.core.events import FitStarted, Progressed, StepsTimed, StepTiming
from selfsched.elastic import channel
from selfsched.elastic.job import JobDescription

STEP_SECONDS = {1: 0.1, 2: 0.06}


class Shown:
    """Stands in for IPython's `display`: keeps what a notebook's file would hold."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, Any]] = []
        self.updates: list[int] = []
        """How often each output was replaced."""

    def __call__(self, data: dict[str, Any], *, raw: bool, display_id: bool) -> ShownOutput:
        assert raw
        assert display_id
        self.outputs.append(dict(data))
        self.updates.append(0)
        return ShownOutput(self, len(self.outputs) - 1)


@dataclass(frozen=True)
class ShownOutput:
    """Stands in for IPython's `DisplayHandle`."""

    shown: Shown
    at: int

    def update(self, data: dict[str, Any], *, raw: bool) -> None:
        """What `DisplayHandle.update` does to the output."""
        assert raw
        self.shown.updates[self.at] += 1
        self.shown.outputs[self.at] = dict(data)


def a_job(directory: Path, **changes: Any) -> JobDescription:
    values: dict[str, Any] = {
        "run_directory": directory, "name": "bert", "program": "payload", "working_directory": directory,
        "min_devices": 1, "max_devices": 2, "plan": "1@0",
    }  # fmt: skip
    return JobDescription(**(values | changes))


def seen(event: Any) -> channel.EventSeen:
    return channel.EventSeen(event=event)


def began(ordinal: int, devices: int, at: float, reason: str = "as planned") -> channel.SegmentBegan:
    ids = tuple(f"cpu{index}" for index in range(devices))
    return channel.SegmentBegan(ordinal=ordinal, devices=ids, reason=reason, at=at)


def left(ordinal: int, step: int, at: float, words: str = "") -> channel.SegmentEnded:
    return channel.SegmentEnded(ordinal=ordinal, reason="yielded", words=words, step=step, at=at)


def ended(step: int, outcome: Any = "finished") -> channel.RunEnded:
    return channel.RunEnded(outcome=outcome, exit_code=0, step=step)


def timed(first: int, count: int, seconds: float, devices: int) -> StepsTimed:
    timings = tuple(
        StepTiming(
            step=first + index, seconds=0.9 * seconds, data_seconds=0.05 * seconds, cycle_seconds=seconds,
            forward_seconds=0.3 * seconds, backward_seconds=0.5 * seconds, optimiser_seconds=0.05 * seconds,
            communication_seconds=0.1 * seconds if devices > 1 else 0.0, local_samples=64 // devices,
        )
        for index in range(count)
    )
    return StepsTimed(timings=timings)


def a_long_run(hours: float, *, every_seconds: float, move_seconds: float) -> Iterator[tuple[float, Any]]:
    """(instant, message) of a run that moves between one and two devices all the time."""
    end, now, step, ordinal, moved_at = 3600 * hours, 0.0, 0, 0, 0.0
    devices = 1
    yield now, began(0, devices, now)
    yield now, seen(
        FitStarted(
            fit=1, package="none", global_batch=64, reference_devices=1, step=0,
            planned_steps=int(end / STEP_SECONDS[1] * 1.3), allowed_devices=(1, 2), at=now,
        )
    )  # fmt: skip
    while now < end:
        now += every_seconds
        count = int(every_seconds / STEP_SECONDS[devices])
        yield now, seen(timed(step + 1, min(count, 64), STEP_SECONDS[devices], devices))
        step += count
        metrics = {"loss": 1 / (1 + step)}
        yield now, seen(Progressed(fit=1, step=step, epoch=0, samples=64 * step, metrics=metrics, at=now))
        text = f"step {step}: loss {metrics['loss']:.6f}, as usual\n" * 4
        yield now, channel.OutputSeen(stream="stdout", text=text)
        if now - moved_at >= move_seconds:
            moved_at, ordinal = now, ordinal + 1
            yield now, left(ordinal - 1, step, now)
            devices = 3 - devices
            yield now, began(ordinal, devices, now, "an auction moved it")
            yield now, channel.Said(text=f"moved for the {ordinal}th time")
    yield now, ended(step)
