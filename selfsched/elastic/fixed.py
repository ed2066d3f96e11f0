"""The end of a program that cannot be cut: told beforehand, then SIGTERM, then no more. Pure."""

from __future__ import annotations

from dataclasses import dataclass

WARNED_BEFORE_SECONDS = (600.0, 60.0)
TERMINATED_BEFORE_SECONDS = 15.0


@dataclass
class FixedEnding:
    """What to do, and when, before a fixed program's devices are gone at `leave_by`."""

    leave_by: float
    """CLOCK_BOOTTIME seconds."""
    _warned: int = 0
    _terminated: bool = False

    def due(self, now: float) -> tuple[str | None, bool]:
        """(a warning to say now, whether to send SIGTERM now); each comes once."""
        left = self.leave_by - now
        warning = None
        passed = sum(left <= before for before in WARNED_BEFORE_SECONDS)
        if passed > self._warned:
            self._warned = passed
            warning = f"the time on these devices ends in {max(0, round(left))} s; SIGTERM comes " \
                f"{TERMINATED_BEFORE_SECONDS:g} s before"
        terminate = left <= TERMINATED_BEFORE_SECONDS and not self._terminated
        self._terminated = self._terminated or terminate
        return warning, terminate
