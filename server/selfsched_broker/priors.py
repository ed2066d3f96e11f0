"""What is known of a kind of hardware from the jobs that ran on it.

A job's statistics of steps on several devices give its communication time for a known number
of gradient bytes; a ring all-reduce moves 2 (n - 1) / n of them. The median over jobs of the
bandwidth that follows replaces the built-in figure, as evidence grows. Kept in memory: a
restart of the broker begins again from the built-in figures.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from statistics import median

from selfsched.protocol import HardwarePrior, StepStatistics

_BUILT_IN = (200e-6, 2e9)
"""Latency in seconds and bandwidth in bytes per second of processes on one CPU machine."""
_BUILT_IN_GPU = (50e-6, 8e9)
"""Of GPUs on one machine over PCI Express, on the careful side."""
_BUILT_IN_WEIGHT = 2
"""For so many jobs the built-in figure counts."""
_MOST_JOBS = 500
_MOST_HARDWARE = 200


class Priors:
    """Learns from jobs' reports. Callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._log_bandwidth: dict[str, dict[str, float]] = {}

    def learn(self, job: str, statistics: Sequence[StepStatistics]) -> None:
        """Take a job's statistics in; a job counts once for each kind of hardware."""
        found = {s.hardware: rate for s in statistics if (rate := _log_bandwidth_of(s)) is not None}
        with self._lock:
            for hardware, rate in found.items():
                if hardware not in self._log_bandwidth and len(self._log_bandwidth) >= _MOST_HARDWARE:
                    continue
                jobs = self._log_bandwidth.setdefault(hardware, {})
                jobs.pop(job, None)
                jobs[job] = rate
                if len(jobs) > _MOST_JOBS:
                    del jobs[next(iter(jobs))]

    def of(self, hardware: str) -> HardwarePrior:
        """What is known of a kind of hardware, the built-in figures where nothing is."""
        with self._lock:
            rates = list(self._log_bandwidth.get(hardware, {}).values())
        latency, bandwidth = _BUILT_IN if "cpu" in hardware.lower() else _BUILT_IN_GPU
        weighed = [*rates, *[math.log(bandwidth)] * _BUILT_IN_WEIGHT]
        return HardwarePrior(
            hardware=hardware,
            jobs=len(rates),
            latency_seconds=latency,
            bandwidth_bytes_per_second=math.exp(median(weighed)),
            sigma_log=0.5 if len(rates) < _BUILT_IN_WEIGHT else 0.3,
        )


def _log_bandwidth_of(statistics: StepStatistics) -> float | None:
    communication, devices = statistics.log_communication, statistics.placement.devices
    usable = communication is not None and communication.count > 0 and devices > 1
    if not usable or statistics.placement.nodes > 1 or statistics.gradient_bytes == 0:
        return None
    assert communication is not None
    moved = 2 * (devices - 1) / devices * statistics.gradient_bytes
    rate = math.log(moved) - communication.mean
    return rate if math.log(1e3) < rate < math.log(1e14) else None
