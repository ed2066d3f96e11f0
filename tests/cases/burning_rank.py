"""A rank that keeps its device busy for nothing: `burning_rank.py STEPS`.

It makes so many steps, then computes without a step and obeys no order: what people run to
keep a card.
"""

from __future__ import annotations

import os
import sys

from selfsched.core.events import FitStarted, Progressed, RankStarted, StepsTimed, StepTiming
from selfsched.elastic.events import EventWriter
from selfsched.elastic.segment import SegmentSpec, boottime

STEP_SECONDS = 0.01


def burn(seconds: float) -> None:
    """Use the processor."""
    until = boottime() + seconds
    while boottime() < until:
        pass


def main(steps: int) -> None:
    spec = SegmentSpec.from_environment()
    assert spec is not None
    rank = int(os.environ["RANK"])
    writer = EventWriter(spec.events_socket)
    writer.send(RankStarted(rank=rank, pid=os.getpid()))
    if rank == 0:
        writer.send(
            FitStarted(
                fit=1, package="none", global_batch=8, reference_devices=1, step=0, planned_steps=1_000_000,
                allowed_devices=(1, 2), at=boottime(),
            )
        )  # fmt: skip
        for step in range(1, steps + 1):
            burn(STEP_SECONDS)
            timing = StepTiming(step=step, seconds=STEP_SECONDS, local_samples=8, warm_up=step <= 2)
            writer.send(StepsTimed(timings=(timing,)))
            writer.send(Progressed(fit=1, step=step, epoch=0, samples=8 * step, at=boottime()))
    while True:
        burn(1.0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
