"""What the books in memory let go of, so that they do not grow for ever.

The newest ended jobs, auctions and audits stay in memory with all that belongs to them, and
answers for a day. Older ones are dropped from memory; a store keeps their rows, and reads back
at its next start only what is still within the bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from selfsched_broker.core.books import (
    Answer,
    Auction,
    Audit,
    Claim,
    Forget,
    Holding,
    Job,
    JobPulse,
    Lease,
    LeasePulse,
)
from selfsched_broker.core.draft import Draft

T = TypeVar("T")


def forget_old(draft: Draft) -> None:
    """Drop from memory what is beyond its bound."""
    books, options = draft.books, draft.options
    if len(books.jobs) > options.kept_ended_jobs:
        ended = [job for job in books.jobs.values() if not job.live]
        for job in _beyond(ended, options.kept_ended_jobs, lambda job: job.ended_at or 0.0):
            leases = books.all_leases_of(job.id)
            if all(lease.ended_at is not None for lease in leases):
                _forget_job(draft, job, leases)
    for auction in _beyond(books.auctions.values(), options.kept_auctions, lambda found: found.number):
        draft.put(Forget(kind=Auction, forgotten=auction.key))
    for audit in _beyond(books.audits.values(), options.kept_audits, lambda found: found.number):
        draft.put(Forget(kind=Audit, forgotten=audit.key))
    for answer in list(books.answers.values()):
        if draft.now - answer.at > options.kept_answer_seconds:
            draft.put(Forget(kind=Answer, forgotten=answer.key))


def _forget_job(draft: Draft, job: Job, leases: list[Lease]) -> None:
    for lease in leases:
        for holding in draft.books.all_holdings_of(lease.id):
            draft.put(Forget(kind=Holding, forgotten=holding.key))
        draft.put(Forget(kind=Lease, forgotten=lease.id), Forget(kind=LeasePulse, forgotten=lease.id))
    for claim in [claim for claim in draft.books.claims.values() if claim.job == job.id]:
        draft.put(Forget(kind=Claim, forgotten=claim.key))
    draft.put(Forget(kind=Job, forgotten=job.id), Forget(kind=JobPulse, forgotten=job.id))


def _beyond(records: Collection[T], kept: int, age: Callable[[T], float]) -> list[T]:
    """The oldest records beyond the number that is kept; empty in the common case, without sorting."""
    surplus = len(records) - kept
    return sorted(records, key=age)[:surplus] if surplus > 0 else []
