"""The share of a job over its life, integrated in constant time per event.

At any moment a job's share is D * (w / W) * (p / P): D healthy devices, w its account's weight,
W the weights of the accounts with a job that is not paused, p its priority, P the priorities of
such jobs of its account (`fairness.current_shares`). Everybody's share changes when anybody
comes or goes, so it is integrated on three levels, and only the one that changed is written:

    broker.share_sum       integral of D / W
    account.share_sum      integral of w / P against the broker's sum
    job.share_integral     p * (account's sum since the job's mark)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from selfsched_broker.core.books import Account, Books, Job

if TYPE_CHECKING:
    from selfsched_broker.core.draft import Draft


def share_over_life(books: Books, job: Job, now: float) -> float:
    """A live job's share, averaged over its life without pauses, in devices."""
    age = age_seconds(job, now)
    if age <= 0.0:
        return share_now(books, job)
    return job_integral(books, job, now) / age


def age_seconds(job: Job, now: float) -> float:
    """Seconds since registration without the owner's pauses."""
    until = job.ended_at if job.ended_at is not None else now
    if job.paused_at is not None:
        until = min(until, job.paused_at)
    return max(0.0, until - job.registered_at - job.paused_seconds)


def share_now(books: Books, job: Job) -> float:
    """A job's share at this moment, in devices; 0 while it is paused."""
    if not job.counts:
        return 0.0
    account = books.accounts[job.account]
    rate = _broker_rate(books) * _account_rate(books, account)
    return rate * job.priority


def job_integral(books: Books, job: Job, now: float) -> float:
    """Integral of a job's share from its registration to now, devices x seconds."""
    if not job.counts:
        return job.share_integral
    since = _account_sum(books, books.accounts[job.account], now) - job.share_mark
    return job.share_integral + job.priority * since


def settle_shares(draft: Draft) -> None:
    """Count the time up to now under the composition before this decision, where it changes one."""
    before, books, now = draft.before, draft.books, draft.now
    jobs = [job for job in draft.changed_jobs() if _weighs_otherwise(before.jobs.get(job.id), job)]
    accounts = {job.account for job in jobs}
    accounts |= {a.name for a in draft.changed_accounts() if _weight(before, a.name) != a.weight}
    if not accounts and before.healthy_devices == books.healthy_devices:
        return
    total = broker_sum(before, now)
    draft.put(replace(books.broker, share_sum=total, share_at=now))
    for name in sorted(accounts):
        account = books.accounts[name]
        counted = _account_sum(before, before.accounts[name], now) if name in before.accounts else 0.0
        draft.put(replace(account, share_sum=counted, share_mark=total))
    for job in jobs:
        old = before.jobs.get(job.id)
        integral = job_integral(before, old, now) if old is not None else 0.0
        mark = books.accounts[job.account].share_sum
        draft.put(replace(books.jobs[job.id], share_integral=integral, share_mark=mark))


def broker_sum(books: Books, now: float) -> float:
    """The broker's sum up to now."""
    return books.broker.share_sum + _broker_rate(books) * max(0.0, now - books.broker.share_at)


def _broker_rate(books: Books) -> float:
    return books.healthy_devices / books.active_weight if books.active_weight > 0 else 0.0


def _account_sum(books: Books, account: Account, now: float) -> float:
    since = broker_sum(books, now) - account.share_mark
    return account.share_sum + _account_rate(books, account) * since


def _account_rate(books: Books, account: Account) -> float:
    priorities = books.counting_priorities(account.name)
    return account.weight / priorities if priorities > 0 else 0.0


def _weight(books: Books, name: str) -> float | None:
    account = books.accounts.get(name)
    return account.weight if account else None


def _weighs_otherwise(old: Job | None, new: Job) -> bool:
    if old is None:
        return True
    return (old.counts, old.priority) != (new.counts, new.priority)
