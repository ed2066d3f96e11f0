"""From the hooks of a training loop to the forecast, while everything goes wrong.

The real stopwatch and meter are driven through a loop whose clock the test turns, and the model takes
over what they tell. Whatever happens it never says NaN, infinity or a finish in the past.
"""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsched.core.events import FitStarted, Progressed
from selfsched.core.job_model import JobModel
from selfsched.measure.fit_meter import FitMeter

BATCH = torch.zeros(1, 1)
"""One sample."""


class Loop:
    """What Lightning calls around the fetch of a batch."""

    def _on_before_fetch(self) -> None: ...

    def _on_after_fetch(self) -> None: ...


class Training:
    """A loop of steps of `step_seconds`, told as a real one is, on a clock that is turned."""

    def __init__(
        self, *, planned_steps: int | None = 1000, step_seconds: float = 0.1, **facts: Any
    ) -> None:
        self.now = 1000.0
        self.model = JobModel(hardware="cpu", min_devices=1, max_devices=2)
        self.step_seconds = step_seconds
        self.planned, self.facts = planned_steps, facts
        self.trainer = SimpleNamespace(
            world_size=1, strategy=SimpleNamespace(model=None), global_step=0, current_epoch=0,
            callback_metrics={}, fit_loop=SimpleNamespace(epoch_loop=Loop()),
            save_checkpoint=lambda path, **_: None,
        )  # fmt: skip
        self.start(1)

    def start(self, devices: int) -> None:
        self.model.segment_started(devices, self.now)
        facts = FitStarted(
            fit=1, package="lightning", global_batch=1, reference_devices=1, step=self.trainer.global_step,
            planned_steps=self.planned, at=self.now, **self.facts,
        )  # fmt: skip
        self.model.observe(facts, self.now)
        self.meter = FitMeter(
            self.trainer, SimpleNamespace(device=torch.device("cpu")), facts=facts, samples=0,
            send=self._take, clock=lambda: self.now,
        )  # fmt: skip

    def restart(self, devices: int) -> None:
        self.meter.flush({})
        self.meter.close()
        self.model.segment_ended(self.now)
        self.start(devices)

    def _take(self, event: Any) -> None:
        if isinstance(event, Progressed):
            event = event.model_copy(update={"at": self.now})
        self.model.observe(event, self.now)

    def steps(
        self, count: int, seconds: Callable[[], float] | float | None = None, data: float = 0.0
    ) -> None:
        loop, watch = self.trainer.fit_loop.epoch_loop, self.meter.stopwatch
        for _ in range(count):
            takes = self.step_seconds if seconds is None else seconds if not callable(seconds) else seconds()
            loop._on_before_fetch()
            self.now += data
            loop._on_after_fetch()
            gap = watch.batch_started()
            self.meter.batch_opened(gap)
            self.now += 0.4 * takes
            watch.backward_started()
            self.now += 0.4 * takes
            watch.backward_ended()
            watch.optimiser_started()
            self.now += 0.2 * takes
            self.trainer.global_step += 1
            self.meter.batch_ended(BATCH)

    def epoch(self) -> None:
        self.meter.epoch_ended()
        self.trainer.current_epoch += 1
        self.meter.epoch_started()

    def validation(self, seconds: float) -> None:
        self.meter.stretch_started()
        self.now += seconds
        self.meter.validation_ended()

    def checkpoint(self, seconds: float) -> None:
        self.meter.stretch_started()
        self.now += seconds
        self.meter._saved("/c.ckpt")

    def median(self) -> float:
        self.meter.flush({})
        forecast = self.model.forecast(1, self.now)
        assert forecast is not None
        return forecast.p50_seconds

    def sane(self, metrics: dict[str, float] | None = None) -> None:
        """What must hold at any time; the protocol's own checks run in building the messages."""
        self.meter.flush(metrics or {})
        now, model = self.now, self.model
        for devices in (1, 2):
            forecast = model.forecast(devices, now)
            if forecast is not None:
                quantiles = (forecast.p10_seconds, forecast.p50_seconds, forecast.p90_seconds)
                assert all(map(math.isfinite, quantiles))
                assert 0 <= quantiles[0] <= quantiles[1] <= quantiles[2]
        bid = model.standing_bid(model.devices, now)
        known = [row.remaining_seconds for row in bid.rows if row.remaining_seconds is not None]
        assert all(math.isfinite(seconds) and seconds >= 0 for seconds in known)
        assert 0 <= model.progress(now).fraction_done <= 1
        assert 0 < model.notice_seconds() < math.inf
        assert 0 <= model.idle_seconds(now) < math.inf
        json.dumps(model.explanation(now).as_json(), allow_nan=False)
        json.dumps(model.to_state(), allow_nan=False)


durations = st.sampled_from([0.0, 1e-9, 1e-4, 0.05, 0.1, 0.11, 1.0, 70.0])
accidents = st.one_of(
    st.tuples(st.just("steps"), st.integers(1, 40), durations),
    st.tuples(st.just("negative"), st.integers(1, 3), st.sampled_from([-1e-6, -0.1, -50.0])),
    st.tuples(st.just("stalled"), st.integers(1, 5), st.sampled_from([0.5, 30.0, 4000.0])),
    st.tuples(st.just("jump"), st.just(0), st.sampled_from([-1e5, -3.0, 60.0, 1e7])),
    st.tuples(st.just("validation"), st.just(0), st.sampled_from([0.0, -5.0, 0.5, 60.0, 3600.0])),
    st.tuples(st.just("checkpoint"), st.just(0), st.sampled_from([0.0, 0.1, 600.0])),
    st.tuples(st.just("epoch"), st.integers(1, 4), st.just(0.0)),
    st.tuples(st.just("metrics"), st.just(0), st.sampled_from([math.nan, math.inf, -math.inf])),
    st.tuples(st.just("restart"), st.integers(1, 2), st.just(0.0)),
)
ONE_STEP_EPOCHS = {"steps_per_epoch": 1, "batches_per_epoch": 1, "max_epochs": 50, "validations": 50}
limits = st.sampled_from(
    [
        {"planned_steps": 1000, "steps_per_epoch": 100, "batches_per_epoch": 100, "max_epochs": 10},
        {"planned_steps": 1},
        {"planned_steps": None},
        {"planned_steps": None, "max_epochs": 3},
        {"planned_steps": 50, **ONE_STEP_EPOCHS},
        {"planned_steps": None, "max_seconds": 30.0},
        {"planned_steps": 10_000, "max_seconds": 100.0, "early_stopping": True},
    ]
)


@settings(max_examples=120, deadline=None)
@given(limits, st.lists(accidents, max_size=12))
def test_whatever_happens_in_the_loop_what_is_said_is_possible(
    facts: dict[str, Any], stream: list[tuple[str, int, float]]
) -> None:
    training = Training(**facts)
    for what, count, seconds in stream:
        if what in ("steps", "negative"):
            training.steps(count, seconds)
        elif what == "stalled":
            training.steps(count, data=seconds)
        elif what == "jump":
            training.now += seconds
        elif what == "validation":
            training.validation(seconds)
        elif what == "checkpoint":
            training.checkpoint(seconds)
        elif what == "epoch":
            for _ in range(count):
                training.steps(1)
                training.epoch()
        elif what == "metrics":
            training.sane({"loss": seconds})
        else:
            training.restart(count)
        training.sane()


@settings(max_examples=30, deadline=None)
@given(st.lists(durations, min_size=1, max_size=200), st.integers(0, 2**31))
def test_a_run_without_a_limit_is_said_to_be_unknown(seconds: list[float], seed: int) -> None:
    training = Training(planned_steps=None)
    for one in seconds:
        training.steps(1, one)
    training.sane()
    assert training.model.forecast(1, training.now) is None
    assert training.model.progress().end_is_unknown


def test_a_minute_in_which_the_process_was_stopped_is_no_slow_step() -> None:
    training = Training()
    training.steps(200)
    before = training.median()
    training.steps(1, 60.0)
    training.steps(5)
    assert training.median() == pytest.approx(before - 6 * 0.1, rel=0.02)


def test_a_minute_of_standstill_within_a_wait_for_data_is_no_habit_of_the_loader() -> None:
    training = Training()
    training.steps(200)
    before = training.median()
    training.steps(1, data=60.0)
    training.steps(5)
    assert training.median() == pytest.approx(before, rel=0.02)


def test_a_validation_in_which_the_process_was_stopped_is_not_how_long_validations_take() -> None:
    training = Training(validations=10, steps_per_epoch=100, batches_per_epoch=100)
    for _ in range(5):
        training.steps(100)
        training.validation(1.0)
    before = training.median()
    training.validation(61.0)
    assert training.median() == pytest.approx(before, rel=0.05)


def test_validations_of_an_hour_are_in_the_forecast_as_what_they_are() -> None:
    training = Training(validations=10, steps_per_epoch=100, batches_per_epoch=100)
    for _ in range(4):
        training.steps(100)
        training.validation(3600.0)
    assert training.median() == pytest.approx(600 * 0.1 + 6 * 3600.0, rel=0.1)


def test_a_loader_that_stalls_every_hundred_steps_is_counted() -> None:
    training = Training(planned_steps=2000)
    for _ in range(10):
        training.steps(99)
        training.steps(1, data=10.0)
    assert training.median() == pytest.approx(1000 * 0.1 + 10 * 10.0, rel=0.1)


def test_steps_that_grow_longer_are_followed() -> None:
    training = Training(planned_steps=2000)
    for number in range(1000):
        training.steps(1, 0.1 * (1 + number / 1000))
    mean_rate = 1000 * 0.15  # what is left at the mean so far
    now = 1000 * 0.2  # at the present step
    assert training.median() > 0.5 * (mean_rate + now)


def test_two_jobs_that_share_cores_are_a_mean_with_its_scatter() -> None:
    rng = np.random.default_rng(3)
    training = Training(planned_steps=8000)
    for _ in range(40):
        slow = 2.0 if rng.random() < 0.5 else 1.0
        training.steps(100, lambda slow=slow: 0.1 * slow * float(rng.lognormal(0, 0.1)))  # type: ignore[misc]
    training.meter.flush({})
    forecast = training.model.forecast(1, training.now)
    assert forecast is not None
    assert forecast.p10_seconds < 4000 * 0.15 < forecast.p90_seconds
    assert forecast.p90_seconds - forecast.p10_seconds > 0.05 * forecast.p50_seconds


def test_epochs_of_one_step_of_one_sample_end_when_they_are_done() -> None:
    training = Training(planned_steps=50, **ONE_STEP_EPOCHS)
    for _ in range(40):
        training.steps(1)
        training.epoch()
        training.validation(0.2)
        training.sane()
    assert training.median() == pytest.approx(10 * (0.1 + 0.2), rel=0.35)
    assert training.model.progress().fraction_done == pytest.approx(0.8)


def test_the_only_step_of_a_run_of_one_step() -> None:
    training = Training(planned_steps=1)
    training.sane()
    training.steps(1)
    training.sane()
    assert training.model.progress().fraction_done == 1.0


STOPPED = """
import json, sys, warnings
import torch
warnings.simplefilter("ignore")
from callback.fits import loader, module, spy, trainer
from selfsched import SelfScheduler
torch.set_num_threads(1)
callback = SelfScheduler(explain=False)
say = spy("lightning.pytorch", "on_train_batch_end",
          lambda t: print("stop me", flush=True) if t.global_step == 140 else None)
fit = trainer("lightning.pytorch", sys.argv[1], callback, say, max_steps=300, max_epochs=-1)
fit.fit(module(step_seconds=0.005), loader(30))
steps = callback.model.to_state()["steps"]
print(json.dumps({"step": callback.model.step_time(1)[0], "state": steps}))
"""


@pytest.mark.slow
def test_a_training_that_was_stopped_for_some_seconds_knows_its_steps(tmp_path: Any) -> None:
    path = os.pathsep.join(["tests", os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            if line.startswith("stop me"):
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(6.0)  # what is tested: beyond five seconds it is an interruption
                os.kill(process.pid, signal.SIGCONT)
            elif line.startswith("{"):
                told = json.loads(line)
    assert process.returncode == 0
    (series,) = told["state"]["series"].values()
    assert series["interruptions"] == 1
    assert series["interrupted_seconds"] > 5.0
    # Counted, the stop alone would have made the mean step longer than twenty milliseconds more.
    usual = statistics.median(mean for _, mean, *_ in series["blocks"])
    assert told["step"] < 2 * usual
