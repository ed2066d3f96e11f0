"""What a job's reports say of the placements it visited, as the fit over many jobs reads it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from selfsched.core.owner_parts import job_weights, jobs_of_owners
from selfsched.core.step_form import Spot
from selfsched.protocol import StepStatistics


@dataclass(frozen=True, kw_only=True)
class Visited:
    """The mean step of one job on each placement it was on, at one local batch."""

    job: str
    """Local batches, and hardware, of one job have this in common. It stays at the broker."""
    hardware: str
    gradient_bytes: int
    steps: tuple[tuple[Spot, float], ...]
    """Where, and the mean logarithm of seconds."""
    owner: str = ""
    """Whose job it is. It stays at the broker too."""

    def ordered(self) -> Visited:
        """The same, fewest devices first."""
        steps = sorted(self.steps, key=lambda step: (step[0].devices, step[0].nodes, step[0].fullest))
        return replace(self, steps=tuple(steps))


def visited_of(job: str, statistics: Sequence[StepStatistics], *, owner: str = "") -> list[Visited]:
    """What a job's reports say, for `fit_population`; what cannot be used is left out."""
    by_hardware: dict[str, list[StepStatistics]] = defaultdict(list)
    for entry in statistics:
        if entry.log_step.count and entry.gradient_bytes and -18 < entry.log_step.mean < 20:
            by_hardware[entry.hardware].append(entry)
    found = []
    for hardware, entries in by_hardware.items():
        samples = max((entry.local_samples for entry in entries), default=0)
        steps = {}
        for entry in entries:
            place = entry.placement
            share = entry.local_samples / samples if samples and entry.local_samples else 1 / place.devices
            steps[Spot(devices=place.devices, nodes=place.nodes, share=share)] = entry.log_step.mean
        found.append(
            Visited(
                job=job, hardware=hardware, gradient_bytes=entries[0].gradient_bytes,
                steps=tuple(steps.items()), owner=owner,
            ).ordered()
        )  # fmt: skip
    return found


def weights_by_job(visited: Iterable[Visited]) -> dict[str, float]:
    """With how much each job counts among these, by job."""
    jobs = jobs_of_owners((entry.owner, entry.job) for entry in visited)
    weights = job_weights(jobs)
    return {job: weights[owner] for owner, own in jobs.items() for job in own}
