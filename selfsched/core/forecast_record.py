"""Forecasts that a job made, and what their scores make of the next ones.

Each forecast is kept with its inputs, held against what came when the fit ends, and teaches the
width of later intervals (`calibration`); those of the running fit do so before its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from selfsched.core.calibration import Calibration, place, surprise
from selfsched.core.forecast import ForecastLog, LoggedForecast, Remaining

FORECAST_EVERY_SECONDS = 1.0
"""Forecasts closer together than this are one entry of the log."""


@dataclass
class ForecastRecord:
    """What was forecast, over all fits of a job."""

    log: ForecastLog = field(default_factory=ForecastLog)
    calibration: Calibration = field(default_factory=Calibration)

    def widths(
        self, left: Remaining | None, *, fit: int, segment: int, now: float
    ) -> tuple[float, float]:
        """What the scores of past fits, and this fit's own forecasts, make of an interval (log).

        Args:
            left: of width 1; None: over changes of the devices, where this fit's own forecasts,
                made as if nothing changed, say nothing.
            fit: the running one.
            segment: ordinal of the running one.
            now: on the clock of the log.
        """
        if left is None:
            return self.calibration.width, 1.0
        mine = [entry for entry in self.log.entries if (entry.fit, entry.segment) == (fit, segment)]
        return self.calibration.width, surprise(mine, left, now)

    def keep(self, entry: LoggedForecast) -> None:
        """Note a forecast, unless the last one is as good as new."""
        last = self.log.entries[-1] if self.log.entries else None
        if last is None or not 0 <= entry.made_at - last.made_at < FORECAST_EVERY_SECONDS:
            self.log.add(entry)

    def fit_finished(self, *, fit: int, segment: int, now: float) -> None:
        """A fit is over: its forecasts teach the width of those to come."""
        mine = [entry for entry in self.log.entries if entry.fit == fit]
        if not mine:
            return
        began = mine[0].made_at
        whole = max(now - began, 1e-9)
        spoken = []
        for entry in mine:
            if entry.segment != segment or entry.made_at >= now:
                continue
            z = place(entry.p10_seconds, entry.p50_seconds, entry.p90_seconds, now - entry.made_at)
            if z is not None:
                spoken.append(((entry.made_at - began) / whole, z * entry.width))
        self.calibration.ended(spoken)

    def to_state(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"log": self.log.to_state(), "calibration": self.calibration.to_state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ForecastRecord:
        """What `to_state` gave."""
        log, calibration = state["log"], state["calibration"]
        return cls(log=ForecastLog.from_state(log), calibration=Calibration.from_state(calibration))
