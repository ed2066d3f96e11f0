"""Which stored rows a broker reads back: what lives, and the newest of what has ended.

Rows are never deleted by a commit; the history stays in the store for those who ask it with SQL.
"""

from __future__ import annotations

from collections.abc import Iterable

from selfsched_broker.core.books import Answer, Auction, Audit, Claim, Holding, Job, Lease, Record
from selfsched_broker.core.leases import LeaseOptions


def within_bounds(rows: Iterable[Record], bounds: LeaseOptions, clock: float) -> list[Record]:
    """The rows within the bounds of `LeaseOptions.kept_*`, in their order.

    Args:
        rows: all of them.
        bounds: how much is kept.
        clock: broker time at the last commit.
    """
    everything = list(rows)
    leases = {row.id: row for row in everything if isinstance(row, Lease)}
    in_use = {lease.job for lease in leases.values() if lease.ended_at is None}
    jobs = [row for row in everything if isinstance(row, Job)]
    ended = sorted((j for j in jobs if not j.live and j.id not in in_use), key=lambda j: j.ended_at or 0.0)
    dropped = {job.id for job in ended[: max(0, len(ended) - bounds.kept_ended_jobs)]}
    first_auction = _first([r.number for r in everything if isinstance(r, Auction)], bounds.kept_auctions)
    first_audit = _first([r.number for r in everything if isinstance(r, Audit)], bounds.kept_audits)

    def is_kept(row: Record) -> bool:
        match row:
            case Job():
                return row.id not in dropped
            case Lease() | Claim():
                return row.job not in dropped
            case Holding():
                return leases[row.lease].job not in dropped
            case Auction():
                return row.number >= first_auction
            case Audit():
                return row.number >= first_audit
            case Answer():
                return clock - row.at <= bounds.kept_answer_seconds
        return True

    return [row for row in everything if is_kept(row)]


def _first(numbers: list[int], kept: int) -> int:
    return sorted(numbers)[-kept] if len(numbers) > kept > 0 else 0
