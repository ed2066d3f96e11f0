"""A rank without torch that measures itself: `paced_rank.py STATE_FILE STEPS STEP_SECONDS`.

A step takes STEP_SECONDS on one device and half of that on two. It keeps the contract of a
segment: leaves with a "checkpoint" (the number in STATE_FILE) when ordered to, and by its
lease's deadline without being told. Every step is a line in STATE_FILE.steps: what ran when,
on which device of how many. Where SMALLEST_WORLD is set, it runs out of memory on fewer devices.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from selfsched.core.events import (
    CheckpointSaved,
    FitFinished,
    FitStarted,
    Left,
    Progressed,
    RankRaised,
    RankStarted,
    StepsTimed,
    StepTiming,
)
from selfsched.elastic.events import EventWriter
from selfsched.elastic.segment import ControlBlock, Order, SegmentSpec, boottime

WARM_UP_STEPS = 2


def main(state: Path, steps: int, step_seconds: float) -> int:
    spec = SegmentSpec.from_environment()
    assert spec is not None
    rank = int(os.environ["RANK"])
    writer = EventWriter(spec.events_socket)
    control = ControlBlock(spec.control_block)
    writer.send(RankStarted(rank=rank, pid=os.getpid()))
    step = first = int(state.read_text()) if state.exists() else 0
    if rank == 0:
        writer.send(
            FitStarted(
                fit=1, package="none", global_batch=8, reference_devices=1, step=step, planned_steps=steps,
                allowed_devices=(1, 2), at=boottime(),
            )
        )  # fmt: skip
    if spec.world_size < int(os.environ.get("SMALLEST_WORLD", "1")):
        words = "tried to allocate 20 GiB"
        writer.send(
            RankRaised(
                rank=rank, fit=1, type="OutOfMemoryError", message=words, traceback=words, out_of_memory=True
            )
        )
        writer.close()
        return 1
    pace = step_seconds / spec.world_size
    with open(f"{state}.steps", "a", buffering=1) as log:
        while step < steps:
            order, _, lease_ends_at = control.read()
            if order is not Order.GO_ON or boottime() >= lease_ends_at:
                return leave(state, step, rank, writer, "ordered" if order is not Order.GO_ON else "deadline")
            began = boottime()
            time.sleep(pace)  # the work
            step += 1
            log.write(f"{began} {boottime()} {spec.ordinal} {rank} {spec.world_size} {step}\n")
            if rank == 0:
                report(writer, step, boottime() - began, warm_up=step - first <= WARM_UP_STEPS)
    if rank == 0:
        state.write_text(str(step))
        writer.send(FitFinished(fit=1, step=step, epoch=1, metrics={}))
    writer.close()
    return 0


def report(writer: EventWriter, step: int, seconds: float, *, warm_up: bool) -> None:
    timing = StepTiming(step=step, seconds=seconds, local_samples=8, warm_up=warm_up)
    writer.send(StepsTimed(timings=(timing,)))
    writer.send(Progressed(fit=1, step=step, epoch=0, samples=8 * step, at=boottime()))


def leave(state: Path, step: int, rank: int, writer: EventWriter, reason: str) -> int:
    if rank == 0:
        state.write_text(str(step))
        writer.send(CheckpointSaved(fit=1, step=step, path=state, size_bytes=1, seconds=0.001))
    writer.send(Left(rank=rank, step=step, reason=reason))  # type: ignore[arg-type]
    writer.close()
    return 75


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
