"""A program: two gloo ranks train without and with the callback and count their collectives."""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from callback.fits import PACKAGES, loader, module, trainer

from selfsched import SelfScheduler

counts: Counter[str] = Counter()


def counted(name: str) -> None:
    """Count the calls of one function of torch.distributed."""
    original = getattr(dist, name)

    def call(*arguments: Any, **named: Any) -> Any:
        counts[name] += 1
        return original(*arguments, **named)

    setattr(dist, name, call)


def fit(directory: Path, *callbacks: Any) -> dict[str, int]:
    """Collectives of one fit of 60 steps on two ranks."""
    counts.clear()
    run = trainer(
        PACKAGES[0], directory, *callbacks, max_steps=60, devices=2, strategy="ddp", barebones=False
    )
    run.fit(module(), loader(200))
    return dict(counts)


def main(directory: Path) -> None:
    for name in ("all_reduce", "broadcast", "barrier", "all_gather", "all_gather_object", "reduce"):
        counted(name)
    torch.cuda.synchronize = lambda *_: counts.update(["synchronize"])  # type: ignore[assignment]
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    callback = SelfScheduler(explain=False)
    without, with_callback = fit(directory), fit(directory, callback)
    if callback.model is None:  # rank 1
        return
    communication = callback.model.explanation().parts.get("communication", 0.0)
    result = {"without": without, "with": with_callback, "communication_seconds": communication}
    (directory / "counts.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
