"""Why a step has become slower or faster, in words: which of its parts grew.

A change of level is found by `wander` in the cycles alone. Its reason is looked for in the
parts of a step before and after it: waits for data point at the loader and its disk,
communication at the network or a rank that lags, computing at a device that is shared or held
back. Where the driver says that it holds a device back, and why, that is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfsched.core.bidding import duration_words
from selfsched.core.events import DevicesObserved
from selfsched.core.wander import HABIT_SHIFTS, Shift

MAX_CHUNKS = 64
MOST_OF_IT = 0.5
"""A part that makes up so much of the change is its reason."""
HELD_BACK_SHARE = 0.2
"""A device that is held back in so many looks is said to be."""

_COMPUTE = ("forward", "backward", "optimiser")
_REASONS = {
    "data": ("waiting for data", "the loader, or the disk or network that it reads from, has become slower"),
    "communication": ("communication", "the network is shared with others, or one rank lags behind"),
    "compute": ("computing", "another program shares the device or its memory, or its clocks are lowered"),
    "other": (
        "what is outside forward and backward", "a callback, a logger or another program on this machine"
    ),
}
_HELD_BACK = {
    "heat": "it is too hot", "power": "of its power limit", "power_brake": "of the machine's power supply",
    "hardware": "its hardware protects itself", "reliability": "its voltage is at its limit",
    "board_limit": "of its board's limit",
}  # fmt: skip


@dataclass
class PartHistory:
    """Means of a step's parts along the way, in bounded memory."""

    chunks: list[tuple[int, int, dict[str, float]]] = field(default_factory=list)
    """(steady steps by its end, steps it rests on, mean seconds of each part), oldest first."""
    chunk_steps: int = 1
    """Steps that a chunk holds at least."""

    def add(self, at_steps: int, count: int, means: Mapping[str, float]) -> None:
        """Count `count` steps that end as the `at_steps`-th."""
        if count <= 0 or not means:
            return
        newest = (at_steps, count, dict(means))
        if self.chunks and self.chunks[-1][1] < self.chunk_steps:
            newest = _joined(self.chunks.pop(), newest)
        self.chunks.append(newest)
        if len(self.chunks) >= MAX_CHUNKS:
            pairs = zip(self.chunks[::2], self.chunks[1::2], strict=True)
            self.chunks = [_joined(one, other) for one, other in pairs]
            self.chunk_steps = max(2 * self.chunk_steps, min(steps for _, steps, _ in self.chunks))

    def means(self, first: int, last: int) -> dict[str, float]:
        """Mean seconds of each part over the steady steps from `first` to `last`."""
        inside = [chunk for chunk in self.chunks if first < chunk[0] - chunk[1] / 2 <= last]
        names = {name for _, _, means in inside for name in means}
        return {name: _mean(inside, name) for name in names}

    def scaled(self, factor: float) -> PartHistory:
        """As it would have been if all had taken `factor` times as long."""
        chunks = [(at, n, {k: factor * mean for k, mean in means.items()}) for at, n, means in self.chunks]
        return PartHistory(chunks=chunks, chunk_steps=self.chunk_steps)

    def to_state(self) -> dict[str, Any]:
        chunks = [[at, count, means] for at, count, means in self.chunks]
        return {"chunk_steps": self.chunk_steps, "chunks": chunks}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PartHistory:
        chunks = [(at, count, dict(means)) for at, count, means in state["chunks"]]
        return cls(chunks=chunks, chunk_steps=state["chunk_steps"])


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The newest change of a step's level, with its reason."""

    steps_ago: int
    before_seconds: float
    after_seconds: float
    part: str | None
    """`data`, `communication`, `compute`, `other`: what most of it lies in; None: not one of them."""
    changes: int
    """There were so many changes in all."""

    def words(self, devices: DevicesObserved | None = None) -> str:
        """For a reader.

        Args:
            devices: the newest that the driver told, if it tells.
        """
        slower = self.after_seconds > self.before_seconds
        change = abs(self.after_seconds / self.before_seconds - 1.0)
        now, then = duration_words(self.after_seconds), duration_words(self.before_seconds)
        lasting = f"For the last {self.steps_ago:,} steps a step has taken {now} instead of {then}"
        head = f"{lasting} ({change:.0%} {'longer' if slower else 'less'})"
        often = self.changes >= HABIT_SHIFTS
        tail = f" It has changed {self.changes} times: others come and go." if often else ""
        return head + self._reason(slower, devices) + "." + tail

    def _reason(self, slower: bool, devices: DevicesObserved | None) -> str:
        if self.part is None:
            return ": all its parts changed, as when another program shares the machine" if slower else ""
        name, cause = _REASONS[self.part]
        held = held_back_words(devices) if slower and self.part == "compute" else ""
        if not slower:
            return f", most of it in {name}: what slowed that down is gone"
        return f", most of it in {name}: {held or cause}"


def drift_of(parts: PartHistory, shift: Shift, *, steady: int, changes: int) -> Drift:
    """The reason of a change of level.

    Args:
        parts: of the steps on these devices.
        shift: the newest change.
        steady: steady steps in all.
        changes: how many changes there were.
    """
    before = _grouped(parts.means(0, shift.after_steps))
    after = _grouped(parts.means(shift.after_steps, steady))
    whole = shift.after_seconds - shift.before_seconds
    shares = {name: (after[name] - before[name]) / whole for name in before.keys() & after.keys() if whole}
    part = max(shares, key=lambda name: shares[name], default=None)
    return Drift(
        steps_ago=max(1, steady - shift.after_steps), before_seconds=shift.before_seconds,
        after_seconds=shift.after_seconds, changes=changes,
        part=part if part is not None and shares[part] >= MOST_OF_IT else None,
    )  # fmt: skip


def held_back_words(devices: DevicesObserved | None) -> str:
    """Which device the driver holds back, and why; empty where it holds none back, or does not say."""
    for device in devices.devices if devices is not None else ():
        told = (device.held_back or {}).items()
        reasons = {name: share for name, share in told if share >= HELD_BACK_SHARE}
        if reasons:
            why = _HELD_BACK.get(max(reasons, key=lambda name: reasons[name]), "its driver says so")
            clock = "" if device.clock_ratio is None else f" to {device.clock_ratio:.0%} of its clock"
            return f"the device is held back{clock} because {why}"
    return ""


def _grouped(means: Mapping[str, float]) -> dict[str, float]:
    """Computing as one part: on one device what slows it slows all of it."""
    grouped = {name: means[name] for name in ("data", "communication", "other") if name in means}
    if any(name in means for name in _COMPUTE):
        grouped["compute"] = sum(means.get(name, 0.0) for name in _COMPUTE) - means.get("communication", 0.0)
    return grouped


def _mean(chunks: Sequence[tuple[int, int, dict[str, float]]], name: str) -> float:
    having = [(count, means[name]) for _, count, means in chunks if name in means]
    return sum(count * mean for count, mean in having) / sum(count for count, _ in having)


def _joined(
    one: tuple[int, int, dict[str, float]], other: tuple[int, int, dict[str, float]]
) -> tuple[int, int, dict[str, float]]:
    names = one[2].keys() | other[2].keys()
    means = {name: _mean([c for c in (one, other) if name in c[2]], name) for name in names}
    return other[0], one[1] + other[1], means
