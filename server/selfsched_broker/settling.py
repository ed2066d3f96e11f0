"""Exact payments of auctions, computed beside the broker's work and recorded when they are there.

An auction of some dozen devices tells its payments from the prices at once; to solve it again
without each winner takes a second, which nobody should wait for. A thread does it, one auction
after the other. While many come quickly only the newest few are settled: the others keep the
payments that they were recorded with. Nothing else follows from a payment that is recorded.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping

from selfsched_broker.core.draft import Settlement
from selfsched_broker.core.leases import Refusal

log = logging.getLogger(__name__)
_MOST_WAITING = 4


class Settler:
    """Computes settlements in a thread of its own, begun with the first.

    Args:
        record: takes (auction number, c by job); may raise a `Refusal`: then they are lost.
    """

    def __init__(self, record: Callable[[int, Mapping[str, float]], None]) -> None:
        self._record = record
        self._waiting: deque[Settlement] = deque(maxlen=_MOST_WAITING)
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def take(self, settlement: Settlement) -> None:
        """Have one settled; returns at once."""
        with self._changed:
            if self._stopping:
                return
            self._waiting.append(settlement)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="broker-payments", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Stop after the winner that is being computed."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _next(self) -> Settlement | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._waiting)
            return None if self._stopping else self._waiting.popleft()

    def _work(self) -> None:
        while (settlement := self._next()) is not None:
            try:
                self._settle(settlement)
            except Refusal as refusal:
                log.warning("payments of auction %d stay as recorded: %s", settlement.auction, refusal)
            except Exception:
                # The thread's outermost loop: the next auction is another question.
                log.exception("payments of auction %d could not be computed exactly", settlement.auction)

    def _settle(self, settlement: Settlement) -> None:
        payments = {}
        for job, payment in settlement.payments():
            if self._stopping:
                return
            payments[job] = payment
        self._record(settlement.auction, payments)
