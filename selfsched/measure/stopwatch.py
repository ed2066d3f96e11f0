"""Times of a step and its parts, from instants that the training loop passes anyway.

    fetch | batch start | forward | backward | optimiser | batch end | gap | fetch ...

No device is synchronised and nothing is waited for: the clock is read, a subtraction is
kept. On a GPU kernels are launched ahead, so the *parts* of a step are then times of the
launching thread (see `device_marks` for the device's own), but the *cycle* from one step's
end to the next is honest on average: a queue does not grow for ever.

Validation, checkpoints and the gap between epochs are taken out of the cycle they fall in
and reported as stretches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from selfsched.core.events import StretchTimed

ALWAYS_WARM_UP_STEPS = 3
"""Allocation, the rebuilding of DDP's buckets after the first step, kernel choice."""
WARM_UP_STEPS = 20
WARM_UP_SECONDS = 5.0
"""Later steps are warm-up only while the segment is this young: long steps settle sooner."""

Stretch = Literal["validation", "checkpoint_save"]


class StepTimes(NamedTuple):
    """A `StepTiming` in the making: a tuple costs a step nothing, a validated message would."""

    step: int
    seconds: float
    data_seconds: float
    cycle_seconds: float | None
    forward_seconds: float | None
    backward_seconds: float | None
    optimiser_seconds: float | None
    communication_seconds: float | None
    local_samples: int
    passes: int
    warm_up: bool


class Stopwatch:
    """Follows one rank through the hooks of its training loop.

    Args:
        clock: seconds, monotonic; one that stands still while the machine is suspended is
            best, since a suspended minute is then no slow step.
        step: global step the fit goes on from.
    """

    def __init__(self, clock: Callable[[], float], *, step: int = 0) -> None:
        self._clock = clock
        self._step = step
        self._counted = 0
        self._first_at: float | None = None
        self._last_end: float | None = None
        self._taken_out = 0.0
        self._open: list[float] = []
        self._new_epoch = False
        self._forget_step()

    def _forget_step(self) -> None:
        self._passes = self._samples = 0
        self._seconds = self._data = 0.0
        self._forward = self._backward = self._optimiser = 0.0
        self._backwards: list[float] = []
        self._at = self._mark = self._fetch_from = 0.0

    # --- hooks -----------------------------------------------------------------------

    def fetch_started(self) -> None:
        self._fetch_from = self._clock()

    def fetch_ended(self) -> None:
        if self._fetch_from:
            self._data += self._clock() - self._fetch_from
            self._fetch_from = 0.0

    def epoch_started(self) -> None:
        """The next batch is the first of an epoch."""
        self._new_epoch = True

    def batch_started(self) -> StretchTimed | None:
        """A batch is on its device; returns the gap before it if it opens an epoch."""
        now = self._clock()
        self._at = self._mark = now
        if self._first_at is None:
            self._first_at = now
        gap = None
        if self._new_epoch and self._last_end is not None:
            seconds = max(0.0, now - self._last_end - self._taken_out)
            gap = StretchTimed(stretch="epoch_end", seconds=seconds, step=self._step)
            self._taken_out += seconds
            self._data = 0.0  # workers starting anew: in the gap already
        self._new_epoch = False
        return gap

    def backward_started(self) -> None:
        now = self._clock()
        self._forward += now - self._mark
        self._mark = now

    def backward_ended(self) -> None:
        now = self._clock()
        self._backward += now - self._mark
        self._backwards.append(now - self._mark)
        self._mark = now

    def optimiser_started(self) -> None:
        self._mark = self._clock()
        self._optimiser = -self._mark

    def batch_ended(self, step: int, samples: int) -> StepTimes | None:
        """A batch is done.

        Args:
            step: the trainer's global step now.
            samples: in this batch, on this rank.

        Returns:
            The times of the optimiser step that ended with this batch; None while
            gradients accumulate.
        """
        now = self._clock()
        self._passes += 1
        self._samples += samples
        if self._at:
            self._seconds += now - self._at
        if step <= self._step:
            return None
        times = self._times(step, now)
        self._step, self._last_end, self._taken_out = step, now, 0.0
        self._counted += 1
        self._forget_step()
        return times

    def stretch_started(self) -> None:
        """Something that is no step begins; stretches may lie within each other."""
        self._open.append(self._clock())

    def stretch_ended(self, kind: Stretch, *, size_bytes: int | None = None) -> StretchTimed | None:
        """It ended. What lies within an outer stretch is reported, and taken out once."""
        if not self._open:
            return None
        seconds = max(0.0, self._clock() - self._open.pop())
        if not self._open:
            self._taken_out += seconds
        return StretchTimed(stretch=kind, seconds=seconds, step=self._step, size_bytes=size_bytes)

    # --- inside ----------------------------------------------------------------------

    def _times(self, step: int, now: float) -> StepTimes:
        cycle = None
        if self._last_end is not None:
            cycle = max(0.0, now - self._last_end - self._taken_out)
        seconds = max(0.0, self._seconds)
        if cycle is not None:
            seconds = min(seconds, cycle)
        parted = bool(self._backwards)
        return StepTimes(  # by position: names would double what it costs
            step,
            seconds,
            max(0.0, self._data),
            cycle,
            self._forward if parted else None,
            self._backward if parted else None,
            self._optimiser + now if self._optimiser else None,
            self._exposed_in_last_pass() if len(self._backwards) > 1 else None,
            self._samples,
            self._passes,
            self._counted < WARM_UP_STEPS and self._is_warm_up(now),
        )

    def _exposed_in_last_pass(self) -> float:
        """Accumulation leaves out the exchange in all passes but the last: an experiment for free.

        Only a difference between ranks that exchange gradients means communication: the
        caller drops it when there is one rank.
        """
        *without, last = self._backwards
        return max(0.0, last - sum(without) / len(without))

    def _is_warm_up(self, now: float) -> bool:
        if self._counted < ALWAYS_WARM_UP_STEPS:
            return True
        return self._first_at is not None and now - self._first_at < WARM_UP_SECONDS
