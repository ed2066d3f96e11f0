"""The predicted finish in the bar the user has: Lightning's tqdm or rich one, or none.

Nothing is subclassed or replaced: the bar asks `get_metrics` what to show beside the count,
and that answer gets one more entry. After a resume in the middle of an epoch Lightning's
tqdm bar knows neither its total nor that it did not do the first batches itself, so that
its rate and its remaining time are nonsense: both are told to it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from selfsched.core.bidding import duration_words
from selfsched.protocol import Forecast

ENTRY = "finish"


def finish_words(forecast: Forecast, wall_clock_seconds: float) -> str:
    """`14:32 ±3 min 00 s, 12 min 04 s left`; with seconds when it is near, the day when not.

    Args:
        forecast: seconds from now; ± is half the width of its 10-90 % range.
        wall_clock_seconds: Unix time now.
    """
    ahead = min(forecast.p50_seconds, 3e8)
    finish, today = time.localtime(wall_clock_seconds + ahead), time.localtime(wall_clock_seconds)
    form = "%H:%M:%S" if ahead < 600 else "%H:%M"
    if finish[:3] != today[:3]:
        form = "%d %b %H:%M"
    spread = duration_words(0.5 * (forecast.p90_seconds - forecast.p10_seconds))
    return f"{time.strftime(form, finish)} ±{spread}, {duration_words(ahead)} left"


def show_in(bar: Any, words: Callable[[], str | None]) -> Callable[[], None]:
    """Add the finish to what `bar` shows; returns what takes it out again.

    Args:
        bar: `trainer.progress_bar_callback`; None: no bar, nothing to do.
        words: the finish as it is known now; None: not known.
    """
    ask = getattr(bar, "get_metrics", None)
    if ask is None or "get_metrics" in vars(bar):
        return lambda: None

    def get_metrics(*arguments: Any, **named: Any) -> dict[str, Any]:
        items: dict[str, Any] = ask(*arguments, **named)
        finish = words()
        return items if finish is None else {**items, ENTRY: finish}

    bar.get_metrics = get_metrics

    def take_out() -> None:
        vars(bar).pop("get_metrics", None)

    return take_out


def tell_position(bar: Any, trainer: Any, batch_index: int) -> None:
    """Tell a tqdm bar in whose epoch a segment started where that was.

    Args:
        bar: Lightning's bar; others are left alone.
        trainer: for the epoch and its length.
        batch_index: of the first batch that this segment trains.
    """
    tqdm_bar = getattr(bar, "train_progress_bar", None) if hasattr(bar, "init_train_tqdm") else None
    if tqdm_bar is None or batch_index == 0:
        return
    total = float(trainer.num_training_batches)
    if trainer.max_steps > 0:  # the step of this batch is done already
        steps = trainer.max_steps - trainer.global_step + 1
        total = min(total, batch_index + steps * trainer.accumulate_grad_batches)
    if math.isfinite(total):
        tqdm_bar.total = int(total)
    tqdm_bar.initial = batch_index
    tqdm_bar.set_description(f"Epoch {trainer.current_epoch}")
