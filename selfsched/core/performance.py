"""The step-time model of one job: what a step costs on a placement, with an interval.

The physical form (`core/step_form`) has nine parameters. What other jobs, or the makers'
documents, say about them is a prior; what this job measured conditions it. The prior is carried
as a fixed set of weighted draws (importance sampling: e.g. Robert and Casella, "Monte Carlo
Statistical Methods", chapter 3). Each draw is tied to the best measured placement exactly, so
that nothing need be assumed about the size of the job; every further measured placement reweights
the draws by a Student-t likelihood, which an outlier does not move far. What the form cannot say
is a Gaussian process over (devices, nodes, devices on the fullest node) on top: near a measured
placement the model follows the measurements, and far from all of them its interval is wide. So no
parameter is ever a point, and nothing need be inverted but a matrix as large as the number of
placements seen.

Two corrections. Rare heavy contention would shift the median of everything that was not yet
seen: the draws are shifted so that their median, before any evidence, is the form at the prior's
own mean. And the prior carries factors on the widths, by which intervals held on applications
that were left out of it.

A model is built anew when the evidence changed; it does its work when it is first asked about a
placement that was not measured well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from selfsched.core.step_form import (
    HARDWARE_SIGMA,
    HIGH,
    INDEX,
    JOB_SIGMA,
    LOW,
    NAMES,
    TYPICAL,
    Array,
    Spot,
    Spots,
    log_step,
    solve_log_compute,
)
from selfsched.protocol import FormFigure, FormPrior, HardwarePrior

FORM_SIGMA = 0.06
"""What the form is wrong by (log), alike over about a doubling of devices or nodes."""
FORM_LENGTHS = (1.5, 1.0, 1.5)
"""Over how many doublings of devices, nodes, devices on the fullest node that is alike."""
NOISE_SIGMA = 0.03
"""Two placements that the form holds for alike, or two visits to one, differ by so much (log)."""
DAY_SIGMA = 0.02
"""Two measurements of the same thing differ by so much however long each lasts (log)."""
WELL_MEASURED_SIGMA = 0.15
COMMUNICATION_SIGMA = 0.6
"""Measured exposed communication has waiting for stragglers in it: a weak word (log)."""
UNKNOWN_SERIAL_SHARE = 0.08
UNKNOWN_BYTES_SIGMA = 1.5
LIKELIHOOD_DEGREES = 5.0
MAX_SIGMA = 3.0
PAIRS = 512
Z_LEVELS = (0.6745, 1.2816, 1.96)
"""Normal quantiles at the ends of intervals of 50, 80 and 95 %."""
EVIDENCE = ("one_alone", "one_more", "several_alone", "several_more", "several_visited")
"""Classes of predictions, each with its own factors on widths (`FormPrior.widths`)."""

# Bytes per second and direction that a ring reaches: a sixth of what NVLink's makers document one
# way (NVLink 2, 3, 4: 150, 300, 450 GB/s), half of PCIe 3 x16's 15.75 GB/s; gloo over loopback as
# measured on ordinary servers.
_DOCUMENTED = (
    (("h100", "h200", "gh200", "b200"), 7.5e10, 2e-5, 0.03),
    (("a100", "a800"), 5e10, 2e-5, 0.03),
    (("v100",), 2.5e10, 2e-5, 0.03),
    (("cpu",), 1e9, 2e-4, 0.10),
)
_PCIE = (8e9, 3e-5, 0.03)


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


def form_of(prior: HardwarePrior) -> FormPrior:
    """The form's prior: as learned, else from the few figures there are, widely."""
    if prior.form is not None:
        return prior.form
    means, sigmas = TYPICAL.copy(), np.hypot(HARDWARE_SIGMA, JOB_SIGMA)
    means[INDEX["inside"]] = math.log(prior.bandwidth_bytes_per_second)
    sigmas[INDEX["inside"]] = math.hypot(prior.sigma_log, JOB_SIGMA[INDEX["inside"]])
    means[INDEX["inside_latency"]] = math.log(max(prior.latency_seconds, 1e-7))
    means[INDEX["contention"]] = math.log(max(prior.contention, 0.01))
    means = np.clip(means, LOW, HIGH)
    return FormPrior(
        figures=tuple(
            FormFigure(name=name, mean=float(mean), sigma=float(sigma))
            for name, mean, sigma in zip(NAMES, means, sigmas, strict=True)
        )
    )


def refusal(prior: HardwarePrior) -> str | None:
    """Why a prior cannot be used, in words; None where it can."""
    if prior.form is None:
        return None
    figures = {figure.name: figure for figure in prior.form.figures}
    if set(figures) != set(NAMES) or len(figures) != len(prior.form.figures):
        return f"the prior for {prior.hardware} names other parameters than this version knows"
    for name, low, high in zip(NAMES, LOW, HIGH, strict=True):
        if not low <= figures[name].mean <= high:
            return f"the prior for {prior.hardware} has an absurd figure for {name}: {figures[name].mean:g}"
    if len(prior.form.widths) not in (0, len(EVIDENCE) * len(Z_LEVELS)):
        return f"the prior for {prior.hardware} has {len(prior.form.widths)} widths"
    return None


@dataclass(frozen=True, kw_only=True)
class SeenStep:
    """A placement whose steps were measured."""

    devices: int
    seconds: float
    sigma_log: float
    communication_seconds: float | None = None
    """Exposed communication, where it was measured."""
    spot: Spot | None = None
    """Where exactly; None: on one node, the global batch shared by the devices."""

    def place(self) -> Spot:
        return self.spot or one_node(self.devices)


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


def one_node(devices: int) -> Spot:
    """Devices of one node that share a fixed global batch."""
    return Spot(devices=devices, share=1.0 / devices)


def measured_step(seen: SeenStep) -> StepTime:
    """The step on a measured count, from its own steps alone."""
    sigma = math.hypot(seen.sigma_log, DAY_SIGMA)
    return StepTime(devices=seen.devices, seconds=seen.seconds, sigma_log=sigma, measured=True)


@dataclass(frozen=True)
class _Draws:
    """The prior's draws, tied to the reference placement; the first is the prior's mean."""

    parameters: Array
    log_compute: Array
    log_bytes: Array
    fixed: Array

    def steps(self, spots: Spots) -> tuple[Array, Array]:
        """Log step, shifted to the mean's, and log exposed communication: (draws, spots)."""
        logs, exposed = log_step(
            self.parameters, self.log_compute[:, None], spots, self.log_bytes[:, None], self.fixed[:, None]
        )
        return logs[1:] + (logs[0] - np.median(logs[1:], axis=0)), exposed[1:]


class StepTimeModel:
    """Step time against placement, conditioned on what was seen. Immutable.

    Args:
        seen: measured placements, one entry each; not empty.
        prior: of the hardware; one that cannot be used (`refusal` says why) is replaced by the
            built-in one.
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
        self.seen: Mapping[int, SeenStep] = {step.devices: step for step in seen if step.place().nodes == 1}
        self._form = form_of(documented_prior(prior.hardware) if refusal(prior) else prior)
        best = min(seen, key=lambda step: (round(step.sigma_log, 2), step.devices))
        self._steps = [best, *(step for step in seen if step is not best)]
        self._spots = Spots.of([step.place() for step in self._steps])
        self._y = np.clip(np.log([step.seconds for step in self._steps]), -18.0, 20.0)
        self._gradient_bytes = gradient_bytes
        share = UNKNOWN_SERIAL_SHARE + (1 - UNKNOWN_SERIAL_SHARE) * min(max(serial_share, 0.0), 0.9)
        self._fixed_logit = math.log(share / (1 - share))
        self._conditioned: tuple[_Draws, Array, Array] | None = None
        self._known: dict[Spot, StepTime] = {}

    def at(self, devices: int) -> StepTime:
        """The step on `devices` devices of one node, the global batch shared.

        A count that was measured well answers from its own steps; one that was hardly
        measured (its first steps) is drawn to what the others make expect.
        """
        return self.curve((devices,))[0]

    def curve(self, devices: Sequence[int]) -> tuple[StepTime, ...]:
        """`at` for each of `devices`."""
        own = {count: self.seen.get(count) for count in devices}
        well = {n: s for n, s in own.items() if s is not None and s.sigma_log <= WELL_MEASURED_SIGMA}
        self._learn([one_node(count) for count in own if count not in well])
        return tuple(
            measured_step(well[count]) if count in well else self._known[one_node(count)] for count in devices
        )

    def on(self, spot: Spot) -> StepTime:
        """The step on any placement, by the model alone."""
        self._learn([spot])
        return self._known[spot]

    def quantiles(self, spots: Sequence[Spot], z: Sequence[float]) -> Array:
        """Seconds of a step, at each normal quantile `z` (rows) on each of `spots` (columns)."""
        return np.exp(self._log_quantiles(spots, np.array(z)))

    # --- inside ----------------------------------------------------------------------

    def _learn(self, spots: Sequence[Spot]) -> None:
        new = [spot for spot in spots if spot not in self._known]
        if not new:
            return
        low, middle, high = self._log_quantiles(new, np.array([-Z_LEVELS[1], 0.0, Z_LEVELS[1]]))
        sigmas = np.minimum((high - low) / (2 * Z_LEVELS[1]), MAX_SIGMA)
        for index, spot in enumerate(new):
            self._known[spot] = StepTime(
                devices=spot.devices,
                seconds=float(np.exp(middle[index])),
                sigma_log=math.hypot(float(sigmas[index]), DAY_SIGMA),
                measured=spot.nodes == 1 and spot.devices in self.seen,
            )

    def _log_quantiles(self, spots: Sequence[Spot], z: Array) -> Array:
        targets = Spots.of(spots)
        draws, weights, misfits = self._condition()
        logs = draws.steps(targets)[0]
        own, cross, variance = self._residuals(targets)
        if len(self._steps) > 1:
            solved = np.linalg.solve(own, cross.T)
            logs = logs + misfits @ solved
            variance = variance - np.einsum("ij,ji->i", cross, solved)
        sigma = np.sqrt(np.maximum(variance, 1e-6))
        quantiles = _mixture_quantiles(logs, weights, sigma, z)
        if self._form.widths:
            middle = _mixture_quantiles(logs, weights, sigma, np.zeros(1))
            quantiles = middle + (quantiles - middle) * self._widths(spots, z)
        clipped: Array = np.clip(quantiles, -18.0, 20.0)
        return clipped

    def _condition(self) -> tuple[_Draws, Array, Array]:
        """(draws, their weights, their misfits relative to the reference's)."""
        if self._conditioned is None:
            draws = self._draw()
            logs, exposed = draws.steps(self._spots)
            misfits = self._y - logs
            relative = misfits[:, 1:] - misfits[:, :1]
            log_weights = -0.5 * (misfits[:, 0] / 0.1) ** 2  # a draw that cannot meet the reference
            if len(self._steps) > 1:
                own = self._residuals(self._spots)[0]
                distance = np.einsum("ij,ji->i", relative, np.linalg.solve(own, relative.T))
                degrees = LIKELIHOOD_DEGREES + len(self._steps) - 1
                log_weights -= 0.5 * degrees * np.log1p(distance / LIKELIHOOD_DEGREES)
            for index, step in enumerate(self._steps):
                heard = step.communication_seconds or 0.0
                if step.devices > 1 and heard > 1e-7:
                    apart = (math.log(heard) - exposed[:, index]) / COMMUNICATION_SIGMA
                    log_weights -= 0.5 * np.clip(apart, -4.0, 4.0) ** 2
            weights = np.exp(log_weights - log_weights.max())
            self._conditioned = draws, weights / weights.sum(), relative
        return self._conditioned

    def _draw(self) -> _Draws:
        normal = _draws()
        by_name = {figure.name: figure for figure in self._form.figures}
        means = np.array([by_name[name].mean for name in NAMES])
        sigmas = np.array([by_name[name].sigma for name in NAMES])
        parameters = np.clip(means + normal[:, : len(NAMES)] * sigmas, LOW, HIGH)
        log_bytes = np.full(len(normal), math.log(max(self._gradient_bytes, 1)))
        if self._gradient_bytes <= 0:  # as many as take a tenth of a step
            log_bytes = self._y[0] + math.log(0.1) + means[INDEX["inside"]]
            log_bytes = log_bytes + UNKNOWN_BYTES_SIGMA * normal[:, len(NAMES)]
        fixed = 1 / (1 + np.exp(-(self._fixed_logit + normal[:, len(NAMES) + 1])))
        reference = Spots.of([self._steps[0].place()])
        log_compute = solve_log_compute(parameters.T, self._y[:1], reference, log_bytes, fixed)
        return _Draws(parameters, log_compute, log_bytes, fixed)

    def _residuals(self, targets: Spots) -> tuple[Array, Array, Array]:
        """Covariances of what the form leaves, relative to the reference's.

        Returns:
            Among the seen but the reference; of the targets with these; the targets' own.
        """
        every = self._spots.joined(targets)
        count = len(self._steps)
        covariance = form_covariance(every)
        covariance[np.diag_indices_from(covariance)] += NOISE_SIGMA**2
        covariance[np.arange(count), np.arange(count)] += [step.sigma_log**2 for step in self._steps]
        relative = covariance - covariance[0] - covariance[:, :1] + covariance[0, 0]
        return relative[1:count, 1:count], relative[count:, 1:count], np.diag(relative)[count:].copy()

    def evidence(self, spots: Sequence[Spot]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Which of `EVIDENCE` a prediction of each spot is, as an index."""
        more = len(self._steps) > 1
        several = 4 if np.any(self._spots.nodes > 1) else 3 if more else 2
        return np.array([several if spot.nodes > 1 else int(more) for spot in spots], dtype=np.int64)

    def _widths(self, spots: Sequence[Spot], z: Array) -> Array:
        table = np.array(self._form.widths).reshape(len(EVIDENCE), len(Z_LEVELS))
        factors = np.stack([np.interp(np.abs(z), Z_LEVELS, row) for row in table], axis=1)
        chosen: Array = factors[:, self.evidence(spots)]
        return chosen


@lru_cache(maxsize=1)
def _draws() -> Array:
    """Zeros, then antithetic pairs of standard normals: (1 + 2 PAIRS, parameters + 2)."""
    half = np.random.default_rng(20_180_401).standard_normal((PAIRS, len(NAMES) + 2))
    return np.vstack([np.zeros((1, half.shape[1])), half, -half])


def form_covariance(spots: Spots) -> Array:
    """Covariance, between placements, of what the form is wrong by (log)."""
    columns = (spots.devices, spots.nodes, spots.fullest)
    apart = sum(
        ((np.log2(column)[:, None] - np.log2(column)[None, :]) / length) ** 2
        for column, length in zip(columns, FORM_LENGTHS, strict=True)
    )
    covariance: Array = FORM_SIGMA**2 * np.exp(-0.5 * apart)
    return covariance


def _mixture_quantiles(logs: Array, weights: Array, sigma: Array, z: Array) -> Array:
    """Quantiles of a mixture of normals with means `logs` (draws, spots): (z, spots)."""
    # Each normal stands as three points, one from each third of it, spread over the draws.
    spread = _thirds(len(logs))
    points = (logs[None] + spread[:, :, None] * sigma).reshape(-1, logs.shape[1])
    every = np.tile(weights / 3, 3)
    order = np.argsort(points, axis=0)
    levels = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])
    quantiles = np.empty((len(levels), logs.shape[1]))
    for spot in range(logs.shape[1]):
        mass = every[order[:, spot]]
        middle = np.cumsum(mass) - 0.5 * mass
        quantiles[:, spot] = np.interp(levels, middle, points[order[:, spot], spot])
    return quantiles


@lru_cache(maxsize=8)
def _thirds(count: int) -> Array:
    """Standard normal deviates, one from each third of the distribution: (3, count)."""
    golden = (np.arange(count) * 0.6180339887498949 + 0.5) % 1.0
    levels = (np.arange(3)[:, None] + golden) / 3
    inverse = NormalDist().inv_cdf
    deviates: Array = np.vectorize(inverse)(np.clip(levels, 1e-4, 1 - 1e-4))
    return deviates
