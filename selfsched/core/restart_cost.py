"""What moving to other devices costs, in four parts, each against the bytes that it moves.

    save        write a checkpoint before leaving               fixed + bytes / disk
    start       from the order to the end of the first step     fixed; more for the very first
    load        read the checkpoint                             bytes / disk
    warm_up     what the first steps take beyond the later ones fixed

Before the first restart these are figures of ordinary servers. What is learned from each
restart is a factor on them: seconds that came over seconds expected for that many bytes, the
prior weighing half a restart. So a fit with ten times the bytes expects ten times what its
bytes took before, not what the last fit took.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from selfsched.core.measurement import LONGEST_SECONDS, Spans

PRIOR_START_SECONDS = 1.5
"""Ranks that are forked from a process with everything imported, or cold ones on a fast disk."""
PRIOR_FIRST_START_SECONDS = 5.0
"""The very first ones of a run: programs are read and imported."""
PRIOR_SAVE_SECONDS = 0.1
DISK_BYTES_PER_SECOND = 2e8
"""Writing or reading a checkpoint of Adam's three copies through pickle."""
PRIOR_LOAD_SECONDS = 0.02
PRIOR_WARM_UP_SECONDS = 0.3
PRIOR_RESTARTS = 0.5
RESTART_SIGMA = 0.6
"""What a restart may differ from the expected one (log) before any was seen ..."""
LEAST_SIGMA = 0.15
"""... and after many."""


_PARTS = ("save", "start", "first_start", "load", "warm_up")


@dataclass
class RestartPart:
    """One part: what it took, and what was expected of it at those times."""

    spans: Spans = field(default_factory=Spans)
    ratios: float = 0.0
    """Sum of seconds that came over seconds expected."""

    def update(self, seconds: float, expected_seconds: float) -> None:
        """Count one; nonsense is not counted.

        Args:
            seconds: that it took.
            expected_seconds: by the built-in figures, for its bytes.
        """
        if math.isfinite(seconds) and seconds >= 0:
            self.spans.update(seconds)
            self.ratios += min(seconds, LONGEST_SECONDS) / expected_seconds

    def seconds(self, expected_seconds: float) -> float:
        """Expected now, where the built-in figures expect so much."""
        factor = (self.ratios + PRIOR_RESTARTS) / (self.spans.count + PRIOR_RESTARTS)
        return min(expected_seconds * factor, LONGEST_SECONDS)

    def to_state(self) -> dict[str, Any]:
        return {"spans": self.spans.to_state(), "ratios": self.ratios}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RestartPart:
        return cls(spans=Spans.from_state(state["spans"]), ratios=state["ratios"])


@dataclass
class RestartCost:
    """What a restart costs, learned from each."""

    save: RestartPart = field(default_factory=RestartPart)
    start: RestartPart = field(default_factory=RestartPart)
    first_start: RestartPart = field(default_factory=RestartPart)
    load: RestartPart = field(default_factory=RestartPart)
    warm_up: RestartPart = field(default_factory=RestartPart)
    checkpoint_bytes: int = 0
    """Size of the newest checkpoint; 0: none was seen."""

    def saved(self, seconds: float, size_bytes: int) -> None:
        """A checkpoint was written."""
        if size_bytes > 0:
            self.checkpoint_bytes = size_bytes
        self.save.update(seconds, _save_seconds(size_bytes or self.checkpoint_bytes))

    def loaded(self, seconds: float, size_bytes: int) -> None:
        """A checkpoint was read."""
        self.load.update(seconds, _load_seconds(size_bytes or self.checkpoint_bytes))

    def started(self, seconds: float, *, first: bool = False) -> None:
        """From the order to the end of the first step, loading taken out.

        Args:
            seconds: that it took.
            first: nothing of the run was there yet: it says little of later starts.
        """
        if first:
            self.first_start.update(seconds, PRIOR_FIRST_START_SECONDS)
        else:
            self.start.update(seconds, PRIOR_START_SECONDS)

    def warmed_up(self, seconds: float) -> None:
        """Warm-up steps took so much more than they would take warmed up."""
        self.warm_up.update(seconds, PRIOR_WARM_UP_SECONDS)

    def parts(self, gradient_bytes: int) -> dict[str, float]:
        """Expected seconds of each part of a move."""
        size = self.checkpoint_bytes or 3 * gradient_bytes
        return {
            "save": self.save.seconds(_save_seconds(size)),
            "start": self.start.seconds(PRIOR_START_SECONDS),
            "load": self.load.seconds(_load_seconds(size)),
            "warm_up": self.warm_up.seconds(PRIOR_WARM_UP_SECONDS),
        }

    def seconds(self, *, from_devices: int, to_devices: int, gradient_bytes: int) -> float:
        """Cost of a move; 0 for staying. A start from nothing saves and loads nothing."""
        if from_devices == to_devices:
            return 0.0
        parts = self.parts(gradient_bytes)
        if not from_devices:
            parts |= {"save": 0.0, "load": 0.0, "start": self._start_from_nothing(parts["start"])}
        return math.fsum(parts.values())

    def _start_from_nothing(self, start_seconds: float) -> float:
        """A job that waits may start for the first time, or again: by what it has done so far."""
        first = self.first_start.seconds(PRIOR_FIRST_START_SECONDS)
        return start_seconds if self.start.spans.count else max(first, start_seconds)

    @property
    def sigma_log(self) -> float:
        """How well it is known (log)."""
        return max(LEAST_SIGMA, RESTART_SIGMA / math.sqrt(1.0 + 2.0 * self.start.spans.count))

    def longest_save_seconds(self, gradient_bytes: int) -> float:
        """95 % of the saves seen took no longer."""
        expected = self.parts(gradient_bytes)["save"]
        return max(expected, self.save.spans.sketch.quantile(0.95) or 0.0)

    def to_state(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).to_state() for name in _PARTS}
        return parts | {"checkpoint_bytes": self.checkpoint_bytes}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RestartCost:
        parts = {name: RestartPart.from_state(state[name]) for name in _PARTS}
        return cls(**parts, checkpoint_bytes=state["checkpoint_bytes"])


def _save_seconds(size_bytes: int) -> float:
    return PRIOR_SAVE_SECONDS + size_bytes / DISK_BYTES_PER_SECOND


def _load_seconds(size_bytes: int) -> float:
    return PRIOR_LOAD_SECONDS + size_bytes / DISK_BYTES_PER_SECOND
