"""Allocations for `selfsched profile`: a moment on each device count, then the end.

Each count that keeps the global batch is visited, the smallest first, until `VISIT_STEPS`
steady steps are measured or `VISIT_SECONDS` have passed since its first step; then the
training is cut as for any other change of devices. What was learned is left in `model.json`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from selfsched.core.bidding import devices_words
from selfsched.core.events import FitStarted, StepsTimed
from selfsched.core.step_knowledge import VISIT_SECONDS, VISIT_STEPS
from selfsched.elastic.allocation import Allocation, Device, SegmentEnd
from selfsched.elastic.job import JobDescription
from selfsched.elastic.segment import boottime
from selfsched.errors import Refused
from selfsched.job_record import JobRecord
from selfsched.launch import local_devices
from selfsched.protocol import Outcome

PROFILED = "every device count has been visited"


class Profile:
    """Visits the job's device counts one after the other, on this machine's devices.

    Args:
        devices: what there is to run on.
        now: CLOCK_BOOTTIME seconds.
    """

    def __init__(self, devices: Sequence[Device], *, now: Callable[[], float] = boottime) -> None:
        self._devices = tuple(devices)
        self._now = now
        self._to_visit: list[int] = []
        self._stepping_since: float | None = None
        self._steady = 0

    def start(self, job: JobDescription, wake: Callable[[], None]) -> None:
        if job.max_devices > len(self._devices):
            raise Refused(
                f"--devices goes up to {job.max_devices}, but this machine has {len(self._devices)}"
            )
        self._record = JobRecord(job, job.name or job.run_directory.name)
        self._to_visit = list(range(job.min_devices, job.max_devices + 1))

    def wanted(self, now: float) -> Allocation:
        if self._is_measured(now):
            self._to_visit.pop(0)
            self._stepping_since, self._steady = None, 0
        if not self._to_visit:
            return Allocation(ends_because=PROFILED)
        count = self._to_visit[0]
        return Allocation(devices=self._devices[:count], reason=f"visits {devices_words(count)}")

    def _is_measured(self, now: float) -> bool:
        if not self._to_visit or self._stepping_since is None:
            return False
        return self._steady >= VISIT_STEPS or now - self._stepping_since >= VISIT_SECONDS

    def handle(self, event: Any) -> None:
        """Count steps; learn at the first fit which counts the global batch allows."""
        self._record.event(event, self._now())
        if isinstance(event, FitStarted) and event.allowed_devices:
            here = self._to_visit[:1]
            self._to_visit = here + [n for n in self._to_visit[1:] if n in event.allowed_devices]
        elif isinstance(event, StepsTimed) and event.timings:
            if self._stepping_since is None:
                self._stepping_since = self._now()
            self._steady += sum(not timing.warm_up for timing in event.timings)

    def segment_started(self, ordinal: int, devices: tuple[Device, ...]) -> None:
        self._stepping_since, self._steady = None, 0
        self._record.segment_started(ordinal, devices, "profile", self._now())

    def segment_ended(self, end: SegmentEnd) -> None:
        self._record.segment_ended(end, self._now())

    def status_line(self) -> str | None:
        if not self._to_visit:
            return None
        count, left = self._to_visit[0], len(self._to_visit) - 1
        after = f", {left} more to visit" if left else ""
        return f"{min(self._steady, VISIT_STEPS)} of {VISIT_STEPS} steps on {devices_words(count)}{after}"

    def news(self) -> tuple[str, ...]:
        return ()

    def end(self, outcome: Outcome, reason: str) -> None:
        self._record.finish(str(outcome), self._now())


def profiled(job: JobDescription) -> Profile:
    """The profile that a job asks for: on GPUs where there are any, else on equal parts of the cores."""
    gpus = () if job.accelerator == "cpu" else local_devices.gpus()
    return Profile(gpus or slots(sorted(os.sched_getaffinity(0)), job.max_devices))


def slots(cores: Sequence[int], count: int) -> tuple[Device, ...]:
    """CPU devices of equal size, each on cores of its own; fewer than asked for where cores are fewer."""
    count = min(count, len(cores))
    each = len(cores) // count if count else 0
    return tuple(
        device.model_copy(update={"cores": tuple(cores[i * each : (i + 1) * each])})
        for i, device in enumerate(local_devices.private_cpu_devices(count))
    )
