"""What a job was told of its hardware, whether it can be used, and where its figures are from.

A broker's figures are other jobs' word, and may be of another version, cut short or absurd. What
cannot be used is refused in words, and the built-in figures take its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from selfsched.core.performance import refusal
from selfsched.protocol import HardwarePrior

BANDWIDTHS = (1e5, 1e14)
"""Bytes a second of a ring: a modem's, and more than any link between chips has."""
LONGEST_LATENCY_SECONDS = 1.0
EVERY_SECONDS = 600.0
LEAST_SECONDS = 2.0
"""Between two questions about the hardware, whatever happens."""
TRIES = 3
"""A question that fails so often in a row, while reports get through, is said."""


class HardwareFigures(BaseModel):
    """The figures a job uses for one kind of hardware."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hardware: str
    prior: HardwarePrior | None = None
    """The broker's, in use; None: the built-in ones are."""
    refused: str | None = None
    """Why the broker's newest were refused."""

    @property
    def words(self) -> str:
        """Where the figures in use are from."""
        if self.prior is not None and self.prior.jobs:
            jobs = "1 job" if self.prior.jobs == 1 else f"{self.prior.jobs} jobs"
            source = f"{self.hardware}: hardware figures learned from {jobs}"
        elif self.prior is not None:
            source = f"{self.hardware}: documented figures; nobody else's runs yet"
        else:
            source = f"{self.hardware}: documented figures"
        return f"{source}; {self.refusal_words}" if self.refused else source

    @property
    def refusal_words(self) -> str:
        """What is said of a refusal; empty where there was none."""
        if self.refused is None:
            return ""
        instead = "the documented ones" if self.prior is None else "those of before"
        return f"the broker's figures were refused, {instead} are used: {self.refused}"


def unusable(prior: HardwarePrior, hardware: str) -> str | None:
    """Why a prior cannot be used for `hardware`, in words; None where it can."""
    if prior.hardware != hardware:
        return f"they are for {prior.hardware}, not for {hardware}"
    low, high = BANDWIDTHS
    if not low <= prior.bandwidth_bytes_per_second <= high:
        return f"a bandwidth of {prior.bandwidth_bytes_per_second:g} bytes per second is absurd"
    if prior.latency_seconds > LONGEST_LATENCY_SECONDS:
        return f"a latency of {prior.latency_seconds:g} s is absurd"
    return refusal(prior)


@dataclass
class FiguresDue:
    """When to ask the broker about the hardware: when the devices changed, and from time to time."""

    _devices: frozenset[str] = frozenset()
    _asked_at: float = float("-inf")
    _next_at: float = float("-inf")
    _failures: int = 0

    def ask(self, devices: frozenset[str], now: float) -> bool:
        """Whether to ask now, for these devices; then it counts as asked."""
        is_due = now >= self._next_at or devices != self._devices
        if not is_due or now < self._asked_at + LEAST_SECONDS:
            return False
        self._devices, self._asked_at, self._next_at = devices, now, now + EVERY_SECONDS
        return True

    def came(self) -> None:
        """It was answered."""
        self._failures = 0

    def failed(self, now: float) -> bool:
        """It was not: ask again soon. Returns whether that is worth a word by now."""
        self._failures += 1
        self._next_at = now + LEAST_SECONDS * 2.0 ** min(self._failures, 8)
        return self._failures >= TRIES
