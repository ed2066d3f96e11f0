"""How far what a simulated job claims is from what is true of it.

The truth (`speeds`) is hidden: a policy learns of it only what a real job would tell, progress in
reports and times in bids, and the times may be wrong. Two kinds of error:

* of the whole job, the same on every placement and all its life (`noise`): it misjudges how much work
  is left;
* of each placement by itself, until the job has run there (`row_noise`): it misjudges how it scales.

A job knows how well it knows: the standard deviation is in the bid's `sigma_log`.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from selfsched.protocol import Placement


def claim_factor(name: str, *, noise: float, seed: int) -> float:
    """By what a job's claims of remaining time are wrong, all its life.

    exp(noise z), z one standard normal number per job from (seed, name), so that a job's error
    is the same under every policy and in every order of the rows.
    """
    if noise == 0:
        return 1.0
    return math.exp(noise * _normal(name, seed))


def row_factor(name: str, placement: Placement, *, noise: float, seed: int) -> float:
    """By what a job's claim for one placement is wrong until it has run there."""
    if noise == 0:
        return 1.0
    where = f"{name}/{placement.devices}/{placement.nodes}/{placement.model or ''}"
    return math.exp(noise * _normal(where, seed))


def _normal(words: str, seed: int) -> float:
    digest = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big")
    return float(np.random.default_rng([seed, digest]).standard_normal())
