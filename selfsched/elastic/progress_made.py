"""Whether a run gets anywhere, so that one that only fails is not tried for ever. Pure."""

from __future__ import annotations

from typing import Any

from selfsched.core.events import (
    CheckpointSaved,
    FitFinished,
    FitStarted,
    Left,
    Progressed,
    RankStarted,
    StepsTimed,
)

MOST_FRUITLESS_TRIES = 3


class ProgressMade:
    """Follows the events of all segments.

    A position is (fit, global step). A segment that ended in a fault was fruitful when the
    run then stood further than it ever had at the fault before.

    Args:
        checkpoint_step: of the newest checkpoint that an earlier life of the run left; None: there is none.
    """

    def __init__(self, checkpoint_step: int | None = None) -> None:
        self.fit = 1
        self.step = 0
        self.checkpoint_step = checkpoint_step
        self.fruitless = 0
        """Faults in a row without progress."""
        self.is_elastic = False
        """Whether a rank has made itself known: a SelfScheduler was constructed in it."""
        self.is_fitting = False
        """Whether a fit is under way in the present segment: only then can a step end in a checkpoint."""
        self._furthest_at_fault = (0, 0)
        self._started_from = (1, 0)

    def segment_started(self) -> None:
        """A new segment goes on from the newest checkpoint."""
        self._started_from = (self.fit, self.step)
        self.is_fitting = False

    def saw(self, event: Any) -> None:
        """An event of a rank."""
        if isinstance(event, RankStarted):
            self.is_elastic = True
        elif isinstance(event, FitStarted):
            if event.fit != self.fit:
                self.checkpoint_step = None
            self.fit, self.step = event.fit, event.step
            self.is_fitting = True
        elif isinstance(event, Progressed | FitFinished):
            self.fit, self.step = event.fit, event.step
            self.is_fitting = isinstance(event, Progressed)
        elif isinstance(event, StepsTimed) and event.timings:
            self.step = max(self.step, event.timings[-1].step)
        elif isinstance(event, CheckpointSaved):
            self.fit, self.checkpoint_step = event.fit, event.step
            self.step = max(self.step, event.step)
        elif isinstance(event, Left):
            self.step = max(self.step, event.step)

    def left(self, left: Left | None) -> bool:
        """A segment ended with a checkpoint; whether the run got further in it."""
        if left is not None:
            self.step = max(self.step, left.step)
        return (self.fit, self.step) > self._started_from

    def may_retry(self) -> bool:
        """A segment ended in a fault: count it, and say whether to try again."""
        position = (self.fit, self.step)
        if position > self._furthest_at_fault:
            self._furthest_at_fault = position
            self.fruitless = 1
        else:
            self.fruitless += 1
        return self.fruitless < MOST_FRUITLESS_TRIES

    def nothing_moved(self, devices: int) -> str | None:
        """What to say at the end of a program in which no SelfScheduler was; None: there was one."""
        if self.is_elastic:
            return None
        times = f"once on each of {devices} devices" if devices > 1 else "as it stands"
        return (
            f"no SelfScheduler was made in this program, so it ran {times} and can neither change devices "
            "nor go on from a checkpoint; put selfsched.SelfScheduler() into Trainer(callbacks=[...]), "
            "or use --fixed"
        )

    @property
    def resume_point(self) -> str:
        """Where the next segment begins, in words."""
        if self.checkpoint_step is None:
            return "the start" if self.fit == 1 else f"the start of fit {self.fit}"
        return f"the checkpoint at step {self.checkpoint_step}"
