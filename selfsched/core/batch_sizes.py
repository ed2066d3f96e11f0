"""Whether the batch of a training's steps changed for good, or varies from step to step.

Samples of a step change for three reasons, and each means something else:

- *A ragged batch* ends an epoch: it stands alone, the usual one comes back. Its time belongs to
  the mean of a step as it is.
- *A new batch* (an accumulation scheduler, a loader that was built anew): from `NEW_BATCH` steps
  in a row on, what was measured is taken as what the new batch would have needed at the same time
  a sample, and an epoch has as many more or fewer steps.
- *Batches vary* (a budget of tokens, buckets of lengths): a loader's length is in batches, a
  step's samples say nothing of its cost, and nothing is to be rescaled. Batches vary when sizes
  change `MOST_CHANGES` times within `WINDOW` steps, ragged ones apart, or when a size comes
  back for good that was left for good, at the same number of accumulation passes. What was
  rescaled lately was then rescaled wrongly, and is undone.

Before a size was seen `NEW_BATCH` times in a row there is no usual one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

NEW_BATCH = 3
"""So many steps in a row with another number of samples are a new batch."""
MOST_CHANGES = 4
WINDOW = 32
SURE_AFTER = 64
"""A new batch that held for so many steps was one."""
MOST_TIMES = 64.0
"""A batch is not taken to be so many times another one's work."""

Kind = Literal["usual", "alone", "new", "varies"]


@dataclass(frozen=True)
class Judged:
    """What the samples of a step mean."""

    kind: Kind
    rescale: float = 1.0
    """What was measured before is to be multiplied by it."""
    scale: float = 1.0
    """The step's own cycle is to be multiplied by it."""


_USUAL = Judged("usual")
_VARIES = Judged("varies")


class BatchSizes:
    """Follows the samples of the steps of one segment, in their order."""

    def __init__(self, usual: int = 0) -> None:
        self.usual = usual
        """Samples of a step; 0: not known yet."""
        self.vary = False
        self._passes = 0
        """Of the usual batch; 0: not known yet."""
        self._last = (0, 0)
        self._row = self._passes_row = self._count = 0
        self._ragged = 0
        self._left: set[tuple[int, int]] = set()
        self._changes: deque[int] = deque(maxlen=MOST_CHANGES)
        self._applied = 1.0

    def judge(self, samples: int, passes: int = 1) -> Judged:
        """The next step has so many samples.

        Args:
            samples: 0 or less: not told.
            passes: of accumulation.
        """
        if samples <= 0:
            return _VARIES if self.vary else _USUAL
        self._follow(samples, max(1, passes))
        if self.vary:
            return self._new_passes()
        if self._is_varying():
            self.vary, undo = True, 1.0 / self._applied
            return Judged("varies", rescale=undo)
        if (samples, self._last[1]) == (self.usual, self._passes or self._last[1]):
            return self._as_usual()
        return self._other(samples)

    # --- inside ------------------------------------------------------------------------

    def _follow(self, samples: int, passes: int) -> None:
        before, self._last = self._last, (samples, passes)
        self._count += 1
        self._passes_row = self._passes_row + 1 if before[1] == passes else 1
        if before == self._last or not before[0]:
            self._row += 1
            return
        was_alone = self._row == 1 and samples == self.usual
        self._row = 1
        if was_alone and self._ragged in (0, before[0]):
            self._ragged = before[0]  # it came and went: neither was a change
            if self._changes:
                self._changes.pop()
        elif before[1] == passes:
            self._changes.append(self._count)

    def _is_varying(self) -> bool:
        if len(self._changes) == MOST_CHANGES and self._changes[0] > self._count - WINDOW:
            return True
        return self._row == NEW_BATCH and self._last in self._left

    def _as_usual(self) -> Judged:
        self._passes = self._last[1]
        if self._row >= SURE_AFTER:
            self._applied = 1.0
        return _USUAL

    def _other(self, samples: int) -> Judged:
        if not self.usual:
            if self._row >= NEW_BATCH:
                self.usual, self._passes = self._last
            return _USUAL
        if self._row < NEW_BATCH:
            alone = samples == self._ragged
            return Judged("alone", scale=1.0 if alone else _clipped(self.usual / samples))
        factor = _clipped(samples / self.usual)
        self._left.add((self.usual, self._passes))
        if self._passes == self._last[1]:
            self._applied *= factor
        self.usual, self._passes = self._last
        return Judged("new", rescale=factor)

    def _new_passes(self) -> Judged:
        """Where sizes vary only the passes of accumulation tell that steps are others now."""
        passes = self._last[1]
        if not self._passes:
            self._passes = passes
        if passes == self._passes or self._passes_row < NEW_BATCH:
            return _VARIES
        factor, self._passes = _clipped(passes / self._passes), passes
        return Judged("varies", rescale=factor)


def _clipped(factor: float) -> float:
    return min(max(factor, 1.0 / MOST_TIMES), MOST_TIMES)
