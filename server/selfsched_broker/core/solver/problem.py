"""A division of devices as arrays: nodes, options, and what each option asks for in pieces.

A *piece* is a number of devices that lie on one node. A placement is a bag of pieces of one
or more models: eight packed devices are one piece of 8, sixteen two of them, four devices
spread over four nodes four pieces of 1. Options that ask for the same bag on whatever node
there is are one column each, not one for every node: nodes enter only as counts of free
devices, so there are no symmetric copies of anything.

Some options are *anchored*: a lease that stays, what grows around devices that are kept,
very devices a job insists on. They draw from nodes named in their anchor; what they ask for
beyond that (`loose`) may lie anywhere. Each job takes exactly one of its options. One of
them usually draws nothing; a job without such an option has an anchored one that is always
to be had (what it stays on), because anchored devices of different jobs differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST_OPTIONS = 4_000_000
"""Beyond this a question is refused: its tables alone would take gigabytes."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """Devices of named nodes."""

    draws: tuple[tuple[int, int], ...]
    """(node, devices), by node."""
    exactly: frozenset[str] = frozenset()
    """The very devices; two options that name one device exclude each other."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One question. Options of job j are `first[j]` to `first[j + 1]`; all counts are devices."""

    node_model: Ints
    node_free: Ints
    first: Ints
    gain: Floats
    """By option; what is summed and maximised."""
    bundle: Ints
    """By option; the row of `bundles` it asks for in all."""
    loose: Ints
    """By option; the row of `bundles` that may lie on any node."""
    anchor: Ints
    """By option; its entry of `anchors`, or -1."""
    bundles: Ints
    """(bags, models x width): pieces of model m and size s in column m x width + s - 1."""
    width: int
    """Devices of the largest node."""
    devices: Ints
    """By option; devices held with it, those kept anyway included (for limits)."""
    anchors: Sequence[Anchor] = ()
    group: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """By job; its group of `limits`, or -1. Empty: no limits."""
    limits: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """By group; devices its jobs may hold together."""

    @property
    def jobs(self) -> int:
        return len(self.first) - 1

    @property
    def models(self) -> int:
        return int(self.bundles.shape[1]) // self.width

    @property
    def job(self) -> Ints:
        """By option; whose it is."""
        return np.repeat(np.arange(self.jobs), np.diff(self.first))

    @property
    def loose_size(self) -> Ints:
        """By option; pieces that may lie on any node."""
        return np.asarray(self.bundles.sum(axis=1)[self.loose])

    def job_of(self, option: int) -> int:
        """Whose an option is."""
        return int(np.searchsorted(self.first, option, "right")) - 1

    def supply(self) -> Ints:
        """(models, width + 1): nodes of a model by free devices."""
        counts = np.zeros((self.models, self.width + 1), np.int64)
        np.add.at(counts, (self.node_model, self.node_free), 1)
        counts[:, 0] = 0
        return counts

    def check(self) -> None:
        """Refuse what no answer can be given for.

        Raises:
            ValueError: a gain that is no number, a job without an option, too many options.
        """
        if len(self.gain) > MOST_OPTIONS:
            raise ValueError(f"{len(self.gain)} options are more than {MOST_OPTIONS}")
        if not np.all(np.isfinite(self.gain)):
            raise ValueError("a gain is not a finite number")
        if self.jobs and int(np.diff(self.first).min()) < 1:
            raise ValueError("a job has no option at all")


@dataclass(frozen=True, slots=True)
class Prices:
    """What a piece costs, and what follows: a bound that no division exceeds."""

    values: Floats
    """By piece (column of `bundles`), then by limit."""
    cost: Floats
    """By option."""
    surplus: Floats
    """By job: the most that gain less cost can be."""
    regret: Floats
    """By option: how much less than that it is."""
    bound: float
    """No division has a larger sum of gains."""


@dataclass(frozen=True, slots=True)
class Solution:
    """An option for each job."""

    chosen: Ints
    gain: float
    bound: float
    prices: Prices

    @property
    def gap(self) -> float:
        """Proved distance from the largest sum of gains."""
        return max(0.0, self.bound - self.gain)
