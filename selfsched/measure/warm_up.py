"""Which steps are warm-up: recognised by what happens in them, not by a number of steps.

A step is not like the others

- when it is among the first two of a segment: memory is allocated, the optimiser makes its
  state, kernels are chosen;
- when something was compiled in it (`torch.compile`, at any point of the run: a new shape, a
  new branch), as the compiler's own count of frames tells;
- until DDP has put its buckets into the order in which gradients arrive (in its second
  exchange, if it does so at all);
- while cycles after one of these still fall: caches fill, clocks rise, workers start. They
  have settled when the newest few are not clearly shorter than the few before. Twenty steps
  or five seconds after the last such event they count as settled in any case: what changes
  more slowly is drift, which the model of the steps follows.

A training that compiles all the time has no other steps: then they count.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

FIRST_STEPS = 2
WINDOW = 4
"""Cycles on either side of the comparison."""
FALLING = 0.95
"""A median below this part of the earlier one: still falling."""
LONGEST_STEPS = 20
LONGEST_SECONDS = 5.0
HABIT_STEPS = 16
HABIT_SHARE = 0.2
"""More steps with a compilation than this many, and than this share of all, are a habit."""


class WarmUp:
    """Judges the steps of one segment in their order.

    Args:
        compilations: how often something was compiled in this process so far.
        buckets_settled: whether DDP's buckets have their final order; asked only until then.
    """

    def __init__(
        self, compilations: Callable[[], int] = lambda: 0, buckets_settled: Callable[[], bool] = lambda: True
    ) -> None:
        self._compilations = compilations
        self._buckets_settled: Callable[[], bool] | None = buckets_settled
        self._seen_compilations = compilations()
        self._compiled_steps = 0
        self._steps = 0
        self._settled = False
        self._cycles: list[float] = []
        self._since = 0.0
        self._steps_since = 0

    def ignore_until_now(self) -> None:
        """What was compiled since the last step was not compiled for a step: a validation ended."""
        self._seen_compilations = self._compilations()

    def judge(self, cycle_seconds: float | None, now: float) -> bool:
        """Whether the step that has just ended is warm-up. Once for each step.

        Args:
            cycle_seconds: of this step; None: not known.
            now: of the stopwatch's clock.
        """
        self._steps += 1
        compilations = self._compilations()
        if compilations != self._seen_compilations:
            self._seen_compilations = compilations
            self._compiled_steps += 1
            if not self._compiles_by_habit():
                self._begin(now)
                return True
        if self._settled:
            return False
        if self._awaits_buckets() or self._steps <= FIRST_STEPS:
            self._begin(now)
            return True
        self._settled = self._has_settled(cycle_seconds, now)
        return not self._settled

    def _begin(self, now: float) -> None:
        self._settled, self._cycles, self._steps_since, self._since = False, [], 0, now

    def _has_settled(self, cycle_seconds: float | None, now: float) -> bool:
        self._steps_since += 1
        if self._steps_since > LONGEST_STEPS - FIRST_STEPS or now - self._since > LONGEST_SECONDS:
            return True
        if cycle_seconds is None:
            return False
        self._cycles = [*self._cycles[1 - 2 * WINDOW :], cycle_seconds]
        if len(self._cycles) < 2 * WINDOW:
            return False
        before, newest = self._cycles[:WINDOW], self._cycles[WINDOW:]
        return statistics.median(newest) >= FALLING * statistics.median(before)

    def _awaits_buckets(self) -> bool:
        """Whether DDP's buckets were not in order before this step."""
        if self._buckets_settled is None:
            return False
        if self._buckets_settled() or self._steps >= LONGEST_STEPS:
            self._buckets_settled = None
        return True

    def _compiles_by_habit(self) -> bool:
        return self._compiled_steps > max(HABIT_STEPS, HABIT_SHARE * self._steps)
