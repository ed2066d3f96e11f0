"""What is true of a simulated job and hidden from the policy.

A policy learns of it only what a real job would tell: progress in reports, times in bids.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from selfsched_simulator.trace import TraceJob


@dataclass(frozen=True, slots=True)
class RigidTruth:
    """A gang of a fixed size: it runs on so many devices or not at all."""

    gpus: int
    exclusive_seconds: float

    def runs_on(self, devices: int) -> bool:
        """Whether the job makes progress on so many devices."""
        return devices >= self.gpus

    def run_seconds(self, devices: int) -> float:
        """Seconds of the whole run on devices it runs on."""
        return self.exclusive_seconds


def truth_of(job: TraceJob) -> RigidTruth:
    """The hidden truth of a row."""
    return RigidTruth(job.gpus, job.exclusive_seconds)


def claim_factor(name: str, *, noise: float, seed: int) -> float:
    """By what a job's claims of remaining time are wrong, all its life.

    exp(noise z), z one standard normal number per job from (seed, name), so that a job's error
    is the same under every policy and in every order of the rows.
    """
    if noise == 0:
        return 1.0
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return math.exp(noise * float(np.random.default_rng([seed, digest]).standard_normal()))
