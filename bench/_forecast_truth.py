"""The hidden truth of a replayed run: what each step, validation, checkpoint and restart takes.

A run is drawn from a family and a seed. Every family has the background of an ordinary machine
(step noise, a little slow wandering, rare hiccups, a slow start, the stretches between epochs);
what it is named for comes on top. Sizes and durations are drawn over orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from selfsched.core.events import StoppingRule

Random = np.random.Generator
Array = np.ndarray[tuple[int], np.dtype[np.float64]]

RESIZED = ("resize_back_and_forth", "resize_to_a_new_count", "resize_once_early")


@dataclass
class Truth:
    """One run, wholly known. Steps are counted from 0; all arrays have `limit_steps` entries."""

    family: str
    seed: int
    limit_steps: int
    """Steps until max_epochs or max_steps."""
    steps: int
    """Steps until the end that came (early stopping, max_time); set by the player for max_time."""
    epoch_steps: int
    step_seconds: Array
    """On the devices of that step, warm-up of segments left out."""
    plan: tuple[tuple[int, int], ...] = ((1, 0),)
    """(devices, from step) of each segment."""
    length_is_stated: bool = True
    counts_epochs: bool = True
    """Whether max_epochs, not max_steps, is the limit."""
    max_seconds: float | None = None
    start_seconds: float = 2.0
    save_seconds: float = 0.2
    first_step_factor: float = 10.0
    settling_steps: int = 8
    validation_seconds: float = 0.0
    validation_pass_share: float = 0.4
    """A batch of a validation takes this share of a step."""
    checkpoint_seconds: float = 0.0
    gradient_bytes: int = 4_000_000
    """A third of a checkpoint (Adam's)."""
    epoch_gap_seconds: float = 0.05
    batches: Array | None = None
    """Samples of a step on all devices, where they change; None: always the same."""
    rule: StoppingRule | None = None
    curve: list[float] = field(default_factory=list)
    """The monitored value after each epoch."""

    @property
    def resized(self) -> bool:
        return len(self.plan) > 1


def draw(family: str, seed: int, *, largest_steps: int = 4000) -> Truth:
    """The run number `seed` of a family; the same one each time."""
    rng = np.random.default_rng([FAMILIES.index(family), seed])
    steps = int(np.exp(rng.uniform(np.log(240), np.log(largest_steps))))
    epochs = int(np.clip(np.exp(rng.uniform(np.log(2), np.log(40))), 2, steps // 12))
    epoch_steps = steps // epochs
    steps = epochs * epoch_steps
    base = float(np.exp(rng.uniform(np.log(0.004), np.log(2.0))))
    cycles = base * _noise(rng, steps) * _wander(rng, steps, rng.uniform(0.0, 0.04))
    hiccups = rng.random(steps) < rng.choice([0.0, 0.001, 0.005])
    cycles += hiccups * base * rng.uniform(1, 5, steps)
    epoch_seconds = base * epoch_steps
    truth = Truth(
        family=family, seed=seed, limit_steps=steps, steps=steps, epoch_steps=epoch_steps,
        step_seconds=cycles,
        counts_epochs=bool(rng.random() < 0.7),
        start_seconds=float(np.exp(rng.uniform(np.log(0.3), np.log(20.0)))),
        save_seconds=float(np.exp(rng.uniform(np.log(0.02), np.log(3.0)))),
        first_step_factor=float(np.exp(rng.uniform(np.log(2), np.log(60)))),
        settling_steps=int(rng.integers(1, 15)),
        validation_seconds=epoch_seconds * float(rng.uniform(0.02, 0.25)) * bool(rng.random() < 0.7),
        validation_pass_share=float(rng.uniform(0.2, 0.7)),
        checkpoint_seconds=float(rng.uniform(0.005, 0.05)) * epoch_seconds * bool(rng.random() < 0.7),
        epoch_gap_seconds=float(rng.uniform(0.0, 0.02)) * epoch_seconds,
    )  # fmt: skip
    _FAMILIES[family](truth, rng)
    _weigh(truth, rng)
    return truth


def _weigh(truth: Truth, rng: Random) -> None:
    """A checkpoint that takes long holds much, on a disk of some speed: a job knows its bytes.

    Over a move between devices bytes are what is exchanged, too: those runs keep a small model.
    """
    disk = 2e8 * float(np.exp(0.7 * rng.standard_normal()))
    if truth.checkpoint_seconds and not truth.resized:
        truth.gradient_bytes = int(truth.checkpoint_seconds * disk / 3)


# --- background -------------------------------------------------------------------------------


def _noise(rng: Random, steps: int) -> Array:
    """Independent noise of single steps, and some that lasts for tens of steps."""
    sigma = np.exp(rng.uniform(np.log(0.02), np.log(0.25)))
    noise = sigma * rng.standard_normal(steps)
    lasting = rng.choice([0.0, 0.3, 0.6]) * sigma
    correlation = np.exp(-1.0 / rng.uniform(5, 60))
    state, kicks = 0.0, lasting * np.sqrt(1 - correlation**2) * rng.standard_normal(steps)
    for index in range(steps):
        state = correlation * state + kicks[index]
        noise[index] += state
    return np.exp(noise)  # type: ignore[no-any-return]


def _wander(rng: Random, steps: int, size: float) -> Array:
    """A random walk of the level, with such a standard deviation (log) at the end."""
    return np.exp(np.cumsum(rng.standard_normal(steps)) * size / np.sqrt(steps))  # type: ignore[no-any-return]


# --- what a family adds -----------------------------------------------------------------------


def _steady(truth: Truth, rng: Random) -> None:
    """The background alone."""


def _noisy(truth: Truth, rng: Random) -> None:
    truth.step_seconds *= np.exp(rng.uniform(0.3, 0.6) * rng.standard_normal(truth.limit_steps))


def _heavy_tail(truth: Truth, rng: Random) -> None:
    hit = rng.random(truth.limit_steps) < rng.uniform(0.01, 0.08)
    truth.step_seconds *= 1.0 + hit * np.minimum(rng.pareto(rng.uniform(1.5, 3.0), truth.limit_steps), 60) * 3


def _wandering(truth: Truth, rng: Random) -> None:
    truth.step_seconds *= _wander(rng, truth.limit_steps, rng.uniform(0.1, 0.3))


def _neighbour(truth: Truth, rng: Random) -> None:
    """Another job shares the device from time to time."""
    factor, share = rng.uniform(1.15, 1.7), rng.uniform(0.2, 0.7)
    period = truth.limit_steps * rng.uniform(0.02, 0.2)
    index, here = 0, bool(rng.random() < share)
    while index < truth.limit_steps:
        length = 1 + int(rng.exponential(period * (share if here else 1 - share)))
        if here:
            truth.step_seconds[index : index + length] *= factor
        index, here = index + length, not here


def _level_change(truth: Truth, rng: Random) -> None:
    """Throttling, a slower disk, a neighbour that stays; or its end."""
    at = int(truth.limit_steps * rng.uniform(0.03, 0.9))
    truth.step_seconds[at:] *= np.exp(rng.choice([-1, 1]) * rng.uniform(0.1, 0.5))


def _trend(truth: Truth, rng: Random) -> None:
    slope = rng.choice([-1, 1]) * rng.uniform(0.1, 0.5)
    truth.step_seconds *= np.exp(slope * np.linspace(0, 1, truth.limit_steps))


def _validation_heavy(truth: Truth, rng: Random) -> None:
    truth.validation_seconds = truth.epoch_steps * float(truth.step_seconds.mean()) * rng.uniform(0.4, 1.5)


def _checkpoint_heavy(truth: Truth, rng: Random) -> None:
    truth.checkpoint_seconds = truth.epoch_steps * float(truth.step_seconds.mean()) * rng.uniform(0.15, 0.6)


def _short_epochs(truth: Truth, rng: Random) -> None:
    truth.epoch_steps = int(rng.integers(1, 6))
    truth.limit_steps = truth.steps = truth.limit_steps // truth.epoch_steps * truth.epoch_steps
    scale = truth.epoch_steps * float(truth.step_seconds.mean())
    truth.validation_seconds, truth.checkpoint_seconds = scale * rng.uniform(0, 0.4), 0.0
    truth.epoch_gap_seconds = scale * rng.uniform(0.05, 0.5)


def _slow_start(truth: Truth, rng: Random) -> None:
    """Compilation, a cold cache."""
    truth.first_step_factor = rng.uniform(50, 300)
    truth.settling_steps = int(rng.integers(10, 40))


def _data_stalls(truth: Truth, rng: Random) -> None:
    """Every so many steps the loader is not ready (a shard ends, a worker's queue runs dry)."""
    every = int(rng.integers(4, 40))
    truth.step_seconds[::every] *= rng.uniform(2, 12)


def _suspended(truth: Truth, rng: Random) -> None:
    """Stopped once or twice for what is an age to a step, and up to a tenth of the run."""
    hits = rng.integers(1, truth.limit_steps, size=int(rng.integers(1, 3)))
    whole = float(truth.step_seconds.sum())
    stop = max(8.0, 25 * float(np.median(truth.step_seconds)))
    if whole < 10 * stop:
        truth.step_seconds *= 10 * stop / whole
    truth.step_seconds[hits] += rng.uniform(1.0, 2.0) * stop


def _unknown_length(truth: Truth, rng: Random) -> None:
    truth.length_is_stated, truth.counts_epochs = False, True


def _early_stopping(truth: Truth, rng: Random) -> None:
    """Patience over a curve that falls, flattens and may rise again."""
    epochs = 120
    truth.epoch_steps = int(rng.integers(8, 40))
    truth.limit_steps = truth.steps = epochs * truth.epoch_steps
    base = float(np.median(truth.step_seconds))
    truth.step_seconds = base * _noise(rng, truth.limit_steps) * _wander(rng, truth.limit_steps, 0.03)
    truth.validation_seconds = base * truth.epoch_steps * rng.uniform(0.05, 0.4)
    truth.counts_epochs = True
    epoch, tau = np.arange(1, epochs + 1), np.exp(rng.uniform(np.log(3), np.log(40)))
    falling = np.exp(-epoch / tau) if rng.random() < 0.5 else (1 + epoch / tau) ** -rng.uniform(0.5, 1.5)
    rising = rng.choice([0.0, 0.002, 0.01]) * epoch
    noise = rng.uniform(0.003, 0.05) * rng.standard_normal(epochs)
    curve = rng.uniform(0.1, 1.0) + falling + rising + noise
    mode = "min" if rng.random() < 0.5 else "max"
    curve = curve if mode == "min" else 3.0 - curve
    rule = StoppingRule(monitor="val", mode=mode, patience=int(rng.choice([3, 5, 8, 10])))
    truth.rule, truth.curve = rule, [float(value) for value in curve]
    truth.steps = stopping_epoch(truth.curve, rule) * truth.epoch_steps


def _max_time(truth: Truth, rng: Random) -> None:
    truth.max_seconds = float(truth.step_seconds.sum()) * rng.uniform(0.3, 1.3)


def _batch_grows(truth: Truth, rng: Random) -> None:
    """Accumulation is turned up on the way: longer steps, fewer of them."""
    factor = int(rng.choice([2, 4]))
    samples = truth.limit_steps
    change = samples // truth.epoch_steps // 4 * truth.epoch_steps or truth.epoch_steps
    later = (samples - change) // factor
    truth.batches = np.concatenate([np.full(change, 32.0), np.full(later, 32.0 * factor)])
    truth.step_seconds = truth.step_seconds[: change + later] * np.where(
        np.arange(change + later) < change, 1.0, factor * rng.uniform(0.85, 1.0)
    )
    truth.limit_steps = truth.steps = change + later
    truth.counts_epochs = True


def _scaled(truth: Truth, rng: Random, plan: tuple[tuple[int, int], ...]) -> None:
    serial, exchange = rng.uniform(0.02, 0.3), rng.uniform(0.0, 0.15)
    for index, (devices, first) in enumerate(plan):
        last = plan[index + 1][1] if index + 1 < len(plan) else truth.limit_steps
        speed = serial + (1 - serial) / devices + exchange * (devices - 1) / devices
        truth.step_seconds[first:last] *= speed
    truth.plan = plan


def _resize_back_and_forth(truth: Truth, rng: Random) -> None:
    """Both counts were seen early; a later change comes back to one of them."""
    few, many = (1, 2) if rng.random() < 0.5 else (2, 4)
    first, second = (few, many) if rng.random() < 0.5 else (many, few)
    n = truth.limit_steps
    _scaled(truth, rng, ((first, 0), (second, int(0.05 * n)), (first, int(rng.uniform(0.3, 0.7) * n))))


def _resize_to_a_new_count(truth: Truth, rng: Random) -> None:
    few, many = (1, 2) if rng.random() < 0.6 else (2, 4)
    first, second = (few, many) if rng.random() < 0.6 else (many, few)
    _scaled(truth, rng, ((first, 0), (second, int(rng.uniform(0.3, 0.7) * truth.limit_steps))))


def _resize_once_early(truth: Truth, rng: Random) -> None:
    first, second = (1, 2) if rng.random() < 0.5 else (2, 1)
    _scaled(truth, rng, ((first, 0), (second, int(rng.uniform(0.03, 0.08) * truth.limit_steps))))


def stopping_epoch(curve: list[float], rule: StoppingRule) -> int:
    """After how many epochs a rule ends a run with such a curve."""
    best, waited = None, 0
    for epoch, value in enumerate(curve, 1):
        better = best is None or (value < best if rule.mode == "min" else value > best)
        best, waited = (value, 0) if better else (best, waited + 1)
        if waited >= rule.patience:
            return epoch
    return len(curve)


_FAMILIES: dict[str, Callable[[Truth, Random], None]] = {
    "steady": _steady,
    "noisy": _noisy,
    "heavy_tail": _heavy_tail,
    "wandering": _wandering,
    "neighbour": _neighbour,
    "level_change": _level_change,
    "trend": _trend,
    "validation_heavy": _validation_heavy,
    "checkpoint_heavy": _checkpoint_heavy,
    "short_epochs": _short_epochs,
    "slow_start": _slow_start,
    "data_stalls": _data_stalls,
    "suspended": _suspended,
    "unknown_length": _unknown_length,
    "early_stopping": _early_stopping,
    "max_time": _max_time,
    "batch_grows": _batch_grows,
    "resize_back_and_forth": _resize_back_and_forth,
    "resize_to_a_new_count": _resize_to_a_new_count,
    "resize_once_early": _resize_once_early,
}
FAMILIES = tuple(_FAMILIES)
