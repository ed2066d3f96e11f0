"""How far what a simulated job claims is from what is true of it.

The truth (`TraceJob.run_seconds`) is hidden: a policy learns of it only what a real job would
tell, progress in reports and times in bids, and the times may be wrong.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np


def claim_factor(name: str, *, noise: float, seed: int) -> float:
    """By what a job's claims of remaining time are wrong, all its life.

    exp(noise z), z one standard normal number per job from (seed, name), so that a job's error
    is the same under every policy and in every order of the rows.
    """
    if noise == 0:
        return 1.0
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return math.exp(noise * float(np.random.default_rng([seed, digest]).standard_normal()))
