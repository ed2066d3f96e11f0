"""Payments that are charged: what a win costs the others is taken back in device-seconds.

An auction tells for each winner c, what its win leaves the others (`auction`). With v its value on what
it won and v0 its value on what it keeps anyway, it is owed the part

    f = max(0, (c v - v0) / (v - v0))

of the term and no more: then it has had c v (Themis's hidden payment, in time). v and v0 are the broker's:
from the bid as metered by the steps seen, so that no claim alone can make them.

Where payments are charged (`FairnessOptions.payments`) the other 1 - f of the term, times the devices won,
becomes a **debt** of the account. A debt is collected from the end of a term: at the end of what it is
owed, a job leaves all its devices, if its last move is repaid and while a job of another account that
could use them waits with nothing. Until the tick it asks for devices only if some are free and nobody else
waits. What is not collected stays, is collected first at the account's next win, and never grows beyond a
term of all devices. Where payments are only recorded no debt comes of them.
"""

from __future__ import annotations

import math
from dataclasses import replace

from selfsched.protocol import JobState, Resume
from selfsched_broker.core.books import Job
from selfsched_broker.core.draft import Draft
from selfsched_broker.core.grants import is_repaid, order_leave
from selfsched_broker.core.market import Contender, FairnessOptions
from selfsched_broker.core.markets import allowed_counts, contends, free_devices

CHARGED_FROM = math.inf
"""Devices from which `auto` charges (docs/decisions/0018)."""


def charges(options: FairnessOptions, devices: int) -> bool:
    """Whether payments are charged on so many devices."""
    return options.payments == "charge" or (options.payments == "auto" and devices >= CHARGED_FROM)


def bill(draft: Draft, contender: Contender, devices: int, part: float) -> None:
    """Put a win on its account's debt, and plan when the job pays.

    Args:
        draft: the decision.
        contender: who won.
        devices: what it shall hold, all in all.
        part: of the term, that it is owed.
    """
    books = draft.books
    job, account = books.jobs[contender.job], draft.account(contender.account)
    left = max(0.0, books.agenda.next_tick_at - draft.now)
    due = (1 - part) * left * max(0, devices - len(contender.kept))
    most = books.healthy_devices * draft.ctx.fairness.term_seconds
    debt = max(account.debt_device_seconds, min(account.debt_device_seconds + due, most))
    draft.put(replace(account, debt_device_seconds=debt))
    pays = debt > 0 and devices > 0 and job.resume is not Resume.NEVER
    starts = books.agenda.next_tick_at - min(debt / max(devices, 1), left)
    draft.put(replace(books.jobs[job.id], pays_from=starts if pays else None))
    if pays and due > 0:
        words = f"its win costs others: of this term it is owed {part:.0%}; its account owes {debt:.0f}"
        draft.say(job.id, f"{words} device-seconds, collected while others wait")


def collect(draft: Draft) -> None:
    """Take devices back from those who have had what they are owed, for those who wait."""
    if not charges(draft.ctx.fairness, draft.books.healthy_devices):
        return
    jobs = list(draft.books.live_jobs())
    waiting = [job for job in jobs if _waits(draft, job)]
    if not waiting and any(job.barred_until is not None for job in jobs) and free_devices(draft):
        _lift_bars(draft, jobs)
    tick = draft.books.agenda.next_tick_at
    for job in jobs:
        if job.pays_from is not None and job.pays_from <= draft.now < tick and is_repaid(draft, job):
            _collect_from(draft, job, waiting, tick)


def _waits(draft: Draft, job: Job) -> bool:
    nothing = job.state is JobState.WAITING and not draft.books.claims_of(job.id)
    return nothing and contends(draft, job)


def _lift_bars(draft: Draft, jobs: list[Job]) -> None:
    for job in jobs:
        if job.barred_until is not None:
            draft.put(replace(draft.books.jobs[job.id], barred_until=None))
            draft.wake()


def _collect_from(draft: Draft, job: Job, waiting: list[Job], tick: float) -> None:
    account = draft.account(job.account)
    held = [holding for holding in draft.books.active_of(job.id) if holding.state == "held"]
    known = len(draft.books.devices)
    fitting = [w for w in waiting if w.account != job.account and allowed_counts(w, known)[0] <= len(held)]
    is_whole = len(held) == len(draft.books.active_of(job.id)) and not draft.books.claims_of(job.id)
    if not held or not is_whole or not fitting or account.debt_device_seconds <= 0:
        return
    waiting.remove(fitting[0])
    collected = min(account.debt_device_seconds, len(held) * (tick - draft.now))
    draft.put(replace(account, debt_device_seconds=account.debt_device_seconds - collected))
    draft.put(replace(draft.books.jobs[job.id], pays_from=None, barred_until=tick))
    reason = f"it has had what its win was worth: {collected:.0f} device-seconds go to those who wait"
    order_leave(draft, held, reason)
