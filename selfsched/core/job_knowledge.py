"""What a job has learned of itself, over all its segments, and its plain form.

The parts are learned by `JobModel` from events and read by `JobTimes`; here they lie together, so
that a resubmitted job takes back what of an earlier life's state is sound, part by part
(`kept_state`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from selfsched.core.calibration import Calibration
from selfsched.core.events import FitStarted
from selfsched.core.forecast_record import ForecastRecord
from selfsched.core.kept_state import EVERYTHING, PARTS, is_sound
from selfsched.core.memory import MemoryModel
from selfsched.core.performance import documented_prior
from selfsched.core.progress import Ledger
from selfsched.core.restart_cost import RestartCost
from selfsched.core.step_knowledge import StepKnowledge
from selfsched.protocol import HardwarePrior

STATE_VERSION = 3
PartCheck = Callable[[str, Any], bool]


class JobKnowledge:
    """Times of steps, progress, costs of restarts, memory and scores of one job.

    Args:
        hardware: model of the devices; what is learned holds for it.
        min_devices: smallest and
        max_devices: largest count the job wants.
        prior: of the hardware; None: the makers' documented figures.
        calibration: scores of other jobs of the same user.
    """

    def __init__(
        self,
        *,
        hardware: str,
        min_devices: int,
        max_devices: int,
        prior: HardwarePrior | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.hardware = hardware
        self.prior = prior or documented_prior(hardware)
        self.range = (min_devices, max_devices)
        self.dividing: tuple[int, ...] = tuple(range(min_devices, max_devices + 1))
        """Device counts that keep the global batch."""
        self.record = ForecastRecord(calibration=calibration or Calibration())
        self.steps = StepKnowledge(self.prior)
        self.ledger = Ledger()
        self.restart = RestartCost()
        self.memory = MemoryModel()
        self.segments = 0
        self.validation_batches = 0
        """Of one validation; 0: not told."""
        self.passes = 1
        """Forward and backward passes of a step (accumulation)."""
        self.trained: tuple[str, int, int] = ("", 0, 0)
        """Module, gradient bytes and global batch of what was measured; empty: not told."""
        self.unusable: tuple[str, ...] = ()
        """What of a state was no knowledge and is learned anew, in words."""

    @property
    def allowed_devices(self) -> tuple[int, ...]:
        """Device counts to bid for: they keep the global batch, and the job fits into their memory."""
        return tuple(n for n in self.dividing if self.memory.fits(n)) or self.dividing[-1:]

    def fit_started(self, event: FitStarted, *, is_first_segment: bool) -> None:
        """A fit begins, or goes on; of another training than was measured, the times are forgotten."""
        if self._is_of_another(event, is_first_segment):
            self.steps.forget()
            self.memory = MemoryModel()
        self.trained = _known((event.module, event.gradient_bytes, event.global_batch), self.trained)
        self.ledger.fit_started(event)
        low, high = self.range
        allowed = tuple(n for n in sorted(set(event.allowed_devices)) if low <= n <= high)
        self.dividing = allowed or self.dividing
        self.steps.know_gradient_bytes(event.gradient_bytes)
        self.validation_batches = max(0, event.validation_batches or 0)

    def _is_of_another(self, event: FitStarted, is_first_segment: bool) -> bool:
        """Whether another module, or another batch in another fit, is trained than was measured."""
        module, gradient_bytes, batch = self.trained
        if (event.module and module and event.module != module) or (
            event.gradient_bytes > 0 and gradient_bytes and event.gradient_bytes != gradient_bytes
        ):
            return True
        goes_on = event.fit == self.ledger.fit and not is_first_segment
        return bool(not goes_on and batch and event.global_batch and event.global_batch != batch)

    # --- state -----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Everything learned, as plain JSON values; a running segment is not in it."""
        return {
            "version": STATE_VERSION,
            "hardware": self.hardware,
            "allowed_devices": list(self.dividing),
            "steps": self.steps.to_state(),
            "ledger": self.ledger.to_state(),
            "restart": self.restart.to_state(),
            "gradient_bytes": self.steps.gradient_bytes,
            "trained": list(self.trained),
            "memory": self.memory.to_state(),
            "segments": self.segments,
            "record": self.record.to_state(),
        }

    def restore(self, state: Mapping[str, Any], *, is_usable: PartCheck) -> None:
        """Take back what is sound of an earlier life's state; times of other hardware are dropped.

        Args:
            state: what `to_state` gave, or anything else.
            is_usable: whether a model lives with this part of a state (name, state).
        """
        if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION:
            self.unusable = (EVERYTHING,)
            return
        low, high = self.range
        told, segments = state.get("allowed_devices"), state.get("segments")
        allowed = [n for n in told if type(n) is int and low <= n <= high] if isinstance(told, list) else []
        self.dividing = tuple(allowed) or self.dividing
        gradient_bytes = state.get("gradient_bytes")
        if type(gradient_bytes) is int and is_sound(gradient_bytes):
            self.steps.know_gradient_bytes(gradient_bytes)
        self.segments = segments if type(segments) is int and 0 <= segments < 2**31 else 0
        self.trained = _trained_in(state.get("trained"), gradient_bytes)
        own = state.get("hardware") == self.hardware
        parts = [name for name in PARTS if own or name not in ("steps", "memory")]
        sound = [name for name in parts if is_usable(name, state.get(name))]
        for name in sound:
            self.take_back(name, state[name])
        self.unusable = tuple(PARTS[name] for name in parts if name not in sound)

    def take_back(self, part: str, state: Mapping[str, Any]) -> None:
        """Take one part over, whatever is in it.

        Raises:
            TypeError, ValueError, KeyError, AttributeError: it is no such part's state.
        """
        match part:
            case "steps":
                self.steps.restore(state)
            case "ledger":
                self.ledger = Ledger.from_state(state)
            case "restart":
                self.restart = RestartCost.from_state(state)
            case "memory":
                self.memory = MemoryModel.from_state(state)
            case "record":
                self.record = ForecastRecord.from_state(state)


def _known(now: tuple[str, int, int | None], before: tuple[str, int, int]) -> tuple[str, int, int]:
    """What is told of a training, and where it is not, what was told before."""
    return now[0] or before[0], max(now[1], 0) or before[1], max(now[2] or 0, 0) or before[2]


def _trained_in(told: Any, gradient_bytes: Any) -> tuple[str, int, int]:
    """What a state says of the training that it is of."""
    match told:
        case [str(module), int(size), int(batch)]:
            return module, max(size, 0), max(batch, 0)
    return "", gradient_bytes if type(gradient_bytes) is int and gradient_bytes > 0 else 0, 0
