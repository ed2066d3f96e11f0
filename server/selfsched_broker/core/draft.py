"""A decision in the making: books that show its changes, and what comes of them in the end.

Every entry of the arbiter opens a `Draft` on the books, lets the subjects (`grants`,
`auctions`, `due`, ...) put new values of records into it, and finishes it. The books stay as
they are: an exception on the way changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from selfsched_broker.core.books import Account, Agenda, Audit, Books, Broker, Change, Forget, Job
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.core.market import FairnessOptions, Policy
from selfsched_broker.core.shares import settle_shares

if TYPE_CHECKING:
    from selfsched_broker.core.look_ahead import Outlook

A = TypeVar("A")
_CLOCK_SECONDS = 30.0
_KEPT_REASONS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What a decision needs besides the books."""

    now: float
    """Broker time; never less than at the decision before."""
    options: LeaseOptions
    policy: Policy
    fairness: FairnessOptions
    rng: np.random.Generator
    """Only policies draw from it."""
    outlook: Outlook | None = None
    """What was foreseen of the jobs; None: nothing yet. Nothing is decided by it."""
    survives_policies: bool = False
    """A policy that raises moves nobody, and the rest of a decision stands. For a broker, which must
    let leases expire whatever happens; a simulation must not go on with a wrong answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision(Generic[A]):
    """What an entry of the arbiter returns: commit `changes`, apply them, then answer."""

    changes: tuple[Change, ...]
    answer: A
    touched: frozenset[str]
    """Jobs whose instructions changed: their long polls are answered now."""
    failures: tuple[Exception, ...] = ()
    """What a policy raised and was not said before: for the log."""
    settlements: tuple[Settlement, ...] = ()
    """Payments that are worth computing exactly, when there is time."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """Exact payments of one auction, off the path of its decision (`arbiter.settle_payments`)."""

    auction: int
    payments: Callable[[], Iterator[tuple[str, float]]]
    """(job, c) of one winner after the other. Pure: any thread may do it."""


class Draft:
    """Changes on top of books. Used by one decision, then thrown away."""

    def __init__(self, books: Books, ctx: Context) -> None:
        self.before = books
        self.books = books.overlay()
        self.ctx = ctx
        self.now = ctx.now
        self.options = ctx.options
        self._changes: dict[tuple[type, str], Change] = {}
        self._touched: set[str] = set()
        self.failures: list[Exception] = []
        self.settlements: list[Settlement] = []

    def put(self, *records: Change) -> None:
        """Set new values of records."""
        for record in records:
            self._changes[type(record), record.key] = record
        self.books.apply(records)

    def touch(self, job: str) -> None:
        """The instructions of a job changed by more than their clocks."""
        self._touched.add(job)

    def say(self, job_id: str, reason: str) -> None:
        """Tell a job why; the same is not said twice in a row."""
        job = self.books.jobs[job_id]
        if not job.reasons or job.reasons[-1] != reason:
            reasons = (*job.reasons, reason)[-_KEPT_REASONS:]
            self.put(replace(job, reasons=reasons, reasons_at=(*job.reasons_at, self.now)[-_KEPT_REASONS:]))
            self.touch(job_id)

    def audit(self, action: str, subject: str, detail: str = "", *, account: str | None = None) -> None:
        """Keep who did what."""
        broker = self.books.broker
        self.put(
            replace(broker, next_audit=broker.next_audit + 1),
            Audit(
                number=broker.next_audit,
                at=self.now,
                account=account,
                action=action,
                subject=subject,
                detail=detail,
            ),
        )

    def account(self, name: str) -> Account:
        """An account, as it will be made if it is not there."""
        return self.books.accounts.get(name) or Account(name=name, share_mark=self.books.broker.share_sum)

    def wake(self) -> None:
        """Something changed that an auction or a grant may follow from: `advance` is due now."""
        if not self.books.agenda.wake:
            self.put(replace(self.books.agenda, wake=True))

    def finish(self, answer: Callable[[Books], A]) -> Decision[A]:
        """Settle the shares, count the versions, and return what has really changed.

        Args:
            answer: builds the answer from the books as they will be.
        """
        settle_shares(self)
        self._count_versions()
        broker = self.books.broker
        lag = self.now - broker.clock
        if (self._is_durable() and lag > 0) or lag >= _CLOCK_SECONDS:
            self.put(replace(broker, clock=self.now))
        changes = tuple(c for c in self._changes.values() if self._is_news(c))
        return Decision(
            changes=changes,
            answer=answer(self.books),
            touched=frozenset(self._touched),
            failures=tuple(self.failures),
            settlements=tuple(self.settlements),
        )

    def _count_versions(self) -> None:
        for job_id in sorted(self._touched):
            job = self.books.jobs.get(job_id)
            if job is not None:
                self.put(replace(job, instructions_version=job.instructions_version + 1))

    def changed_jobs(self) -> list[Job]:
        """New values of jobs so far."""
        return [change for change in self._changes.values() if isinstance(change, Job)]

    def changed_accounts(self) -> list[Account]:
        """New values of accounts so far."""
        return [change for change in self._changes.values() if isinstance(change, Account)]

    def _is_durable(self) -> bool:
        return any(change.durable and self._is_news(change) for change in self._changes.values())

    def _is_news(self, change: Change) -> bool:
        if isinstance(change, Broker):
            return change != self.before.broker
        if isinstance(change, Agenda):
            return change != self.before.agenda
        if isinstance(change, Forget):
            return True
        return self.before.record(type(change), change.key) != change
