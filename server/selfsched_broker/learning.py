"""The broker's thread that stores what jobs said, and learns from it when there is something new.

Reports are answered without the disk (decision 0009): what they say of steps and forecasts waits
in memory, and is stored every few seconds in one commit; of placements that no lease ever gave the
job it is not taken. The fit over all jobs runs in a process
of its own (`fitting`), at most once in a while and only when a job said something new; a fit that
fails is logged and the last good priors stay.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from selfsched.protocol import ProblemCode, StepStatistics
from selfsched_broker.core import evidence, lease_history, lessons
from selfsched_broker.core.books import Books, Erase, JobEvidence
from selfsched_broker.core.draft import Context, Decision, Draft
from selfsched_broker.core.leases import Refusal
from selfsched_broker.core.lessons import Lesson
from selfsched_broker.fitting import FitFailed, FitStopped, fit_apart
from selfsched_broker.forecasts import ForecastLog
from selfsched_broker.service import Service

log = logging.getLogger(__name__)
LEARN_SECONDS = 60.0
_STORE_SECONDS = 3.0
_JOBS_AT_ONCE = 100
"""Stored in one commit: heartbeats wait for it."""
_FIT_SHARE = 0.05
"""Part of the time that fits may take on one core."""
_LONGEST_PAUSE_SECONDS = 3600.0
Fit = Callable[[Sequence[JobEvidence], threading.Event], tuple[Lesson, ...]]
"""Lessons from evidence, oldest first; FitFailed, or FitStopped when the event is set."""


class Learner:
    """Stores and learns. `hear` may be called from any thread.

    Args:
        service: the broker behind it.
        forecasts: which are stored along.
        every_seconds: fits are no closer together than this.
        fit: how it learns.
        monotonic: a clock of seconds that never goes back.
    """

    def __init__(
        self,
        service: Service,
        forecasts: ForecastLog,
        *,
        every_seconds: float = LEARN_SECONDS,
        fit: Fit = fit_apart,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._forecasts = forecasts
        self._every_seconds = every_seconds
        self._fit = fit
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._said: dict[tuple[str, str], Sequence[StepStatistics]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen_at = float("-inf")
        """Broker time of the evidence that the last fit saw."""
        self._next_fit_at = float("-inf")
        self._failures = 0

    # --- life ------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to store and to learn."""
        self._thread = threading.Thread(target=self._work, name="broker-learner", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Store what waits and end, a fit that is under way included."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            is_over = self._stop.wait(min(_STORE_SECONDS, self._every_seconds))
            try:
                self.store()
                if not is_over:
                    self.learn()
            except Exception:
                # The thread's outermost loop: a mistake of ours must not end the learning for good.
                log.exception("what jobs said could not be learned from; it is tried again")
            if is_over:
                return

    # --- storing ---------------------------------------------------------------------

    def hear(self, account: str, name: str, statistics: Sequence[StepStatistics]) -> None:
        """Take in what a job's report says of its steps."""
        with self._lock:
            self._said[account, name] = statistics

    def store(self) -> None:
        """Store what waits, if the store can be written."""
        while self._store_some():
            pass

    def _store_some(self) -> bool:
        """Whether something was stored."""
        with self._lock:
            said = dict(islice(self._said.items(), _JOBS_AT_ONCE))
        if not said and not self._forecasts.waiting():
            return False
        try:
            self._service.perform(self._decide, said)
        except Refusal as refusal:
            if refusal.code is not ProblemCode.UNAVAILABLE:
                raise
            log.debug("what jobs said is stored later: %s", refusal.message)
            return False
        self._service.look(lambda books, _: self._forecasts.settle(books))
        with self._lock:
            for key, statistics in said.items():
                if self._said.get(key) is statistics:
                    del self._said[key]
        return True

    def _decide(
        self, books: Books, ctx: Context, said: dict[tuple[str, str], Sequence[StepStatistics]]
    ) -> Decision[None]:
        draft = Draft(books, ctx)
        for (account, name), statistics in _leased(books, said).items():
            known = books.evidence.get(f"{account}/{name}")
            new = evidence.heard(known, account, name, statistics, ctx.now)
            if new is not None and account in books.accounts:
                draft.put(new)
        draft.put(*self._forecasts.beyond_bounds(books, ctx.now))
        draft.put(*self._forecasts.waiting())
        for key in evidence.beyond_bounds(dict(draft.books.evidence)):
            draft.put(Erase(kind=JobEvidence, forgotten=key))
        return draft.finish(lambda _: None)

    # --- learning --------------------------------------------------------------------

    def learn(self) -> bool:
        """Fit if there is something new and the last fit is long enough ago; whether it did."""
        if self._monotonic() < self._next_fit_at:
            return False
        at, seen = self._service.look(self._evidence)
        if not seen:
            return False
        begun = self._monotonic()
        try:
            found = self._fit(seen, self._stop)
        except FitStopped:
            return False
        except FitFailed as error:
            self._failures += 1
            self._wait(self._monotonic() - begun)
            log.warning("the priors stay as they are: %s", error)
            return False
        self._failures = 0
        self._wait(self._monotonic() - begun)
        self._service.perform(_write, found, at)
        self._seen_at = at
        return True

    def _wait(self, took_seconds: float) -> None:
        pause = max(self._every_seconds, took_seconds / _FIT_SHARE) * 2.0 ** min(self._failures, 10)
        self._next_fit_at = self._monotonic() + min(pause, max(_LONGEST_PAUSE_SECONDS, self._every_seconds))

    def _evidence(self, books: Books, ctx: Context) -> tuple[float, tuple[JobEvidence, ...]]:
        """(now, what a fit is to see); nothing where the last one has seen it all."""
        seen = evidence.for_a_fit(books.evidence.values())
        newest = max((job.fresh_at for job in seen), default=float("-inf"))
        learned_at = max((prior.at for prior in books.priors.values()), default=float("-inf"))
        return ctx.now, seen if newest > max(self._seen_at, learned_at) else ()


def _leased(
    books: Books, said: Mapping[tuple[str, str], Sequence[StepStatistics]]
) -> dict[tuple[str, str], Sequence[StepStatistics]]:
    """What jobs say of placements that the broker leased to them."""
    kept = dict(said)
    unproven = {
        (account, name): places
        for (account, name), statistics in said.items()
        if (places := evidence.unproven(books.evidence.get(f"{account}/{name}"), statistics))
    }
    for key, jobs in lease_history.jobs_named(books, unproven).items() if unproven else ():
        refused = unproven[key] - lease_history.places_held(books, jobs)
        if refused:
            kept[key] = evidence.without_places(said[key], refused)
            log.debug("%s/%s speaks of %d placements it was never leased", *key, len(refused))
    return kept


def _write(books: Books, ctx: Context, found: Sequence[Lesson], at: float) -> Decision[None]:
    draft = Draft(books, ctx)
    draft.put(*lessons.changes_of(books, found, at))
    return draft.finish(lambda _: None)
