"""Times of a step's parts on a GPU, from events that are read when they are long past.

Kernels are launched ahead of their execution, so the launching thread does not know how
long forward and backward take. CUDA events do: they are recorded into the stream at the
same hooks, in one step of a few, and asked (`query`, never `synchronize`) at later steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

MARK_EVERY_STEPS = 10
MAX_PENDING = 8
PARTS = ("forward", "backward", "optimiser")


class DeviceMarks:
    """Marks the borders of forward, backward and optimiser on a device's stream.

    Args:
        new_event: makes a timing event (`torch.cuda.Event(enable_timing=True)`).
    """

    def __init__(self, new_event: Callable[[], Any]) -> None:
        self._new_event = new_event
        self._marks: list[Any] = []
        self._pending: deque[list[Any]] = deque()
        self._step = 0

    def step_started(self) -> None:
        """A step's first batch starts: mark it if it is its turn and not too many wait."""
        self._step += 1
        self._marks = []
        if self._step % MARK_EVERY_STEPS == 0 and len(self._pending) < MAX_PENDING:
            self._record()

    def mark(self) -> None:
        """A border between two parts."""
        if self._marks:
            self._record()

    def step_ended(self) -> None:
        if self._marks:
            self._record()
            if len(self._marks) == len(PARTS) + 1:  # accumulation has more: not told apart
                self._pending.append(self._marks)
        self._marks = []

    def read(self) -> dict[str, float] | None:
        """Seconds of each part in the newest finished marked step; None when there is none."""
        newest = None
        while self._pending and self._pending[0][-1].query():
            newest = self._pending.popleft()
        if newest is None:
            return None
        borders = zip(PARTS, newest, newest[1:], strict=False)
        return {part: max(0.0, start.elapsed_time(end) * 1e-3) for part, start, end in borders}

    def _record(self) -> None:
        event = self._new_event()
        event.record()
        self._marks.append(event)
