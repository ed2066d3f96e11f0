"""Private names of Lightning and torch that measuring uses, and nowhere else.

- `fit_loop.epoch_loop._on_before_fetch`, `_on_after_fetch` (Lightning 2.0-2.6): the pure
  wait for data. Without them it is unknown and its time is in "other".
- DDP's `_set_ddp_runtime_logging_sample_rate`, `_get_ddp_logging_data` (torch 1.10-2.13):
  communication, and whether buckets were rebuilt. Without them accumulation passes tell
  communication, or nothing does.
- `torch._dynamo.utils.counters` (torch 2.0-2.13): whether something was compiled. Without it
  a step with a compilation is found only among the first, by its length.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_BEFORE, _AFTER = "_on_before_fetch", "_on_after_fetch"


def watch_fetching(trainer: Any, before: Callable[[], None], after: Callable[[], None]) -> bool:
    """Call `before` and `after` around each fetch of a training batch; False if it cannot be."""
    loop = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
    theirs_before, theirs_after = getattr(loop, _BEFORE, None), getattr(loop, _AFTER, None)
    if theirs_before is None or theirs_after is None:
        return False

    def before_fetch() -> None:
        theirs_before()
        before()

    def after_fetch() -> None:
        after()
        theirs_after()

    setattr(loop, _BEFORE, before_fetch)
    setattr(loop, _AFTER, after_fetch)
    return True


def unwatch_fetching(trainer: Any) -> None:
    """Undo `watch_fetching`."""
    loop = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
    for name in (_BEFORE, _AFTER):
        if loop is not None:
            vars(loop).pop(name, None)


def sample_ddp_logging(module: Any, every_steps: int) -> bool:
    """Let DDP time one step in `every_steps`; False where there is no such logger."""
    setter = getattr(module, "_set_ddp_runtime_logging_sample_rate", None)
    if setter is None or getattr(module, "_get_ddp_logging_data", None) is None:
        return False
    setter(every_steps)
    return True


def ddp_logging_data(module: Any) -> dict[str, Any]:
    """What DDP knows of its newest sampled step, times in nanoseconds."""
    return dict(module._get_ddp_logging_data())


def compilations() -> int:
    """Frames that torch.compile has looked at in this process; 0 where it is not in use."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0
    frames = getattr(dynamo, "counters", {}).get("frames")
    return int(frames.get("total", 0)) if frames else 0
