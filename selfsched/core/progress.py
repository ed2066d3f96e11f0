"""Work done and work remaining, counted towards the limit that will end the run.

A fit ends at the first of `max_steps`, `max_epochs` and `max_time`. The first two are steps
as soon as an epoch's length is known (`epochs`); where the loader has no length it is said as
unknown until one epoch has been seen, and counted from then on. A limit of time caps what
remains whatever the steps cost. What is not a step is work too: validations and checkpoints still
to come, and the gap at each epoch's end, with the times they took so far.

Early stopping and targets can end a run before its limit: `stopping` says when, as a
distribution over the curve so far, and the remaining work carries it (`stops`). While the
curve says too little, the limit is what is counted, and `end_is_unknown` says that it is an
upper bound. `min_steps` and `min_epochs` hold a rule, and a limit of time, back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from selfsched.core.epochs import EpochCount
from selfsched.core.events import Checked, FitFinished, FitStarted, Progressed, StretchTimed
from selfsched.core.measurement import Spans
from selfsched.core.stopping import StoppingWatch
from selfsched.protocol import MAX_SECONDS

BLIND_LOOKS = 3
"""So many times a rule has looked and found nothing: it watches what is not there."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands."""

    step: int
    planned_steps: int | None
    """Optimiser steps until the limit that counts steps; None: no such limit is known."""
    fraction_done: float
    """0 to 1, towards the limit that will end the run first; 0 when none is known."""
    steady_steps: int
    """Steps measured on the present devices after warm-up."""
    epoch: int
    end_is_unknown: bool
    """The run may end before its limit, or has none."""


@dataclass(frozen=True, kw_only=True)
class RemainingWork:
    """What is left of a fit. Counts need not be whole: they are expectations."""

    steps: float
    validations: float = 0.0
    checkpoints: float = 0.0
    epoch_ends: float = 0.0
    cap_seconds: float | None = None
    """Time left of `max_time`."""
    cap_steps: tuple[float, float] | None = None
    """It holds at ends of epochs alone: steps to the next one, and of an epoch; None: at any step."""
    least_steps: float = 0.0
    """Neither `max_time` nor a rule ends the fit before so many steps."""
    stops: tuple[tuple[float, float], ...] = ()
    """(steps, weight) at which rules may end the fit; empty: at the limit for sure."""

    def part(self, steps: float) -> RemainingWork:
        """So many of these steps, with their share of everything else and no other end."""
        share = steps / self.steps if self.steps > 0 else 0.0
        return RemainingWork(
            steps=steps,
            validations=share * self.validations,
            checkpoints=share * self.checkpoints,
            epoch_ends=share * self.epoch_ends,
        )


@dataclass
class Ledger(EpochCount):
    """Progress of the present fit over all its segments."""

    fit: int = 0
    first_step: int = 0
    samples: int = 0
    finished: bool = False
    stated_steps: int | None = None
    """The limit that counts steps."""
    max_seconds: float | None = None
    elapsed_seconds: float = 0.0
    time_holds_at_epochs: bool = False
    """Whether `max_seconds` is looked at where an epoch ends alone."""
    clock_from: float | None = None
    """When the running segment's training began; None: no segment runs."""
    validations_stated: int | None = None
    early_stopping: bool = False
    stopping: StoppingWatch = field(default_factory=StoppingWatch)
    min_steps: int | None = None
    min_epochs: int | None = None
    checkpoints_per_epoch: float | None = None
    validations_seen: int = 0
    checkpoints_seen: int = 0
    epoch_ends_seen: int = 0
    validations_in_fit: int = 0
    closed: tuple[int, int, int] = (0, 0, 0)
    """Epochs that were over, gap and all, and the validations and checkpoints by then."""
    watched_steps: int = 0
    """Steps during which validations and checkpoints were counted."""
    spans: dict[str, Spans] = field(default_factory=dict)
    later_spans: dict[str, Spans] = field(default_factory=dict)
    """As `spans`, but for the first of each kind: it fills caches and starts workers."""

    # --- events ----------------------------------------------------------------------

    def fit_started(self, event: FitStarted) -> None:
        """A fit begins, or goes on in a new segment."""
        self.stopping.begin(event.stopping, step=event.step, anew=event.fit != self.fit)
        if event.fit != self.fit:
            self._begin(event.fit, event.step)
        self._close_epoch()
        self.finished = False
        self.step = max(event.step, 0)
        self.stated_steps = _step_limit(event)
        self._place(event)
        self.min_steps, self.min_epochs = _positive(event.min_steps), _positive(event.min_epochs)
        self.checkpoints_per_epoch = event.checkpoints_per_epoch
        self.max_seconds = _usable(event.max_seconds)
        self.time_holds_at_epochs = event.max_seconds_holds == "epoch"
        self.elapsed_seconds = max(_seconds(event.elapsed_seconds), self.elapsed_seconds)
        self.clock_from = event.at
        self.validations_stated = event.validations
        self.validations_seen = 0
        self.early_stopping = event.early_stopping

    def stepped(self, step: int) -> None:
        """A step was timed."""
        if step > self.step:
            self._close_epoch()
            self.watched_steps += step - self.step
            self.step = step

    def checked(self, event: Checked) -> None:
        """A value that a rule of early stopping watches is new."""
        self.stopping.checked(event.step, event.values)

    def progressed(self, event: Progressed) -> None:
        """Take a position over; an epoch's begin teaches the length of an epoch."""
        self.stepped(event.step)
        self.samples = max(self.samples, event.samples)
        self._locate(event)

    def stretch(self, event: StretchTimed) -> None:
        """A stretch that is no step took this long."""
        if not math.isfinite(event.seconds) or event.seconds < 0:
            return
        kept = self.later_spans if event.stretch in self.spans else {}
        kept.setdefault(event.stretch, Spans()).update(event.seconds)
        self.spans.setdefault(event.stretch, Spans()).update(event.seconds)
        self.validations_seen += event.stretch == "validation"
        self.validations_in_fit += event.stretch == "validation"
        self.checkpoints_seen += event.stretch == "checkpoint_save"
        if event.stretch == "epoch_end":
            self.epoch_ends_seen += 1
            self.at_boundary = True
            self._close_epoch()

    def forget_checkpoint(self) -> None:
        """The last checkpoint was no periodic one."""
        self.checkpoints_seen = max(0, self.checkpoints_seen - 1)
        epochs, validations, checkpoints = self.closed
        self.closed = (epochs, validations, min(checkpoints, self.checkpoints_seen))

    def segment_ended(self, now: float) -> None:
        """The running segment is over: the clock of `max_time` stands still."""
        if self.clock_from is not None:
            self.elapsed_seconds += max(0.0, now - self.clock_from)
        self.clock_from = None

    def fit_finished(self, event: FitFinished) -> None:
        """The present fit came to its own end."""
        self.step = max(self.step, event.step)
        self.finished = True

    # --- answers ---------------------------------------------------------------------

    @property
    def planned_steps(self) -> int | None:
        """Steps at which the first limit that counts steps ends the fit; None: unknown."""
        by_epochs = None if self.max_epochs is None else self._step_after(self.max_epochs)
        limits = [limit for limit in (self.stated_steps, by_epochs) if limit is not None]
        first = min(limits, default=None)
        return first if first is None or self.finished or self.step <= first else None

    @property
    def has_no_known_limit(self) -> bool:
        """Whether nothing that is known yet ends the fit, neither a count of steps nor a time."""
        return self.planned_steps is None and self.max_seconds is None

    @property
    def end_is_unknown(self) -> bool:
        planned = self.planned_steps
        if planned is None:
            return self.has_no_known_limit
        if not self.early_stopping or self._rules_are_blind:
            return False
        outlook = self.stopping.outlook(self._checks_until(planned))
        return outlook is None or not outlook.is_known

    def elapsed(self, now: float) -> float:
        """Training time of this fit, over its segments."""
        running = 0.0 if self.clock_from is None else max(0.0, now - self.clock_from)
        return self.elapsed_seconds + running

    def fraction_done(self, now: float) -> float:
        """Share of the way to the limit that comes first."""
        if self.finished:
            return 1.0
        shares = [0.0]
        planned = self.planned_steps
        if planned:
            shares.append(self.step / planned)
        if self.max_seconds:
            share, ends_at = self.elapsed(now) / self.max_seconds, self._cap_steps()
            held = max(self._least_steps(), ends_at[0] if ends_at is not None else 0.0)
            if share >= 1.0 and held > 0:  # until the epoch under way ends, or enough is done
                share = self.step / (self.step + held)
            shares.append(share)
        return min(1.0, max(shares))

    def usual_spans(self) -> dict[str, Spans]:
        """Measured stretches of each kind, without the first where there were more."""
        return self.spans | self.later_spans

    def stopping_words(self) -> str:
        """What early stopping may do, for a reader."""
        planned = self.planned_steps
        if self.stopping.fired:
            return "Early stopping ends the run." if not self.finished else "Early stopping ended the run."
        if self.all_done:
            return "Early stopping did not end the run before its limit."
        if planned is None or self.end_is_unknown:
            return "Early stopping may end the run before its limit: its curve says too little yet."
        stops = sorted(steps for steps, _ in self._stops(planned, float(planned - self.step), 0.0))
        if not stops or stops[0] >= planned - self.step:
            return "Early stopping will hardly end the run before its limit."
        early, late = stops[len(stops) // 10], stops[-1 - len(stops) // 10]
        return f"Early stopping is expected to end the run in {early:,.0f} to {late:,.0f} steps."

    @property
    def all_done(self) -> bool:
        """Whether no step remains."""
        planned = self.planned_steps
        return self.finished or (planned is not None and self.step >= planned)

    def seconds_aside(self) -> dict[str, float]:
        """Seconds of the fit so far in each kind of stretch that is no step."""
        counts = {"validation": self.validations_in_fit, "checkpoint_save": self.checkpoints_seen}
        means = {kind: spans.running.mean for kind, spans in self.spans.items()}
        return {kind: count * means.get(kind, 0.0) for kind, count in counts.items()}

    def whole(self) -> RemainingWork:
        """All work of the fit so far, as if it were still to come."""
        return RemainingWork(
            steps=float(max(0, self.step - self.first_step)),
            validations=float(self.validations_in_fit),
            checkpoints=float(self.checkpoints_seen),
            epoch_ends=float(self.epoch_ends_seen),
        )

    def remaining(self, now: float) -> RemainingWork | None:
        """Work until the first limit; None when the run has no limit that is known."""
        if self.finished:
            return RemainingWork(steps=0.0)
        cap = None if self.max_seconds is None else max(0.0, self.max_seconds - self.elapsed(now))
        planned = self.planned_steps
        least = self._least_steps()
        if planned is None:
            return None if cap is None else RemainingWork(
                steps=math.inf, cap_seconds=cap, cap_steps=self._cap_steps(), least_steps=least
            )  # fmt: skip
        steps = float(max(0, planned - self.step))
        return RemainingWork(
            steps=steps,
            validations=self._validations_to_come(steps),
            checkpoints=self._checkpoints_to_come(steps),
            epoch_ends=self._epoch_ends_to_come(steps),
            cap_seconds=cap,
            cap_steps=self._cap_steps(),
            least_steps=min(least, steps),
            stops=self._stops(planned, steps, min(least, steps)),
        )

    # --- inside ----------------------------------------------------------------------

    def _begin(self, fit: int, step: int) -> None:
        self.fit, self.first_step, self.step, self.samples = fit, step, step, 0
        self.elapsed_seconds, self.clock_from = 0.0, None
        self.checkpoints_seen = self.epoch_ends_seen = self.watched_steps = 0
        self.validations_in_fit, self.closed = 0, (0, 0, 0)
        self._begin_epochs()

    def _least_steps(self) -> float:
        """Steps that are made whatever rules and clocks say."""
        least = [float(self.min_steps or 0) - self.step]
        if self.min_epochs:
            least.append(float(self._step_after(self.min_epochs) or 0) - self.step)
        return max(0.0, *least)

    def _cap_steps(self) -> tuple[float, float] | None:
        end = self._step_after(self.epoch + 1) if self.time_holds_at_epochs else None
        if end is None or self.steps_per_epoch is None:
            return None
        return float(end - self.step), self.steps_per_epoch / self._batch_factor()

    def _check_steps(self) -> float | None:
        """Steps between two checks of a rule."""
        return self.stopping.interval_steps or self.steps_per_epoch

    @property
    def _rules_are_blind(self) -> bool:
        """No rule has seen a value, where several would have looked: what they watch does not appear."""
        validates = self.validations_stated or self.validations_in_fit
        looks = self.validations_in_fit if validates else self.closed[0]
        return self.stopping.checks == 0 and looks >= BLIND_LOOKS

    def _last_check(self, every: float) -> float:
        """Step of the last check that is over; of those that were due and did not take place, the last."""
        last = self.stopping.last_step
        return last + max(0, math.ceil((self.step - last) / every) - 1) * every

    def _checks_until(self, planned: int) -> int:
        every = self._check_steps()
        return max(1, round((planned - self._last_check(every)) / every)) if every else 1

    def _stops(self, planned: int, steps: float, least: float) -> tuple[tuple[float, float], ...]:
        """(steps to come, weight) of the ends by early stopping; the limit is among them."""
        outlook, every = self.stopping.outlook(self._checks_until(planned)), self._check_steps()
        if not self.early_stopping or outlook is None or not outlook.is_known or not every:
            return ()
        if self._rules_are_blind:
            return ()
        last = self._last_check(every) - self.step
        ends = ((last + checks * every, weight) for checks, weight in outlook.points)
        return tuple((min(steps, max(end, least, 0.0)), weight) for end, weight in ends)

    def _rate(self, seen: int) -> float:
        return seen / self.watched_steps if self.watched_steps else 0.0

    def _close_epoch(self) -> None:
        """If one has ended, its end is over: what comes with epochs was counted whole."""
        if self.at_boundary:
            self.closed = (self.epochs_watched, self.validations_in_fit, self.checkpoints_seen)
        self.at_boundary = False

    def _validations_to_come(self, steps: float) -> float:
        if self.validations_stated is not None:
            return float(max(0, self.validations_stated - self.validations_seen))
        epochs, closed, _ = self.closed
        return self._by_epochs(self.validations_in_fit, (epochs, closed), steps)

    def _checkpoints_to_come(self, steps: float) -> float:
        epochs, _, closed = self.closed
        if not epochs and self.checkpoints_per_epoch and self.steps_per_epoch:
            return max(0.0, self.checkpoints_per_epoch * self._ends_to_come(steps) - self.checkpoints_seen)
        return self._by_epochs(self.checkpoints_seen, (epochs, closed), steps)

    def _ends_to_come(self, steps: float) -> float:
        """Ends of epochs that are not over, that of the fit among them."""
        length = (self.steps_per_epoch or math.inf) / self._batch_factor()
        return math.ceil(steps / length - 1e-6) + float(self.is_between_epochs)

    def _by_epochs(self, seen: int, closed: tuple[int, int], steps: float) -> float:
        """What comes with epochs comes with those to come: the rate by steps is late by half an epoch."""
        epochs, by_then = closed
        if epochs and self.steps_per_epoch and by_then <= 2 * epochs:
            return max(0.0, by_then / epochs * self._ends_to_come(steps) - max(0, seen - by_then))
        return steps * self._rate(seen)

    def _epoch_ends_to_come(self, steps: float) -> float:
        if self.steps_per_epoch:
            return max(0.0, self._ends_to_come(steps) - 1.0) if steps > 0 else 0.0
        return steps * self._rate(self.epoch_ends_seen)

    # --- state -----------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Plain JSON values. The clock of a running segment is not in them."""
        state = {name.lstrip("_"): value for name, value in asdict(self).items()}
        state.pop("clock_from")
        state["epoch_from"] = None if self._epoch_from is None else list(self._epoch_from)
        state["told_at"], state["closed"] = list(self._told_at), list(self.closed)
        state["stopping"] = self.stopping.to_state()
        for name in ("spans", "later_spans"):
            state[name] = {kind: spans.to_state() for kind, spans in getattr(self, name).items()}
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Ledger:
        values = dict(state)
        began, told = values.pop("epoch_from"), values.pop("told_at", (0, 0))
        for name in ("spans", "later_spans"):
            values[name] = {kind: Spans.from_state(spans) for kind, spans in values[name].items()}
        values["stopping"] = StoppingWatch.from_state(values["stopping"])
        samples = values.pop("epoch_from_samples")
        values["closed"] = tuple(values.get("closed", (0, 0, 0)))
        epoch_from = None if began is None else (began[0], began[1])
        return cls(
            **values, _epoch_from_samples=samples, _epoch_from=epoch_from, _told_at=(told[0], told[1])
        )


def _step_limit(event: FitStarted) -> int | None:
    """The limit that counts steps, whatever the epochs: these are counted here, as they come to be known."""
    if event.epoch is not None:
        return _positive(event.max_steps)
    by_epochs = (event.max_epochs or 0) * (event.steps_per_epoch or 0)
    return _positive(event.planned_steps) if event.planned_steps != by_epochs else None


def _positive(count: int | None) -> int | None:
    return count if count is not None and count > 0 else None


def _usable(seconds: float | None) -> float | None:
    if seconds is None or not math.isfinite(seconds) or seconds <= 0:
        return None
    return min(seconds, MAX_SECONDS)


def _seconds(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_SECONDS) if math.isfinite(seconds) else 0.0
