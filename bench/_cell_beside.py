"""A cell that shows a run, in a process of its own, as a kernel does: for `bench.overhead`.

`python -m bench._cell_beside STEP_SECONDS` feeds the cell's real view what a supervisor would tell it
of a run with such steps, in real time, until its input ends; then it prints the processor's seconds
since it began to draw.
"""

from __future__ import annotations

import select
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TOLD_EVERY_SECONDS = 0.25
"""How often ranks send what they timed."""


def main(step_seconds: float) -> None:
    """Draw until the input ends."""
    from selfsched.cell.view import CellView
    from selfsched.core.events import FitStarted, Progressed, StepsTimed, StepTiming
    from selfsched.elastic import channel
    from selfsched.elastic.job import JobDescription
    from selfsched.elastic.segment import boottime

    directory = Path(tempfile.gettempdir())
    job = JobDescription(
        run_directory=directory, name="bench", program="payload", working_directory=directory,
        min_devices=1, max_devices=2, plan="1@0",
    )  # fmt: skip
    view = CellView(job, display=_Nowhere())
    view.show(channel.SegmentBegan(ordinal=0, devices=("cpu0",), reason="as planned", at=boottime()))
    started = FitStarted(
        fit=1, package="none", global_batch=8, reference_devices=1, step=0, planned_steps=10**6,
        allowed_devices=(1, 2), at=boottime(),
    )  # fmt: skip
    view.show(channel.EventSeen(event=started))
    timing = StepTiming(
        step=0, seconds=0.9 * step_seconds, data_seconds=0.1 * step_seconds, cycle_seconds=step_seconds,
        forward_seconds=0.3 * step_seconds, backward_seconds=0.4 * step_seconds,
        optimiser_seconds=0.1 * step_seconds, communication_seconds=0.0, local_samples=8,
    )  # fmt: skip
    step, each = 0, max(1, round(TOLD_EVERY_SECONDS / step_seconds))
    print("ready", flush=True)
    used = time.process_time()
    while not select.select([sys.stdin], [], [], TOLD_EVERY_SECONDS)[0]:
        timings = tuple(timing.model_copy(update={"step": step + at}) for at in range(1, each + 1))
        step += each
        view.show(channel.EventSeen(event=StepsTimed(timings=timings)))
        progressed = Progressed(
            fit=1, step=step, epoch=0, samples=8 * step, metrics={"loss": 1 / step}, at=boottime()
        )
        view.show(channel.EventSeen(event=progressed))
        view.refresh()
    print(time.process_time() - used, flush=True)


class _Nowhere:
    """A display that nobody looks at."""

    def __call__(self, data: dict[str, Any], *, raw: bool, display_id: bool) -> _Nowhere:
        return self

    def update(self, data: dict[str, Any], *, raw: bool) -> None:
        """The output is replaced."""


if __name__ == "__main__":
    main(float(sys.argv[1]))
