"""Batches that change for good, stand alone, or vary from step to step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.core.batch_sizes import BatchSizes
from selfsched.core.events import FitStarted, Progressed, StepsTimed, StepTiming
from selfsched.core.job_model import JobModel
from selfsched.core.series import Series

STEP_SECONDS = 0.1
RNG_SEEDS = (0, 1, 2)


def varying(kind: str, seed: int, steps: int = 600) -> list[int]:
    """Samples of steps whose batches vary."""
    rng = np.random.default_rng(seed)
    match kind:
        case "budget of tokens":
            return [int(n) for n in rng.integers(4, 64, steps)]
        case "two buckets":
            return [int(n) for n in rng.choice([16, 64], steps)]
        case "a rare bucket":
            return [int(n) for n in rng.choice([16, 64], steps, p=[0.1, 0.9])]
        case _:  # buckets one after the other, again and again
            return [(8, 32, 64)[step // 20 % 3] for step in range(steps)]


KINDS = ("budget of tokens", "two buckets", "a rare bucket", "buckets in turn")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", RNG_SEEDS)
def test_where_batches_vary_no_cycle_is_rescaled(kind: str, seed: int) -> None:
    series, rng = Series(), np.random.default_rng(seed)
    cycles = STEP_SECONDS * np.exp(0.05 * rng.standard_normal(600))
    seen = []
    for cycle, samples in zip(cycles, varying(kind, seed), strict=True):
        series.update(float(cycle) * series.sized(samples))
        level = series.level()
        assert level is not None
        seen.append(level.seconds)
    assert seen[-1] == pytest.approx(STEP_SECONDS, rel=0.05)
    assert max(seen[100:]) < 1.3 * STEP_SECONDS
    assert min(seen[100:]) > 0.75 * STEP_SECONDS


def told(
    model: JobModel, samples: Iterable[int], *, epoch_steps: int, epochs: int, passes: Sequence[int] = ()
) -> list[int | None]:
    """Planned steps after each step of a fit with batches of so many samples."""
    model.segment_started(1, 0.0)
    model.observe(
        FitStarted(
            fit=1, package="lightning", global_batch=None, reference_devices=1, step=0,
            planned_steps=epoch_steps * epochs, steps_per_epoch=epoch_steps, max_epochs=epochs, at=0.0,
        ),
        0.0,
    )  # fmt: skip
    planned, seen, sizes = [], 0, list(samples)
    each = passes or [1] * len(sizes)
    for step, (size, made) in enumerate(zip(sizes, each, strict=True), start=1):
        timing = StepTiming(step=step, seconds=0.1, cycle_seconds=0.1, local_samples=size, passes=made)
        model.observe(StepsTimed(timings=(timing,)), 0.1 * step)
        seen += size
        model.observe(Progressed(fit=1, step=step, epoch=step // epoch_steps, samples=seen), 0.1 * step)
        planned.append(model.progress().planned_steps)
    return planned


def new_model() -> JobModel:
    return JobModel(hardware="cpu", min_devices=1, max_devices=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", RNG_SEEDS)
def test_where_batches_vary_the_loaders_length_stands(kind: str, seed: int) -> None:
    planned = told(new_model(), varying(kind, seed, 300), epoch_steps=100, epochs=6)
    assert set(planned[70:]) == {600}


def test_a_ragged_batch_in_short_epochs_does_not_change_their_length() -> None:
    planned = told(new_model(), [32, 32, 32, 32, 5] * 8, epoch_steps=5, epochs=20)
    assert set(planned) == {100}


def test_an_accumulation_that_doubles_halves_what_is_left_also_where_it_goes_back() -> None:
    model = new_model()
    sizes, passes = [32] * 20 + [64] * 20 + [32] * 20, [1] * 20 + [2] * 20 + [1] * 20
    planned = told(model, sizes, epoch_steps=1000, epochs=1, passes=passes)
    assert planned[19] == 1000
    assert planned[39] == pytest.approx(20 + 980 / 2, abs=12)
    assert planned[59] == pytest.approx(20 + 20 + 940, abs=22)


def test_where_batches_vary_more_passes_are_still_more_work() -> None:
    sizes = BatchSizes()
    rng = np.random.default_rng(3)
    for samples in rng.integers(4, 64, 100):
        sizes.judge(int(samples), 1)
    assert sizes.vary
    factors = [sizes.judge(int(samples), 4).rescale for samples in rng.integers(16, 256, 20)]
    assert math.prod(factors) == 4.0


def test_what_was_rescaled_before_batches_were_seen_to_vary_is_undone() -> None:
    sizes = BatchSizes()
    factors = [sizes.judge(samples).rescale for samples in [64] * 10 + [16] * 5 + [64] * 5]
    assert sizes.vary
    assert math.prod(factors) == pytest.approx(1.0)
    assert 0.25 in factors


@given(st.lists(st.tuples(st.integers(-1, 10**9), st.integers(-1, 9)), max_size=80))
def test_whatever_the_batches_factors_are_bounded(steps: list[tuple[int, int]]) -> None:
    sizes = BatchSizes()
    for samples, passes in steps:
        judged = sizes.judge(samples, passes)
        assert 0 < judged.scale <= 64
        assert 0 < judged.rescale < math.inf
