"""Seeds and random states: no noise is replayed, and none is shared between ranks.

`seed_everything` in a script runs again in every segment; without more, each segment would
repeat the dropout masks of the run's first steps, and a checkpoint written by rank 0 could
only bring back rank 0's state. So each segment seeds every rank from (seed of the run,
fit, global step, rank), and brings the exact states back where the world size is the same.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def mixed_seed(*parts: int) -> int:
    """A seed in [0, 2^63) that depends on every part and on their order."""
    digest = hashlib.sha256(",".join(str(int(part)) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seed_all(*parts: int) -> None:
    """Seed torch (all devices), numpy and python from the parts."""
    seed = mixed_seed(*parts)
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def random_states() -> dict[str, Any]:
    """The exact states of torch, numpy, python and the current GPU, in plain types."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    keys = np.asarray(keys)
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss],
        "python": _listed(random.getstate()),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: dict[str, Any]) -> None:
    """Put back what `random_states` returned."""
    torch.set_rng_state(states["torch"])
    kind, keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    version, internal, gauss_next = states["python"]
    random.setstate((version, tuple(internal), gauss_next))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


@contextmanager
def seeded(*parts: int) -> Iterator[None]:
    """Seed everything from the parts within the block, and leave no trace of it."""
    states = random_states()
    seed_all(*parts)
    try:
        yield
    finally:
        restore_random_states(states)


def _listed(state: tuple[Any, ...]) -> list[Any]:
    version, internal, gauss_next = state
    return [version, list(internal), gauss_next]
