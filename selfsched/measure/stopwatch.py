"""Times of a step and its parts, from instants that the training loop passes anyway.

    fetch | batch start | forward | backward | optimiser | batch end | gap | fetch ...

No device is synchronised and nothing is waited for: the clock is read, a subtraction is
kept. On a GPU kernels are launched ahead: the launching thread does not know the *parts* of
a step, which are then not told from here (`device_marks` has the device's own), but the
*cycle* from one step's end to the next is honest on average, since a queue does not grow for
ever. What of it is no wait for data is then the step.

Validation, checkpoints and the gap between epochs are taken out of the cycle they fall in
and reported as stretches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from selfsched.core.events import StretchTimed
from selfsched.measure.warm_up import WarmUp

Stretch = Literal["validation", "checkpoint_save"]


class StepTimes(NamedTuple):
    """A `StepTiming` in the making: a tuple costs a step nothing, a validated message would."""

    step: int
    seconds: float
    data_seconds: float | None
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
        warm_up: what judges the steps; None: by their cycles alone.
        runs_ahead: the device works on what this thread queues: the parts are not known here.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        step: int = 0,
        warm_up: WarmUp | None = None,
        runs_ahead: bool = False,
    ) -> None:
        self._clock = clock
        self._step = step
        self._warm_up = warm_up or WarmUp()
        self._runs_ahead = runs_ahead
        self.sees_fetches = True
        """Whether `fetch_started` and `fetch_ended` are called; else waits for data are not known."""
        self._last_end: float | None = None
        self._taken_out = 0.0
        self._open: list[float] = []
        self._new_epoch = False
        self._forget_step()

    def _forget_step(self) -> None:
        self._passes = self._samples = 0
        self._seconds = self._data = 0.0
        self._forward = self._backward = self._optimiser = 0.0
        self._optimisers = 0
        self._backwards, self._last_backward = 0, 0.0
        self._at = self._mark = self._fetch_from = 0.0

    @property
    def open_batches(self) -> int:
        """Batches since the last step, or since the fit began."""
        return self._passes

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
        self._last_backward = now - self._mark
        self._backward += self._last_backward
        self._backwards += 1
        self._mark = now

    def optimiser_started(self) -> None:
        self._mark = self._clock()
        self._optimiser = -self._mark
        self._optimisers += 1

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
            self._warm_up.ignore_until_now()
        return StretchTimed(stretch=kind, seconds=seconds, step=self._step, size_bytes=size_bytes)

    # --- inside ----------------------------------------------------------------------

    def _times(self, step: int, now: float) -> StepTimes:
        cycle = None
        if self._last_end is not None:
            cycle = max(0.0, now - self._last_end - self._taken_out)
        seconds, data = max(0.0, self._seconds), max(0.0, self._data)
        if cycle is not None:
            seconds = max(0.0, cycle - data) if self._runs_ahead else min(seconds, cycle)
        # Several optimisers in one batch: what lies between them cannot be told apart.
        parted = self._backwards > 0 and self._optimisers <= 1 and not self._runs_ahead
        times = StepTimes(  # by position: names would double what it costs
            step,
            seconds,
            data if self.sees_fetches else None,
            cycle,
            self._forward if parted else None,
            self._backward if parted else None,
            self._optimiser + now if parted and self._optimisers else None,
            self._exposed_in_last_pass() if parted and self._passes > 1 else None,
            self._samples,
            self._passes,
            self._warm_up.judge(cycle, now),
        )
        made = step - self._step
        return times if made == 1 else _shared_out(times, made)

    def _exposed_in_last_pass(self) -> float | None:
        """Accumulation leaves out the exchange in all passes but the last: an experiment for free.

        Only a difference between ranks that exchange gradients means communication: the
        caller drops it when there is one rank.
        """
        if self._backwards != self._passes:
            return None  # a backward of the user's own
        last = self._last_backward
        return max(0.0, last - (self._backward - last) / (self._backwards - 1))


def _shared_out(times: StepTimes, steps: int) -> StepTimes:
    """Times of one of several global steps made in one batch (manual optimisation)."""
    return times._replace(
        seconds=times.seconds / steps,
        data_seconds=None if times.data_seconds is None else times.data_seconds / steps,
        cycle_seconds=None if times.cycle_seconds is None else times.cycle_seconds / steps,
        forward_seconds=None,
        backward_seconds=None,
        optimiser_seconds=None,
        communication_seconds=None,
        local_samples=times.local_samples // steps,
    )
