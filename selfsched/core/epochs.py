"""Epochs counted in optimiser steps: where the present one began, how long they are, when some are done.

What is left is counted from the present place on, never as epochs times a length from step 0: a
fit may go on with another batch, another accumulation or a longer loader than that in which
its earlier steps were made.

A stated length is learned anew from an epoch that was seen from its begin to its end. It may
be shorter (an iterable dataset states that of all ranks together) or longer (a loader that is
made anew each epoch and grows). An epoch that is already longer than it should be is as long
as it is, and so are those to come; the last one's end is then unknown.

A batch that changes on the way (an accumulation scheduler) changes how many steps an epoch
has: samples are counted, and what is left of them is divided by those of a step now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from selfsched.core.events import FitStarted, Progressed

BATCH_CHANGE = 0.05
"""A batch that changes by less than this part is the same batch."""
HEARD_LATE_STEPS = 1
"""An epoch that seems so much longer was only heard of late."""
_LITTLE = 1e-6


@dataclass
class EpochCount:
    """Epochs of the present fit, over its segments."""

    step: int = 0
    epoch: int = 0
    max_epochs: int | None = None
    steps_per_epoch: float | None = None
    epoch_length_learned: bool = False
    stated_length: int | None = None
    """As last stated, in steps ..."""
    stated_batch: int | None = None
    """... of so many samples."""
    step_samples: float | None = None
    """Samples of a step over all devices, now ..."""
    epoch_step_samples: float | None = None
    """... and in the steps that `steps_per_epoch` counts."""
    epochs_watched: int = 0
    """Epochs whose end was seen."""
    is_located: bool = False
    """Whether this segment has told its epoch: only then is a change of epochs seen as it happens."""
    epoch_from_is_exact: bool = False
    """Whether it is known where the present epoch began."""
    at_boundary: bool = False
    """Between two epochs: the gap there is not over."""
    _epoch_from: tuple[int, float] | None = None
    """(epoch, step) at which the present epoch is known to have begun, as if in steps of now."""
    _epoch_from_samples: int | None = 0
    """Samples of the fit by then; None: not known."""
    _told_at: tuple[int, int] = (0, 0)
    """(step, samples) as last told together."""

    # --- what is heard -------------------------------------------------------------------

    def sized(self, samples: int) -> None:
        """A step takes so many samples over all devices now."""
        if samples > 0:
            self.step_samples = float(samples)
            if self.epoch_step_samples is None:
                self.epoch_step_samples = float(samples)

    def _begin_epochs(self) -> None:
        """Another fit begins."""
        self.epoch, self.epochs_watched = 0, 0
        self.steps_per_epoch, self.epoch_length_learned = None, False
        self.stated_length = self.stated_batch = None
        self.step_samples = self.epoch_step_samples = None
        self.epoch_from_is_exact = self.at_boundary = False
        self._epoch_from, self._epoch_from_samples, self._told_at = None, 0, (0, 0)

    def _place(self, event: FitStarted) -> None:
        """Where the fit begins or goes on, and how long its epochs are from here on."""
        self.max_epochs = _positive(event.max_epochs)
        self._take_stated_length(_positive(event.steps_per_epoch), _positive(event.global_batch))
        self.at_boundary = False
        place = _place_of(event)
        if place is not None:
            self.epoch = place[0]
        self.is_located = event.step == 0 or place is not None
        if event.step == 0:
            self._epoch_from, self._epoch_from_samples = (place[0] if place else 0, 0.0), 0
            self.epoch_from_is_exact = True
        elif place is not None:
            self._go_on(event, *place)

    def _go_on(self, event: FitStarted, epoch: int, batch: int) -> None:
        batches, length = _positive(event.batches_per_epoch), _positive(event.steps_per_epoch)
        begins = batch == 0
        if not begins and (batches is None or length is None):
            if self._epoch_from is None or self._epoch_from[0] != epoch or self._epoch_from[1] > event.step:
                self._epoch_from, self.epoch_from_is_exact = None, False
            return
        left = 0.0 if begins else float(math.ceil(length * (batches - batch) / batches - _LITTLE))  # type: ignore[operator]
        if not begins and left <= 0:  # the loader has no batch left for this epoch
            self.epoch, begins = epoch + 1, True
        done = 0.0 if begins else (length or 0) - left
        self._epoch_from, self.epoch_from_is_exact = (self.epoch, event.step - done), True
        self._epoch_from_samples, self._told_at = None, (event.step, 0)

    def _take_stated_length(self, steps: int | None, batch: int | None) -> None:
        if steps is None:
            return
        same = steps == self.stated_length or (batch is not None and batch == self.stated_batch)
        self.stated_length, self.stated_batch = steps, batch
        if same and self.epoch_length_learned and (self.steps_per_epoch or math.inf) < steps:
            return  # what was seen is less than what is stated
        self.epoch_step_samples = float(batch) if batch else None
        self.step_samples = None  # the fit may go on with another batch
        self.steps_per_epoch, self.epoch_length_learned = float(steps), False

    def _locate(self, event: Progressed) -> None:
        """Take a position over; an epoch's begin teaches the length of an epoch."""
        if event.epoch > self.epoch or self._epoch_from is None:
            self._new_epoch(event)
        elif self._epoch_from_samples is None:
            self._epoch_from_samples = round(event.samples - self._samples_since_begin(event.step))
        if event.epoch >= self.epoch:
            self._told_at = (event.step, event.samples)
        self.epoch = max(self.epoch, event.epoch)
        self.is_located = True

    def _samples_since_begin(self, step: int) -> float:
        """In a segment that went on within an epoch: before it in steps as stated, then in those of now."""
        assert self._epoch_from is not None
        went_on_at = self._told_at[0]
        before = max(0.0, went_on_at - self._epoch_from[1]) * (self.epoch_step_samples or 0.0)
        return before + max(0, step - went_on_at) * (self.step_samples or 0.0)

    def _new_epoch(self, event: Progressed) -> None:
        begins_at = float(event.step)
        if self._epoch_from is not None:
            epochs, steps = event.epoch - self._epoch_from[0], event.step - self._epoch_from[1]
            if epochs > 0 and steps > 0:
                if self._teaches(steps / epochs):
                    self.steps_per_epoch, self.epoch_length_learned = steps / epochs, True
                    self._learn_samples(event, steps)
                elif self._is_heard_late(steps / epochs):
                    begins_at = self._epoch_from[1] + epochs * (self.steps_per_epoch or 0.0)
        if event.epoch > self.epoch:
            self.epochs_watched += event.epoch - self.epoch if self.is_located else 0
            self._epoch_from, self.epoch_from_is_exact = (event.epoch, begins_at), self.is_located
            self._epoch_from_samples = event.samples
            self.at_boundary = self.is_located

    def _learn_samples(self, event: Progressed, steps: float) -> None:
        if self._epoch_from_samples is None:
            self.epoch_step_samples = self.step_samples
            return
        samples = event.samples - self._epoch_from_samples
        self.epoch_step_samples = samples / steps if samples > 0 else None

    def _teaches(self, length: float) -> bool:
        """Whether an epoch of so many steps says more than what is known of epochs."""
        if self.steps_per_epoch is None or self.epoch_length_learned or self._batch_factor() != 1.0:
            return True
        longer = self.is_located and length > self.steps_per_epoch + HEARD_LATE_STEPS
        return self.epoch_from_is_exact and (length < self.steps_per_epoch or longer)

    def _is_heard_late(self, length: float) -> bool:
        known = self.steps_per_epoch
        return known is not None and self.epoch_from_is_exact and 0 <= length - known <= HEARD_LATE_STEPS

    # --- what is left ----------------------------------------------------------------------

    @property
    def is_between_epochs(self) -> bool:
        """The last step was an epoch's last one, as far as is known, and what follows it is not over."""
        if self.at_boundary or not self.epoch_from_is_exact or self._epoch_from is None:
            return self.at_boundary
        passed = (self.step - self._epoch_from[1]) * self._batch_factor()
        return self.steps_per_epoch is not None and 0 <= passed - self.steps_per_epoch < 1

    def _batch_factor(self) -> float:
        """Samples of a step now over those of the steps by which epochs are counted."""
        if not self.step_samples or not self.epoch_step_samples:
            return 1.0
        factor = self.step_samples / self.epoch_step_samples
        return factor if abs(factor - 1.0) > BATCH_CHANGE else 1.0

    def _step_after(self, epochs: int) -> int | None:
        """The step at which so many epochs will be done; None: not known."""
        if self.steps_per_epoch is None:
            return None
        end = self._counted(epochs) if self._batch_factor() == 1.0 else self._converted(epochs)
        if self.step > end + HEARD_LATE_STEPS:
            return None  # it is longer than all that is known
        return max(self.step, math.ceil(end - _LITTLE)) if self.step > end else math.ceil(end - _LITTLE)

    def _anchor(self) -> tuple[int, float]:
        if self._epoch_from is not None and (self.epoch_length_learned or self.epoch_from_is_exact):
            return self._epoch_from
        return 0, 0.0

    def _counted(self, epochs: int) -> float:
        epoch, begin = self._anchor()
        length = self.steps_per_epoch or 0.0
        passed = self.step - begin
        is_longer = self.epoch_from_is_exact and epoch == self.epoch and passed > length + HEARD_LATE_STEPS
        if is_longer and epochs > epoch + 1:
            length = passed
        return begin + max(0, epochs - epoch) * length

    def _converted(self, epochs: int) -> float:
        """The same from samples: earlier steps of this epoch may have had another batch."""
        assert self.step_samples
        epoch, begin = self._anchor()
        step, samples = self._told_at
        each = self.epoch_step_samples or 0.0
        whole = (self.steps_per_epoch or 0.0) * each
        since = self._epoch_from_samples if (epoch, begin) == self._epoch_from else None
        if step < begin:
            step, done = math.ceil(begin), 0.0
        elif since is not None and samples > since:
            done = float(samples - since)
        else:
            done = (step - begin) * each
        if epochs > epoch + 1:
            whole = max(whole, done)
        left = max(0, epochs - epoch) * whole - done
        return step + left / self.step_samples


def _place_of(event: FitStarted) -> tuple[int, int] | None:
    if event.epoch is None or event.epoch < 0:
        return None
    return event.epoch, max(0, event.batch or 0)


def _positive(count: int | None) -> int | None:
    return count if count is not None and count > 0 else None
