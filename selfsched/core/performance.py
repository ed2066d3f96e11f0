"""The step-time model: what a step costs on a number of devices, with an interval.

With the global batch G fixed, K devices take G/K samples each. A step is

    compute(K)       = s (f + (1 - f) / K) (1 + k (K - 1))
    communication(K) = c (2 (K-1)/K bytes / bandwidth + 2 (K-1) latency)      a ring all-reduce
    exposed(K)       = smooth maximum of (communication - compute / 2) and 0  it overlaps backward
    T(K)             = compute + exposed

with four unknowns: s, seconds of a step on one device; f, the part of it that does not
shrink with the batch (launches, logging, data waits); k, what neighbours on the same node
cost each other; c, how much faster or slower communication is than the documents say. The
ring is that of Patarasuk and Yuan 2009; the split into compute, communication and overlap
follows Pollux (Qiao et al., OSDI'21, eq. 8-11), which fits points where we keep a
distribution.

The unknowns live on scales where they can take any value (logarithms, a logit) with a
Gaussian prior: documented bandwidths, or what the broker learned from other jobs on this
hardware. Measured steps enter as log T(K), with the uncertainty of their mean; measured
communication as a weak second observation (waiting for stragglers is in it). The posterior
is a Laplace approximation: Gauss-Newton to its mode, in the space of the observations, so
that nothing is inverted but a matrix as large as the number of device counts seen. What the
form cannot say is a Gaussian process over log2 K on top: near a seen count the model follows
the measurements, and far from all of them its interval is wide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfsched.protocol import HardwarePrior

Array = np.ndarray[Any, np.dtype[np.float64]]

FORM_SIGMA = 0.08
"""What the form is wrong by (log), around a factor 2 to 3 away from what was seen."""
FORM_LENGTH = 1.2
"""Over how many doublings of K its error is alike."""
DAY_SIGMA = 0.02
"""Two measurements of the same thing differ by so much however long each lasts (log)."""
WELL_MEASURED_SIGMA = 0.15
COMMUNICATION_SIGMA = 0.6
UNKNOWN_SERIAL_SHARE = 0.08
MAX_SIGMA = 3.0

_BOUNDS = np.array([[-18.0, 20.0], [-9.0, 6.0], [-6.0, 6.0], [-9.0, 2.5]])
"""Of log s, logit f, log c, log k: far outside of anything that trains."""

# Bytes per second and direction that one device can send to a neighbour: half of what the
# makers document (NVLink 2, 3, 4: 300, 600, 900 GB/s both ways together; PCIe 3 x16:
# 15.75 GB/s), as collectives reach it; gloo over loopback as measured on ordinary servers.
_DOCUMENTED = (
    (("h100", "h200", "gh200", "b200"), 2.2e11, 2e-5, 0.03),
    (("a100", "a800"), 1.5e11, 2e-5, 0.03),
    (("v100",), 7e10, 2e-5, 0.03),
    (("cpu",), 1e9, 2e-4, 0.10),
)
_PCIE = (8e9, 3e-5, 0.05)


def documented_prior(hardware: str) -> HardwarePrior:
    """What is known of hardware before any job ran on it: its makers' figures, widely.

    Args:
        hardware: model of the device; only its name is looked at.
    """
    name = hardware.lower()
    found = next((row for row in _DOCUMENTED if any(word in name for word in row[0])), None)
    bandwidth, latency, contention = found[1:] if found else _PCIE
    return HardwarePrior(
        hardware=hardware, jobs=0, latency_seconds=latency,
        bandwidth_bytes_per_second=bandwidth, contention=contention, sigma_log=1.0,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SeenStep:
    """A device count whose steps were measured."""

    devices: int
    seconds: float
    sigma_log: float
    communication_seconds: float | None = None
    """Exposed communication, where it was measured."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """A predicted step: log-normal."""

    devices: int
    seconds: float
    """Median."""
    sigma_log: float
    measured: bool
    """Whether steps on this count were measured, or the model speaks alone."""

    def quantile(self, z: float) -> float:
        """Seconds at `z` standard deviations of the logarithm."""
        return self.seconds * math.exp(z * self.sigma_log)


def measured_step(seen: SeenStep) -> StepTime:
    """The step on a measured count, from its own steps alone."""
    sigma = math.hypot(seen.sigma_log, DAY_SIGMA)
    return StepTime(devices=seen.devices, seconds=seen.seconds, sigma_log=sigma, measured=True)


@dataclass(frozen=True)
class _Form:
    """The physical form for one job: its gradient's bytes and the hardware's figures."""

    gradient_bytes: int
    prior: HardwarePrior

    def logs(self, parameters: Array, devices: Array) -> tuple[Array, Array]:
        """(log T, log exposed communication) for each device count."""
        s, share = math.exp(parameters[0]), 1.0 / (1.0 + math.exp(-parameters[1]))
        factor, contention = math.exp(parameters[2]), math.exp(parameters[3])
        compute = s * (share + (1 - share) / devices) * (1 + contention * (devices - 1))
        ring = 2 * (devices - 1) / devices * self._bytes(s) / self.prior.bandwidth_bytes_per_second
        communication = factor * (ring + 2 * (devices - 1) * self.prior.latency_seconds)
        beyond = communication - 0.5 * compute
        exposed = 0.5 * (beyond + np.hypot(beyond, 0.2 * compute)) - 0.5 * (
            np.hypot(0.5 * compute, 0.2 * compute) - 0.5 * compute
        )  # the last term makes it 0 without communication
        exposed = np.maximum(exposed, 1e-9 * compute)
        return np.log(compute + exposed), np.log(exposed)

    def _bytes(self, seconds: float) -> float:
        if self.gradient_bytes > 0:
            return float(self.gradient_bytes)
        # Unknown: as many as take a tenth of a step.
        return 0.1 * seconds * self.prior.bandwidth_bytes_per_second

    @property
    def bytes_sigma(self) -> float:
        return self.prior.sigma_log if self.gradient_bytes > 0 else math.hypot(self.prior.sigma_log, 1.5)


class StepTimeModel:
    """Step time against device count, conditioned on what was seen.

    Built anew when the evidence changed (about a millisecond); immutable.

    Args:
        seen: measured device counts, one entry each; not empty.
        prior: of the hardware.
        gradient_bytes: what the ranks exchange in a step; 0: unknown.
        serial_share: measured part of a step that surely does not shrink with the batch
            (gaps between steps), 0 to 1.
    """

    def __init__(
        self,
        seen: Sequence[SeenStep],
        *,
        prior: HardwarePrior,
        gradient_bytes: int = 0,
        serial_share: float = 0.0,
    ) -> None:
        if not seen:
            raise ValueError("a step-time model needs a measured device count")
        self.seen: Mapping[int, SeenStep] = {step.devices: step for step in seen}
        self._form = _Form(gradient_bytes, prior)
        self._fit(serial_share)

    def at(self, devices: int) -> StepTime:
        """The step on `devices` devices.

        A count that was measured well answers from its own steps; one that was hardly
        measured (its first steps) is drawn to what the others make expect.
        """
        own = self.seen.get(devices)
        if own is not None and own.sigma_log <= WELL_MEASURED_SIGMA:
            return measured_step(own)
        counts = np.array([float(devices)])
        value = self._form.logs(self._mode, counts)[0][0]
        gradient = self._jacobian(self._mode, counts)[0]
        form = self._form_covariance(counts, self._devices)[0]
        cross = np.concatenate([form, np.zeros(len(self._y) - len(form))])
        log_seconds = value + cross @ self._solved_residual
        covariance = self._prior_covariance @ self._design.T
        gain = gradient @ covariance + cross
        variance = gradient @ self._prior_covariance @ gradient + FORM_SIGMA**2
        variance -= gain @ np.linalg.solve(self._system, gain)
        sigma = math.sqrt(max(variance, 0.0) + DAY_SIGMA**2)
        return StepTime(
            devices=devices,
            seconds=math.exp(min(max(float(log_seconds), -18.0), 20.0)),
            sigma_log=min(sigma, MAX_SIGMA),
            measured=own is not None,
        )

    def curve(self, devices: Sequence[int]) -> tuple[StepTime, ...]:
        """`at` for each of `devices`."""
        return tuple(self.at(count) for count in devices)

    # --- inside ----------------------------------------------------------------------

    def _fit(self, serial_share: float) -> None:
        steps = sorted(self.seen.values(), key=lambda step: step.devices)
        spoken = [s for s in steps if s.devices > 1 and (s.communication_seconds or 0) > 1e-7]
        self._devices = np.array([float(step.devices) for step in steps])
        self._spoken = np.array([float(step.devices) for step in spoken])
        self._y = np.log(
            [step.seconds for step in steps] + [step.communication_seconds or 1.0 for step in spoken]
        )
        noise = [step.sigma_log**2 + DAY_SIGMA**2 for step in steps]
        self._noise = np.diag(noise + [COMMUNICATION_SIGMA**2] * len(spoken))
        form = self._form_covariance(self._devices, self._devices)
        self._noise[: len(steps), : len(steps)] += form
        mean = self._prior_mean(steps, serial_share)
        contention_sigma = min(1.0, self._form.prior.sigma_log)
        scales = np.array([4.0, 1.0, self._form.bytes_sigma, contention_sigma])
        self._prior_covariance = np.diag(scales**2)
        self._mode = self._find_mode(mean)
        self._design = self._observe_jacobian(self._mode)
        self._system = self._design @ self._prior_covariance @ self._design.T + self._noise
        residual = self._y - self._observe(self._mode) + self._design @ (self._mode - mean)
        self._solved_residual = np.linalg.solve(self._system, residual)

    def _prior_mean(self, steps: Sequence[SeenStep], serial_share: float) -> Array:
        share = UNKNOWN_SERIAL_SHARE + (1 - UNKNOWN_SERIAL_SHARE) * min(max(serial_share, 0.0), 0.9)
        first = steps[0]
        alone = first.seconds / (share + (1 - share) / first.devices)
        contention = max(self._form.prior.contention, 0.01)
        mean = np.array([math.log(alone), math.log(share / (1 - share)), 0.0, math.log(contention)])
        clipped: Array = np.clip(mean, _BOUNDS[:, 0], _BOUNDS[:, 1])
        return clipped

    def _find_mode(self, mean: Array) -> Array:
        best, best_cost = mean, self._cost(mean, mean)
        for _ in range(12):
            design = self._observe_jacobian(best)
            system = design @ self._prior_covariance @ design.T + self._noise
            residual = self._y - self._observe(best) + design @ (best - mean)
            target = mean + self._prior_covariance @ design.T @ np.linalg.solve(system, residual)
            step = np.clip(target, _BOUNDS[:, 0], _BOUNDS[:, 1]) - best
            moved = self._line_search(best, step, mean, best_cost)
            if moved is None:
                break
            gain = best_cost - moved[1]
            best, best_cost = moved
            if gain < 1e-6:
                break
        return best

    def _line_search(
        self, start: Array, step: Array, mean: Array, cost: float
    ) -> tuple[Array, float] | None:
        for shrink in (1.0, 0.4, 0.15, 0.05):
            candidate = start + shrink * step
            value = self._cost(candidate, mean)
            if value < cost:
                return candidate, value
        return None

    def _cost(self, parameters: Array, mean: Array) -> float:
        misfit = self._y - self._observe(parameters)
        away = (parameters - mean) ** 2 / np.diag(self._prior_covariance)
        return float(misfit @ np.linalg.solve(self._noise, misfit) + away.sum())

    def _observe(self, parameters: Array) -> Array:
        times: Array = self._form.logs(parameters, self._devices)[0]
        if not len(self._spoken):
            return times
        both: Array = np.concatenate([times, self._form.logs(parameters, self._spoken)[1]])
        return both

    def _observe_jacobian(self, parameters: Array) -> Array:
        times = self._jacobian(parameters, self._devices)
        if not len(self._spoken):
            return times
        return np.vstack([times, self._jacobian(parameters, self._spoken, of=1)])

    def _jacobian(self, parameters: Array, devices: Array, *, of: int = 0) -> Array:
        width = 1e-4
        columns = []
        for index in range(len(parameters)):
            step = np.zeros(len(parameters))
            step[index] = width
            above = self._form.logs(parameters + step, devices)[of]
            below = self._form.logs(parameters - step, devices)[of]
            columns.append((above - below) / (2 * width))
        return np.stack(columns, axis=1)

    @staticmethod
    def _form_covariance(a: Array, b: Array) -> Array:
        apart = (np.log2(a)[:, None] - np.log2(b)[None, :]) / FORM_LENGTH
        covariance: Array = FORM_SIGMA**2 * np.exp(-0.5 * apart**2)
        return covariance
