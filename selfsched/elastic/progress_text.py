"""One line on where a run stands, over all its segments: the text of every bar. Pure."""

from __future__ import annotations

from typing import Any

from selfsched.core.events import FitStarted, Progressed
from selfsched.elastic import channel

_BAR_CELLS = 20
_MOST_METRICS = 3


class ProgressText:
    """Follows a run's messages and words them."""

    def __init__(self) -> None:
        self.fit = 1
        self.step = 0
        self.epoch = 0
        self.planned_steps: int | None = None
        self.devices = 0
        self.metrics: dict[str, float] = {}
        self.status = ""
        self.is_waiting = False
        self.is_known = False
        """Whether a fit has begun, so that there is something to show."""

    def take(self, message: Any) -> None:
        """One message of `channel`."""
        if isinstance(message, channel.EventSeen):
            self._take_event(message.event)
        elif isinstance(message, channel.SegmentBegan):
            self.devices = len(message.devices)
        elif isinstance(message, channel.SegmentEnded):
            self.devices = 0
        elif isinstance(message, channel.StatusSeen):
            self.status, self.is_waiting = message.text, message.waiting

    def _take_event(self, event: Any) -> None:
        if isinstance(event, FitStarted):
            self.is_known = True
            if event.fit != self.fit:
                self.metrics = {}
            self.fit, self.step, self.planned_steps = event.fit, event.step, event.planned_steps
        elif isinstance(event, Progressed):
            self.fit, self.step, self.epoch = event.fit, event.step, event.epoch
            self.metrics.update(event.metrics)

    def line(self) -> str:
        """Such as `[#####.....] 50 %  step 45/90  2 devices  loss 0.41  finish 14:05 ±2 min`."""
        parts = [self._bar(), self.position()]
        if self.devices:
            parts.append(f"{self.devices} device{'s' if self.devices > 1 else ''}")
        elif self.is_waiting:
            parts.append("waiting")
        parts += [f"{name} {value:.4g}" for name, value in self.shown_metrics(_MOST_METRICS)]
        parts.append(self.status)
        return "  ".join(part for part in parts if part)

    def _bar(self) -> str:
        if not self.planned_steps:
            return ""
        done = min(1.0, self.step / self.planned_steps)
        filled = int(done * _BAR_CELLS)
        return f"[{'#' * filled}{'.' * (_BAR_CELLS - filled)}] {done:.0%}"

    def position(self) -> str:
        """Such as `step 45/90`, with the fit where it is not the first; empty before it begins."""
        if not self.is_known:
            return ""
        total = f"/{self.planned_steps}" if self.planned_steps else ""
        fit = f"fit {self.fit}, " if self.fit > 1 else ""
        return f"{fit}step {self.step}{total}"

    def shown_metrics(self, most: int) -> list[tuple[str, float]]:
        """At most so many of the newest logged values, losses first; none of our own."""
        names = [name for name in self.metrics if "loss" in name.lower()]
        names += [name for name in self.metrics if name not in names and not name.startswith("selfsched/")]
        return [(name, self.metrics[name]) for name in names[:most]]
