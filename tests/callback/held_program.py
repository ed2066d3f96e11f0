"""A program: a plain Trainer with the callback, whose steps and cores are written down."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from callback.fits import PACKAGES, loader, module, spy, trainer

from selfsched import SelfScheduler


def main(root: Path, steps: int, devices: int, stated: str) -> None:
    # A shell's background job is started with SIGINT ignored, and hands that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def note(t: Any) -> None:
        with open(root / f"steps-{t.global_rank}", "a") as file:
            file.write(f"{t.global_step} {sorted(os.sched_getaffinity(0))}\n")

    arguments: dict[str, Any] = {"devices": devices, "strategy": "ddp"} if devices > 1 else {}
    ours, look = SelfScheduler(explain=False, time=stated), spy(PACKAGES[0], "on_train_batch_end", note)
    fit = trainer(
        PACKAGES[0], root, ours, look,
        max_steps=steps, max_epochs=-1, **arguments,
    )  # fmt: skip
    fit.fit(module(step_seconds=0.02), loader(50), loader(2))
    print(f"rank {fit.global_rank} ended after step {fit.global_step}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
