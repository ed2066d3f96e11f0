"""Token buckets: nobody's flood is anybody else's.

Heartbeats have budgets of their own, one for each job and node, so that a flood of other calls,
or of one job's reports, cannot keep another job's leases from being renewed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from selfsched.protocol import ProblemCode
from selfsched_broker.core.leases import Refusal

_MOST_BUCKETS = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """So many calls a second in the long run, and ten times as many at once."""

    per_second: float

    @property
    def burst(self) -> float:
        """Calls at once."""
        return 10 * self.per_second


class Buckets:
    """What is left of one kind of budget. Used by one thread (the event loop).

    Args:
        budget: of each key.
        monotonic: a clock of seconds.
    """

    def __init__(self, budget: Budget, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._monotonic = monotonic
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, key: str) -> None:
        """Take one call from a key's bucket.

        Raises:
            Refusal: OVERLOADED: it is empty.
        """
        now = self._monotonic()
        left, since = self._left.get(key, (self._budget.burst, now))
        left = min(self._budget.burst, left + (now - since) * self._budget.per_second)
        if left < 1:
            raise Refusal(ProblemCode.OVERLOADED, "too many calls: slow down and try again")
        self._left[key] = (left - 1, now)
        if len(self._left) > _MOST_BUCKETS:
            self._forget_full(now)

    def _forget_full(self, now: float) -> None:
        """A bucket that has filled up again is as good as none."""
        refill = self._budget.burst / self._budget.per_second
        self._left = {key: kept for key, kept in self._left.items() if now - kept[1] < refill}
