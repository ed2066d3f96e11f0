"""Broker time: seconds since the broker's first start, from a monotonic clock.

It is carried on over restarts from the instant of the last durable commit, so the time in
between does not count, and never goes back within a run. A wall clock that jumps moves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from selfsched_broker.core.past_forecasts import Moment

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class BrokerClock:
    """Broker time for one run of the broker.

    Args:
        carried_on_from: broker time at the last durable commit before this run, in seconds.
        monotonic: a clock of seconds that never goes back; its origin does not matter.
    """

    def __init__(self, carried_on_from: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = carried_on_from - monotonic()

    def now(self) -> float:
        """Broker time now, in seconds."""
        return self._monotonic() + self._offset


def moment_now() -> Moment:
    """This instant by the machine's own clock, to be compared with one before a restart of the broker."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return Moment(boot=boot, seconds=time.clock_gettime(time.CLOCK_BOOTTIME))
