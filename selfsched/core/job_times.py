"""How long a job still takes on each device count, from what it has learned of itself.

Pure questions to `JobKnowledge`: the cost of a step there, what comes beside the steps, moves and
restarts, joined into a `Remaining`. Nothing is learned here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from selfsched.core.bidding import UNKNOWN_END_SECONDS
from selfsched.core.forecast import Beside, Remaining, StepCost, joined, mixed, remaining_time
from selfsched.core.job_knowledge import JobKnowledge
from selfsched.core.performance import StepTime
from selfsched.core.progress import RemainingWork
from selfsched.core.series import PRIOR_STEP_SIGMA, Series

VALIDATION_PASS_SHARE = 0.4
"""A batch of a validation takes this part of a training pass: no backward pass, no optimiser."""
UNSEEN_VALIDATION_SIGMA = 0.5
UNSEEN_SAVE_SIGMA = 0.8
"""What an unmeasured one may differ by (log)."""

Stages = Sequence[tuple[int, int]]
"""(devices, from this global step on) of each change to come, in order."""


@dataclass(frozen=True)
class JobTimes:
    """Times of one job on the devices in question."""

    known: JobKnowledge

    def move_seconds(self, current: int, devices: int) -> float:
        """What it costs to go from so many devices to others; from 0: a start."""
        return self.known.restart.seconds(
            from_devices=current, to_devices=devices, gradient_bytes=self.known.steps.gradient_bytes
        )

    def on(
        self, devices: int, now: float, *, restart_seconds: float = 0.0, elapsed_seconds: float = 0.0
    ) -> Remaining | None:
        """Time until the end on so many devices; None before any evidence, or with no limit known.

        Args:
            devices: throughout.
            now: CLOCK_BOOTTIME seconds.
            restart_seconds: of a move or start before.
            elapsed_seconds: since the last step that is counted.
        """
        return self._of(self.known.ledger.remaining(now), devices, restart_seconds, elapsed_seconds)

    def work(self, devices: int, reference: int, now: float) -> Remaining | None:
        """Time for the work that is left, without a move.

        Where no count of steps ends the run, the work is what `reference` devices would do in the
        time that is left, or stands in for it: other devices would do the same work sooner.
        """
        work = self.known.ledger.remaining(now)
        if work is not None and not math.isinf(work.steps):
            return self._of(work, devices, 0.0)
        step = self.known.steps.step(reference)
        if step is None:
            return None
        seconds = UNKNOWN_END_SECONDS if work is None or work.cap_seconds is None else work.cap_seconds
        steps = seconds / max(self._cost(step, seconds / max(step.seconds, 1e-9)).seconds, 1e-9)
        return self._of(RemainingWork(steps=steps), devices, 0.0)

    def whole(self, devices: int) -> Remaining | None:
        """What all the fit's steps so far would have taken on `devices` devices throughout."""
        return self._of(self.known.ledger.whole(), devices, 0.0)

    def over(self, stages: Stages, devices: int, now: float) -> Remaining | None:
        """Time until the end if the devices change along the way, every change with its cost.

        Args:
            stages: of the changes; not empty.
            devices: now.
            now: CLOCK_BOOTTIME seconds.

        Returns:
            None with no limit known, or none that counts steps.
        """
        work = self.known.ledger.remaining(now)
        if work is None or math.isinf(work.steps):
            return None
        at_limit = self._over(stages, devices, work, work.steps)
        ends = [(weight, self._over(stages, devices, work, steps)) for steps, weight in work.stops]
        return mixed(ends, limit_seconds=at_limit.median_seconds) if ends else at_limit

    def _over(self, stages: Stages, devices: int, work: RemainingWork, end: float) -> Remaining:
        """Time until `end` more steps are made."""
        parts = [
            self._of(work.part(steps), count, move)
            for count, steps, move in self._stretches(stages, devices, end)
            if steps > 0 or move > 0
        ]
        return joined([part for part in parts if part is not None])

    def _stretches(self, stages: Stages, devices: int, left: float) -> list[tuple[int, float, float]]:
        """(devices, steps on them, cost of moving there) from here to the end."""
        counts = [devices, *(count for count, _ in stages)]
        step = self.known.ledger.step
        at = [0.0, *(min(max(0.0, begin - step), left) for _, begin in stages), left]
        moves = [0.0]
        for (one, other), from_here in zip(pairwise(counts), at[1:], strict=False):
            moves.append(self.move_seconds(one, other) if from_here < left else 0.0)
        return [
            (count, max(0.0, end - begin), move)
            for count, (begin, end), move in zip(counts, pairwise(at), moves, strict=True)
        ]

    def _of(
        self, work: RemainingWork | None, devices: int, restart_seconds: float, elapsed_seconds: float = 0.0
    ) -> Remaining | None:
        step = self.known.steps.step(devices)
        if work is None or step is None:
            return None
        beside = Beside(
            spans=self.known.ledger.usual_spans(), expected=self._expected_stretches(step),
            restart_seconds=restart_seconds, restart_sigma_log=self.known.restart.sigma_log,
            elapsed_seconds=elapsed_seconds,
        )  # fmt: skip
        return remaining_time(work, self._cost(step, work.steps), beside)

    def _expected_stretches(self, step: StepTime) -> dict[str, tuple[float, float]]:
        """(seconds, sigma) of a validation or checkpoint before the first was measured."""
        save = self.known.restart.parts(self.known.steps.gradient_bytes)["save"]
        expected = {"checkpoint_save": (save, UNSEEN_SAVE_SIGMA)}
        if self.known.validation_batches:
            share = VALIDATION_PASS_SHARE * step.seconds / max(1, self.known.passes)
            expected["validation"] = (self.known.validation_batches * share, UNSEEN_VALIDATION_SIGMA)
        return expected

    def _cost(self, step: StepTime, steps: float) -> StepCost:
        """What the next `steps` steps cost each, wandering included."""
        own = self.known.steps.series(step.devices)
        level = own.level()
        if level is not None and level.count:
            factor, wander = own.ahead(steps)
        else:  # wanders as the job did elsewhere
            factor, wander = 1.0, self._fullest().ahead(steps)[1]
        return StepCost(
            seconds=step.seconds * factor,
            sigma_log=math.hypot(step.sigma_log, wander),
            step_sigma=level.step_sigma if level is not None else PRIOR_STEP_SIGMA,
        )

    def _fullest(self) -> Series:
        steps = self.known.steps
        return max(map(steps.series, steps.counts), key=lambda s: s.steady) if steps.counts else Series()
