"""The physical form of a step: what it costs on a placement, given the job's parameters.

K devices on N nodes, at most L of them on one node, each taking m samples in each of A passes:

    compute      C = A c (f + (1 - f) m / m0) exp(crowd + jitter log2(K/2)) exp(contention u(L))
    u(L)           = 1 - exp(-(L - 1) / 1.5)                 what neighbours on a node cost
    ring         S = 2 (K-1)/K bytes / bandwidth + 4 log2(K) latency
    bandwidth      = inside                     on one node
                   = across (three | more)      over several; three: with N = 3, more: with N > 3
    exposed      E = smooth maximum of (S - 0.4 C/A, 0)      the last pass's backward hides the rest
    step         T = C + E

c, seconds of one pass on one device at m0 samples, belongs to the job alone. The split into
compute, synchronisation and overlap is Pollux's (Qiao et al., OSDI'21, eq. 8-11); instead of one
constant for each kind of placement, synchronisation follows a ring all-reduce (Patarasuk and
Yuan 2009: each device sends 2 (K-1)/K of the bytes), so that what one job shows about the
hardware holds for another with other bytes. It stays proportional to the bytes: a free exponent
would be told by few jobs and extrapolate badly to a model larger than all of them. `crowd` is
negative on some hardware (two devices are a little faster than one), so nothing is monotone.

Parameters live on scales without borders (logarithms), cut at figures far outside of
what trains. `PARAMETERS` gives each its unit, typical value, spread between kinds of hardware,
spread between jobs on one, and where these come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

CROWDED = 1.5
"""Neighbours until contention has reached 63 % (a shared loader, bus or cooler saturates)."""
OVERLAP = 0.4
"""Part of a pass that hides communication: backward is half to two thirds of it, and its last
bucket waits. What is exposed tells it badly from bandwidth, so it is one figure for all."""
SOFTNESS = 0.1
"""Width of the corner between hidden and exposed communication, as a part of compute."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of the form, on the scale the fit sees."""

    name: str
    meaning: str
    """With its unit."""
    typical: float
    hardware_sigma: float
    """How kinds of hardware differ around `typical`."""
    job_sigma: float
    """How jobs on one hardware differ, before any were seen."""
    low: float
    high: float
    source: str


PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        name="crowd", meaning="log factor on compute from one device to several",
        typical=0.0, hardware_sigma=0.1, job_sigma=0.06, low=-1, high=1,
        source="two devices of a node are between 20 % faster and 10 % slower than one",
    ),
    Parameter(
        name="contention", meaning="log of the log factor on compute on a full node",
        typical=-3.5, hardware_sigma=0.7, job_sigma=1.2, low=-9, high=1.5,
        source="3 % usually; a loader that cannot feed all devices, up to a factor 3",
    ),
    Parameter(
        name="inside", meaning="log bytes per second of a ring of two devices on a node",
        typical=math.log(8e9), hardware_sigma=0.6, job_sigma=0.35, low=15, high=28,
        source="half of PCIe 3 x16's 15.75 GB/s; NVLink by model, see documented_prior",
    ),
    Parameter(
        name="across", meaning="log bytes per second of a ring of two nodes",
        typical=math.log(1e9), hardware_sigma=1.5, job_sigma=0.35, low=15, high=28,
        source="ten-gigabit Ethernet is 1.25 GB/s; clusters reach from 0.1 to 25",
    ),
    Parameter(
        name="three", meaning="log factor on it with three nodes in place of two",
        typical=0.0, hardware_sigma=0.4, job_sigma=0.12, low=-2, high=2,
        source="0 for an ideal ring; routes differ with the number of nodes",
    ),
    Parameter(
        name="more", meaning="log factor on it with four nodes or more in place of two",
        typical=0.0, hardware_sigma=0.4, job_sigma=0.12, low=-2, high=2,
        source="as for three",
    ),
    Parameter(
        name="inside_latency", meaning="log seconds of a stage of exchange on a node",
        typical=math.log(3e-5), hardware_sigma=1.0, job_sigma=0.4, low=-16, high=-5,
        source="launch and hand-over of one collective, some ten microseconds",
    ),
    Parameter(
        name="across_latency", meaning="log seconds of a stage of exchange over nodes",
        typical=math.log(1e-4), hardware_sigma=1.0, job_sigma=0.4, low=-16, high=-3,
        source="a round trip over Ethernet with the collective's hand-over",
    ),
    Parameter(
        name="jitter", meaning="log growth of compute for a doubling of devices",
        typical=0.02, hardware_sigma=0.015, job_sigma=0.01, low=-0.2, high=0.4,
        source="the slowest of K steps of 3 % scatter is 2 to 5 % above the mean",
    ),
)  # fmt: skip
NAMES = tuple(parameter.name for parameter in PARAMETERS)
TYPICAL: Array = np.array([parameter.typical for parameter in PARAMETERS])
HARDWARE_SIGMA: Array = np.array([parameter.hardware_sigma for parameter in PARAMETERS])
JOB_SIGMA: Array = np.array([parameter.job_sigma for parameter in PARAMETERS])
LOW: Array = np.array([float(parameter.low) for parameter in PARAMETERS])
HIGH: Array = np.array([float(parameter.high) for parameter in PARAMETERS])
INDEX = {name: index for index, name in enumerate(NAMES)}


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A placement as the form sees it, with what one device takes there."""

    devices: int
    nodes: int = 1
    fullest: int = 0
    """Devices on the fullest node; 0: spread as evenly as can be."""
    share: float = 1.0
    """Samples of a device in a pass, relative to those `c` stands for."""
    passes: int = 1
    """Passes per optimiser step (accumulation)."""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= self.devices or self.passes < 1 or self.share <= 0:
            raise ValueError(f"{self.devices} devices on {self.nodes} nodes is no placement")
        if not self.fullest:
            object.__setattr__(self, "fullest", -(-self.devices // self.nodes))

    def sharing(self, share: float) -> Spot:
        """The same with another share of samples."""
        return replace(self, share=share)


@dataclass(frozen=True)
class Spots:
    """Several spots as columns, one entry each."""

    devices: Array
    nodes: Array
    fullest: Array
    share: Array
    passes: Array

    @classmethod
    def of(cls, spots: Sequence[Spot]) -> Spots:
        rows = [(s.devices, s.nodes, s.fullest, s.share, s.passes) for s in spots]
        return cls(*np.array(rows, dtype=float).reshape(-1, 5).T)

    def __len__(self) -> int:
        return len(self.devices)

    def joined(self, other: Spots) -> Spots:
        """These, then those."""
        mine, theirs = vars(self), vars(other)
        return Spots(*(np.concatenate([mine[name], theirs[name]]) for name in mine))


def log_step(
    parameters: Array,
    log_compute: Array,
    spots: Spots,
    log_bytes: Array,
    fixed: Array | float = 0.0,
) -> tuple[Array, Array]:
    """Logarithms of a step and of its exposed communication, in seconds.

    Args:
        parameters: (..., parameters), in the order of `PARAMETERS`.
        log_compute: log c; it, `log_bytes` and `fixed` broadcast against (..., spots).
        spots: where.
        log_bytes: log of the bytes exchanged in a step.
        fixed: f, the part of a pass that does not shrink with its samples, 0 to 1.

    Returns:
        Each (..., number of spots).
    """

    def of(name: str) -> Array:
        column: Array = parameters[..., INDEX[name], None]
        return column

    return _evaluate(of, log_compute, spots, log_bytes, fixed)


def log_step_rows(parameters: Array, log_compute: Array, spots: Spots, log_bytes: Array) -> Array:
    """Log seconds of a step with one set of parameters; a job's own figures in each row."""

    def of(name: str) -> Array:
        value: Array = parameters[INDEX[name]]
        return value

    return _evaluate(of, log_compute, spots, log_bytes, 0.0)[0]


def _evaluate(
    of: Callable[[str], Array], log_compute: Array, spots: Spots, log_bytes: Array, fixed: Array | float
) -> tuple[Array, Array]:
    devices, nodes, fullest = spots.devices, spots.nodes, spots.fullest
    crowd = np.where(devices > 1, of("crowd") + of("jitter") * np.log2(np.maximum(devices, 2) / 2), 0.0)
    contention = np.exp(of("contention")) * (1 - np.exp(-(fullest - 1) / CROWDED))
    work = np.log(fixed + (1 - fixed) * spots.share)
    one_pass = np.exp(log_compute + work + crowd + contention)
    several = nodes > 1
    log_bandwidth = np.where(
        several,
        of("across") + of("three") * (nodes == 3) + of("more") * (nodes > 3),
        of("inside"),
    )
    latency = np.exp(np.where(several, of("across_latency"), of("inside_latency")))
    ring = 2 * (devices - 1) / devices * np.exp(log_bytes - log_bandwidth)
    communication = ring + 4 * np.log2(devices) * latency
    exposed = _exposed(communication, OVERLAP * one_pass, SOFTNESS * one_pass)
    compute = spots.passes * one_pass
    return np.log(compute + exposed), np.log(np.maximum(exposed, 1e-9 * compute))


def _exposed(communication: Array, hidden: Array, corner: Array) -> Array:
    """What is above `hidden`, with a rounded corner; 0 without communication."""
    beyond = communication - hidden
    above = 0.5 * (beyond + np.hypot(beyond, corner))
    nothing = 0.5 * (np.hypot(hidden, corner) - hidden)
    exposed: Array = np.maximum(above - nothing, 0.0)
    return exposed


def solve_log_compute(
    parameters: Array, log_seconds: Array, spots: Spots, log_bytes: Array, fixed: Array | float = 0.0
) -> Array:
    """log c for which the form gives `log_seconds`, entry by entry, as near as it can.

    Args:
        parameters: (parameters, n) or (parameters, 1): one set for each entry.
        log_seconds: (n,) or broadcasting to it.
        spots: n spots, or one for all.
        log_bytes: as `log_seconds`.
        fixed: as in `log_step`.
    """

    def of(name: str) -> Array:
        value: Array = parameters[INDEX[name]]
        return value

    alone = log_seconds - np.log(spots.passes * (fixed + (1 - fixed) * spots.share))
    log_compute: Array = alone + np.zeros(np.broadcast_shapes(parameters.shape[1:], np.shape(alone)))
    if not np.any(spots.devices > 1):
        return log_compute
    for _ in range(8):
        here = _evaluate(of, log_compute, spots, log_bytes, fixed)[0]
        beside = _evaluate(of, log_compute + 1e-4, spots, log_bytes, fixed)[0]
        slope = np.maximum((beside - here) / 1e-4, 0.05)
        step = np.clip((log_seconds - here) / slope, -1.0, 1.0)
        log_compute = np.clip(log_compute + step, alone - 6.0, alone + 2.0)
    return log_compute
