"""What a job knows of its steps: measured on each device count it has been on, modelled elsewhere.

Between the raw timings of a rank and the forecast: timings are sorted into the series of
the present device count, the model is conditioned on all series when it is asked for, and a
count that was visited always answers from its own steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from selfsched.core.events import StepTiming
from selfsched.core.measurement import running_of, usable_seconds
from selfsched.core.performance import WELL_MEASURED_SIGMA, SeenStep, StepTime, StepTimeModel, measured_step
from selfsched.core.series import Level, Series
from selfsched.protocol import HardwarePrior, Placement, StepStatistics

VISIT_STEPS = 30
VISIT_SECONDS = 60.0
LONG_STEP_SECONDS = 10.0
"""A first step of so long speaks, without its wait for data, before there is a second one."""
VISITED_SIGMA = 0.05
"""How well (log) a step is known after a visit."""


class StepKnowledge:
    """Steps of one job on one kind of hardware.

    Args:
        prior: of that hardware.
    """

    def __init__(self, prior: HardwarePrior) -> None:
        self._prior = prior
        self.gradient_bytes = 0
        self._series: dict[int, Series] = {}
        self._local_samples: dict[int, int] = {}
        self._model: StepTimeModel | None = None

    # --- evidence ----------------------------------------------------------------------

    def know_gradient_bytes(self, size: int) -> None:
        """What the ranks exchange in a step; 0 or less: not told."""
        if size > 0:
            self.gradient_bytes, self._model = size, None

    def went_on(self, devices: int) -> None:
        """A segment begins on so many devices: its first steps may contradict what was measured."""
        if devices in self._series:
            self._series[devices].went_on()
            self._model = None

    def forget(self) -> None:
        """What is trained now is something else."""
        self._series, self._local_samples, self._model = {}, {}, None

    def add(self, devices: int, timings: Sequence[StepTiming]) -> tuple[list[float], int]:
        """Count steps on `devices` devices.

        Returns:
            The cycles of warm-up steps among them, and the number of steady ones.
        """
        series = self._series.setdefault(devices, Series())
        warm_up: list[float] = []
        counted: list[tuple[StepTiming, float]] = []
        steady = 0
        for timing in timings:
            cycle = cycle_seconds(timing)
            if cycle is None:
                continue
            if timing.warm_up:
                warm_up.append(cycle)
                # The first step has no cycle: what it took began its loaders and its kernels.
                if timing.cycle_seconds is not None:
                    series.warmed_up(cycle)
                elif timing.seconds >= LONG_STEP_SECONDS:
                    series.warmed_up(usable_seconds(timing.seconds) or cycle)
                continue
            steady += 1
            if series.update(cycle * series.sized(timing.local_samples, timing.passes)):
                counted.append((timing, cycle))
        _count_parts(series, counted)
        if counted and counted[-1][0].local_samples > 0:
            self._local_samples[devices] = counted[-1][0].local_samples
        self._model = None
        return warm_up, steady

    # --- answers -----------------------------------------------------------------------

    @property
    def counts(self) -> tuple[int, ...]:
        """Device counts on which steps were measured."""
        return tuple(sorted(self._series))

    def series(self, devices: int) -> Series:
        """Steps on `devices` devices; an empty series where there are none."""
        return self._series.get(devices, Series())

    def level(self, devices: int) -> Level | None:
        """Mean cost of a step on a measured count, by its own steps alone."""
        return self.series(devices).level()

    def step(self, devices: int) -> StepTime | None:
        """The step on `devices` devices; None before any evidence. No fit where well measured."""
        level = self.level(devices)
        if level is not None and level.sigma_log <= WELL_MEASURED_SIGMA:
            return measured_step(self._seen(devices, level))
        model = self.model()
        return None if model is None else model.at(devices)

    def doubt(self, devices: int) -> float:
        """How much of the uncertainty (log) of a step a visit of some thirty steps would take away."""
        step = self.step(devices)
        if step is None or (step.measured and step.sigma_log <= WELL_MEASURED_SIGMA):
            return 0.0
        return math.sqrt(max(0.0, step.sigma_log**2 - VISITED_SIGMA**2))

    def model(self) -> StepTimeModel | None:
        """The model conditioned on all that was measured; None before any evidence."""
        if self._model is None:
            levels = {devices: series.level() for devices, series in sorted(self._series.items())}
            seen = [self._seen(devices, level) for devices, level in levels.items() if level is not None]
            if not seen:
                return None
            self._model = StepTimeModel(
                seen,
                prior=self._prior,
                gradient_bytes=self.gradient_bytes,
                serial_share=self._serial_share(),
            )
        return self._model

    @property
    def watched_seconds(self) -> float:
        """Steady time measured, on any devices."""
        return sum(series.steady_seconds for series in self._series.values())

    @property
    def is_enough_to_bid(self) -> bool:
        """Whether the first visit has done its work: 30 steady steps, or a minute of training."""
        steady = sum(series.steady for series in self._series.values())
        warm = sum(series.warm_up.count * series.warm_up.mean for series in self._series.values())
        return steady >= VISIT_STEPS or (steady + warm > 0 and self.watched_seconds + warm >= VISIT_SECONDS)

    def statistics(self, hardware: str) -> tuple[StepStatistics, ...]:
        """Mergeable statistics of each device count, for the hardware's prior."""
        return tuple(
            StepStatistics(
                hardware=hardware,
                placement=Placement(devices=devices, nodes=1),
                local_samples=self._local_samples.get(devices, 0),
                gradient_bytes=self.gradient_bytes,
                log_step=series.log_step.moments(),
                log_compute=series.log_compute.moments() if series.log_compute.count else None,
                log_communication=(
                    series.log_communication.moments() if series.log_communication.count else None
                ),
            )
            for devices, series in sorted(self._series.items())
            if series.log_step.count
        )

    # --- inside ------------------------------------------------------------------------

    def _seen(self, devices: int, level: Level) -> SeenStep:
        return SeenStep(
            devices=devices,
            seconds=level.seconds,
            sigma_log=level.sigma_log,
            communication_seconds=self._series[devices].part_means().get("communication"),
        )

    def _serial_share(self) -> float:
        fullest = max(self._series.values(), key=lambda series: series.steady)
        gap = fullest.part_means().get("other", 0.0)
        return gap / fullest.cycles.mean if fullest.cycles.count else 0.0

    # --- state -------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "series": {str(devices): series.to_state() for devices, series in self._series.items()},
            "local_samples": {str(devices): n for devices, n in self._local_samples.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `to_state` gave.

        Raises:
            ValueError: it is no knowledge of steps.
        """
        self._series = {int(devices): Series.from_state(s) for devices, s in state["series"].items()}
        self._local_samples = {int(devices): n for devices, n in state["local_samples"].items()}
        if any(devices < 1 for devices in (*self._series, *self._local_samples)):
            raise ValueError("steps on no device")
        self._model = None


def cycle_seconds(timing: StepTiming) -> float | None:
    """The cycle of a step, or the nearest to it that was measured; None for nonsense."""
    if timing.cycle_seconds is not None:
        return usable_seconds(timing.cycle_seconds)
    told = timing.data_seconds or 0.0
    data = told if math.isfinite(told) else 0.0
    return usable_seconds(timing.seconds + max(0.0, data))


def _count_parts(series: Series, steps: Sequence[tuple[StepTiming, float]]) -> None:
    """Count the parts of steady steps, given with their cycles."""
    if not steps:
        return
    timings = [timing for timing, _ in steps]
    parts: dict[str, list[float | None]] = {
        name: [getattr(timing, f"{name}_seconds") for timing in timings]
        for name in ("data", "forward", "backward", "optimiser", "communication")
    }
    parts["other"] = [max(0.0, cycle - t.seconds - (t.data_seconds or 0.0)) for t, cycle in steps]
    means = {}
    for name, all_seconds in parts.items():
        known = series.part(name, all_seconds)
        if known:
            means[name] = math.fsum(known) / len(known)
    series.parts_of(means, len(steps))
    usable = [(t, seconds) for t in timings if (seconds := usable_seconds(t.seconds)) is not None]
    series.log_step.merge(running_of([math.log(seconds) for _, seconds in usable]))
    for timing, seconds in usable:
        communication = usable_seconds(timing.communication_seconds)
        if communication is not None and communication < seconds:
            series.log_communication.update(math.log(communication))
            series.log_compute.update(math.log(seconds - communication))
