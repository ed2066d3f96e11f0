"""Times of a step's parts on a GPU, from events that are read when they are long past.

Kernels are launched ahead of their execution, so the launching thread does not know how
long forward and backward take. CUDA events do: they are recorded into the stream at the
same hooks, in one step of a few, and asked (`query`, never `synchronize`) at later steps.
Where gradients accumulate, every pass of the step is marked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal, NamedTuple

MARK_EVERY_STEPS = 10
MAX_PENDING = 8
MAX_MARKS = 64
"""Of one step: one of more than some twenty passes is not told."""

Part = Literal["gap", "forward", "backward", "optimiser"]


class PartTimes(NamedTuple):
    """Seconds of the parts of one step, on the device."""

    forward: float
    backward: float
    optimiser: float
    exposed: float | None
    """What the exchanging backward took more than the others; None: there was one pass."""


class DeviceMarks:
    """Marks the borders of forward, backward and optimiser on a device's stream.

    Args:
        new_event: makes a timing event (`torch.cuda.Event(enable_timing=True)`).
    """

    def __init__(self, new_event: Callable[[], Any]) -> None:
        self._new_event = new_event
        self._marks: list[tuple[Part, Any]] = []
        self._pending: deque[list[tuple[Part, Any]]] = deque()
        self._step = 0
        self._open = False

    def batch_started(self) -> None:
        """A batch starts: if it is a step's first, mark the step when it is its turn and few wait."""
        if self._open:
            self._border("gap")
            return
        self._open = True
        self._step += 1
        if self._step % MARK_EVERY_STEPS == 0 and len(self._pending) < MAX_PENDING:
            self._record("gap")

    def forward_ended(self) -> None:
        self._border("forward")

    def backward_ended(self) -> None:
        self._border("backward")

    def step_ended(self) -> None:
        """The optimiser's step is made."""
        self._border("optimiser")
        if self._marks and self._is_told_apart():
            self._pending.append(self._marks)
        self._marks, self._open = [], False

    def read(self) -> PartTimes | None:
        """Times of the newest marked step that the device has done; None when there is none."""
        newest = None
        while self._pending and self._pending[0][-1][1].query():
            newest = self._pending.popleft()
        return None if newest is None else _times(newest)

    def _is_told_apart(self) -> bool:
        """Forward and backward by turns, then one optimiser: else the hooks came otherwise."""
        parts = [part for part, _ in self._marks if part != "gap"]
        passes = len(parts) // 2
        return len(self._marks) <= MAX_MARKS and parts == ["forward", "backward"] * passes + ["optimiser"]

    def _border(self, part: Part) -> None:
        if self._marks and len(self._marks) <= MAX_MARKS:
            self._record(part)

    def _record(self, part: Part) -> None:
        event = self._new_event()
        event.record()
        self._marks.append((part, event))


def _times(marks: list[tuple[Part, Any]]) -> PartTimes:
    spent: dict[Part, list[float]] = {"gap": [], "forward": [], "backward": [], "optimiser": []}
    for (_, start), (part, end) in pairwise(marks):
        spent[part].append(max(0.0, start.elapsed_time(end) * 1e-3))
    *without, last = spent["backward"] or [0.0]
    return PartTimes(
        forward=sum(spent["forward"]),
        backward=sum(spent["backward"]),
        optimiser=sum(spent["optimiser"]),
        exposed=max(0.0, last - sum(without) / len(without)) if without else None,
    )
