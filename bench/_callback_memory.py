"""Memory of a process that trains with or without the callback: `bench.overhead` runs it twice.

    python -m bench._callback_memory with|without FIT_STEPS FED_STEPS

Prints the resident bytes of the process after a fit of FIT_STEPS quick steps, after which,
with the callback, FED_STEPS more were fed through its model, a batch of a second's at a time,
with validations, checkpoints and forecasts between them: a long training in a short time.
What the callback imports is in it.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

BATCH_STEPS = 100
STEP_SECONDS = 0.01


def added_bytes(fit_steps: int, fed_steps: int) -> int:
    """Resident bytes that the callback adds to a process, imports included.

    Args:
        fit_steps: steps trained.
        fed_steps: further steps that the callback's model takes over.
    """
    return _resident_bytes("with", fit_steps, fed_steps) - _resident_bytes("without", fit_steps, fed_steps)


def _resident_bytes(which: str, fit_steps: int, fed_steps: int) -> int:
    command = [sys.executable, "-m", __name__, which, str(fit_steps), str(fed_steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=Path(__file__).parent.parent, env=environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def main() -> None:
    """One process of the two."""
    which, fit_steps, fed_steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()):
        _train(which == "with", fit_steps, fed_steps)
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    print(pages * os.sysconf("SC_PAGE_SIZE"))


def _train(with_callback: bool, fit_steps: int, fed_steps: int) -> None:
    from lightning.pytorch import Trainer

    from bench.overhead import busy_module, train_loader

    callbacks: list[Any] = []
    if with_callback:
        from selfsched import SelfScheduler

        callbacks.append(SelfScheduler(explain=False))
    trainer = Trainer(
        max_steps=fit_steps, accelerator="cpu", devices=1, logger=False, callbacks=callbacks,
        enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(busy_module(0.0), train_loader())
    if with_callback:
        feed(callbacks[0].model, fed_steps)


def feed(model: Any, steps: int) -> None:
    """Let a job's model take over `steps` steps, as a training over days would tell them.

    Args:
        model: a `JobModel`.
        steps: how many, beginning after those it knows.
    """
    from selfsched.core.events import Checked, FitStarted, Progressed, StepsTimed, StepTiming, StretchTimed

    now, step = 1e6, model.progress().step
    model.segment_started(1, now)
    model.observe(
        FitStarted(
            fit=model.fit + 1, package="lightning", global_batch=8, reference_devices=1, step=step,
            planned_steps=2 * (step + steps), batches_per_epoch=10 * BATCH_STEPS,
            steps_per_epoch=10 * BATCH_STEPS, validations=1000,
        ),
        now,
    )  # fmt: skip
    for batch in range(steps // BATCH_STEPS):
        # Some scatter, the same each time.
        cycles = [STEP_SECONDS * (1 + 0.1 * ((7919 * (step + i)) % 13) / 13) for i in range(BATCH_STEPS)]
        timings = tuple(
            StepTiming(
                step=step + i + 1, seconds=0.9 * cycle, data_seconds=0.05 * cycle, cycle_seconds=cycle,
                forward_seconds=0.3 * cycle, backward_seconds=0.5 * cycle, optimiser_seconds=0.1 * cycle,
                local_samples=8, warm_up=batch == 0 and i < 10,
            )
            for i, cycle in enumerate(cycles)
        )  # fmt: skip
        step, now = step + BATCH_STEPS, now + sum(cycles)
        model.observe(StepsTimed(timings=timings), now)
        metrics = {"loss": 1 / step}
        place = {"step": step, "epoch": batch // 10, "samples": 8 * step}
        model.observe(Progressed(fit=model.fit, metrics=metrics, at=now, **place), now)
        if batch % 10 == 9:
            for kind in ("validation", "checkpoint_save", "epoch_end"):
                told = {"stretch": kind, "seconds": 0.5, "step": step}
                model.observe(StretchTimed.model_validate(told), now)
            model.observe(Checked(step=step, values=metrics), now)
        model.forecast(1, now)


if __name__ == "__main__":
    main()
