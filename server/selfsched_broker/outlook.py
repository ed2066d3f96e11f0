"""The look-ahead of all jobs, made beside the broker's work and kept until the next.

To play all jobs to their ends takes some hundredths of a second: too long for a report to wait, or for
the lock. So a thread takes the scene under the lock, plays it outside, and leaves what came out where
instructions and views find it. It does so soon after something has changed, and now and then while
jobs live, for their own forecasts change, too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from selfsched_broker.core.ahead.scene import Scene
from selfsched_broker.core.look_ahead import Outlook

log = logging.getLogger(__name__)
PAUSE_SECONDS = 2.0
"""Between two plays at least, and at least thirty times as long as the last one took."""
REFRESH_SECONDS = 15.0
"""Between two plays at most, while jobs live."""
_PAUSE_FACTOR = 30.0


class OutlookKeeper:
    """Plays again and again, in a thread of its own.

    Args:
        take: the scene as it is now; may take the broker's lock.
        keep: called with what came out.
        monotonic: a clock of seconds that never goes back.
    """

    def __init__(
        self,
        take: Callable[[], Scene],
        keep: Callable[[Outlook], None],
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._take = take
        self._keep = keep
        self._monotonic = monotonic
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="broker-outlook", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Something has changed; returns at once."""
        self._changed.set()

    def close(self) -> None:
        """Stop after the play under way."""
        self._stopping.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        has_jobs = False
        while not self._stopping.is_set():
            self._changed.wait(REFRESH_SECONDS if has_jobs else None)
            self._changed.clear()
            if self._stopping.is_set():
                return
            began = self._monotonic()
            try:
                scene = self._take()
                has_jobs = bool(scene.players)
                self._keep(Outlook.of_scene(scene))
            except Exception:
                # The thread's outermost loop: without an outlook jobs' own forecasts stand.
                log.exception("the look-ahead could not be made")
            self._stopping.wait(max(PAUSE_SECONDS, _PAUSE_FACTOR * (self._monotonic() - began)))
