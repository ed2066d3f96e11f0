"""The moves of a lease: grant, order to leave, loss, proof of emptiness, claim.

Each function puts into the draft everything that belongs to one move, so that the books are
whole after it: the holding, its lease, its job's state, the account's use, the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from selfsched.protocol import JobState, Resume
from selfsched_broker.core.books import Account, Books, Claim, Holding, Job, Lease, LeasePulse
from selfsched_broker.core.draft import Draft
from selfsched_broker.core.leases import (
    CLAIM_TABLE,
    HOLDING_TABLE,
    JOB_TABLE,
    ClaimEvent,
    HoldingEvent,
    IllegalEvent,
    JobEvent,
    LeaseOptions,
    step,
)
from selfsched_broker.core.market import repay_factor
from selfsched_broker.core.shares import share_over_life

LossReason = Literal["expired", "overdue", "forced", "resource_gone"]
_WITH_DEVICES = (JobState.STARTING, JobState.RUNNING, JobState.YIELDING)


def is_free(books: Books, device_id: str, now: float, options: LeaseOptions) -> bool:
    """Whether a device may be granted now: nobody's, healthy, and its node says it is empty."""
    device, pulse = books.devices.get(device_id), books.pulses.get(device_id)
    if device is None or pulse is None or device.drained or pulse.state != "empty":
        return False
    if books.holding_of(device_id) is not None:
        return False
    return device.sick_at is None or now - pulse.since >= options.sick_recovery_seconds


def sits_on(books: Books, device_id: str, job: Job) -> bool:
    """Whether a device is nobody's, and nothing but a job's own processes is on it.

    So it is for a plain program on a GPU: its CUDA context is there before it can ask. Its
    processes are the one it named and those of the same session begun later (DDP's ranks).
    """
    device, pulse, process = books.devices.get(device_id), books.pulses.get(device_id), job.process
    if device is None or pulse is None or process is None or process.node != device.node:
        return False
    if device.drained or device.sick_at is not None or pulse.state != "occupied" or not pulse.processes:
        return False
    return books.holding_of(device_id) is None and all(
        (found.pid, found.started) == (process.pid, process.started)
        or (found.session == process.session > 0 and found.started >= process.started)
        for found in pulse.processes
    )


def change_job(draft: Draft, job_id: str, event: JobEvent) -> Job:
    """Let an event happen to a job; returns its new value."""
    job = draft.books.jobs[job_id]
    state = step(JOB_TABLE, job.state, event)
    if state is not job.state:
        job = replace(job, state=state)
        draft.put(job)
        draft.touch(job_id)
    return job


def grant(
    draft: Draft, job_id: str, devices: Sequence[str], *, term_ends_at: float, visit: bool, reason: str
) -> Lease:
    """Give free devices, or those that the job sits on already, to it under a new fence.

    Raises:
        IllegalEvent: a device is not free (S1, S4), or the job may not hold devices now.
    """
    books, now = draft.books, draft.now
    taken = [
        device
        for device in devices
        if not is_free(books, device, now, draft.options) and not sits_on(books, device, books.jobs[job_id])
    ]
    if taken or not devices:
        raise IllegalEvent(f"cannot grant {taken or 'nothing'} to {job_id}: not free")
    broker = books.broker
    lease = Lease(
        id=f"lease-{broker.next_fence}",
        job=job_id,
        fence=broker.next_fence,
        granted_at=now,
        term_ends_at=term_ends_at,
        visit=visit,
    )
    change_job(draft, job_id, JobEvent.GRANTED)
    draft.put(replace(broker, next_fence=broker.next_fence + 1), lease)
    draft.put(LeasePulse(lease=lease.id, renewed_at=now))
    draft.put(*(Holding(lease=lease.id, device=d, state="held", since=now) for d in devices))
    draft.put(replace(books.jobs[job_id], waiting_since=None, passed_over=0))
    mark_moved(draft, job_id, costs=not visit)
    draft.say(job_id, reason)
    draft.touch(job_id)
    return lease


def mark_moved(draft: Draft, job_id: str, *, costs: bool = True) -> None:
    """A job's set of devices changed: it must repay the restart before it is moved again."""
    job = draft.books.jobs[job_id]
    count = sum(holding.state == "held" for holding in draft.books.active_of(job_id))
    rows = job.bid.rows if job.bid else ()
    cost = max((row.restart_seconds for row in rows if row.placement.devices == count), default=0.0)
    draft.put(
        replace(
            job,
            moved_at=draft.now if costs else None,
            move_cost_seconds=cost if costs else 0.0,
            steady_seconds=0.0,
        )
    )
    pulse = draft.books.job_pulses.get(job_id)
    if pulse is not None:
        draft.put(replace(pulse, steady_seconds=0.0))


def can_be_resized(job: Job) -> bool:
    """Whether a job can run on several device counts and be moved between them."""
    several = len(job.allowed_devices) > 1 or (not job.allowed_devices and job.min_devices < job.max_devices)
    return several and job.resume is Resume.ELASTIC


def is_repaid(draft: Draft, job: Job) -> bool:
    """Whether a job's last move has been repaid by steady steps, so that it may be moved."""
    if job.moved_at is None:
        return True
    fairness = draft.ctx.fairness
    pulse = draft.books.job_pulses.get(job.id)
    steady = pulse.steady_seconds if pulse else job.steady_seconds
    factor = repay_factor(draft.ctx.policy, fairness, resizable=can_be_resized(job))
    return steady >= max(factor * job.move_cost_seconds, fairness.repay_min_seconds)


def notice_seconds(draft: Draft, job_id: str) -> float:
    """How long a job is given to leave: what it asked for, at most the policy's maximum."""
    pulse = draft.books.job_pulses.get(job_id)
    asked = pulse.notice_seconds if pulse else 0.0
    return min(asked, draft.options.max_notice_seconds) if asked > 0 else draft.options.max_notice_seconds


def order_leave(draft: Draft, holdings: Iterable[Holding], reason: str) -> None:
    """Tell jobs to leave devices within their notice. Those already leaving are left alone."""
    for holding in [h for h in holdings if h.state == "held"]:
        job_id = draft.books.leases[holding.lease].job
        state = step(HOLDING_TABLE, holding.state, HoldingEvent.ORDERED)
        # The order takes up to one report to reach the job; its notice counts from there.
        leave_by = draft.now + notice_seconds(draft, job_id) + draft.options.report_seconds
        draft.put(replace(holding, state=state, since=draft.now, leave_by=leave_by))
        change_job(draft, job_id, JobEvent.ORDERED)
        mark_moved(draft, job_id)
        draft.say(job_id, reason)
        draft.touch(job_id)


def take_word(draft: Draft, holdings: Iterable[Holding]) -> None:
    """The job said that it has left these devices."""
    for holding in list(holdings):
        _quarantine(draft, holding, HoldingEvent.RELEASED, "released")


def lose(draft: Draft, holdings: Iterable[Holding], why: LossReason, reason: str) -> None:
    """End a job's right to devices without its word."""
    for holding in list(holdings):
        job_id = draft.books.leases[holding.lease].job
        draft.say(job_id, reason)
        _quarantine(draft, holding, HoldingEvent.LOST, why)


def _quarantine(
    draft: Draft, holding: Holding, event: HoldingEvent, why: Literal["released"] | LossReason
) -> None:
    state = step(HOLDING_TABLE, holding.state, event)
    lease = draft.books.leases[holding.lease]
    lost = event is HoldingEvent.LOST
    draft.put(
        replace(holding, state=state, since=draft.now, left_at=draft.now, leave_by=None, lost=lost)
    )
    _charge(draft, lease)
    if not any(h.active for h in draft.books.holdings_of(lease.id)):
        draft.put(replace(draft.books.leases[lease.id], end_reason=why))
    draft.touch(lease.job)
    draft.wake()
    settle_job(draft, lease.job)


def _charge(draft: Draft, lease: Lease) -> None:
    """Add the use of one device to its account; what a fixed job had beyond its share is debt."""
    job = draft.books.jobs[lease.job]
    seconds = draft.now - lease.granted_at
    account: Account = draft.account(job.account)
    used = account.used_device_seconds + seconds
    debt = account.debt_device_seconds
    if job.resume == "never":
        held = len(draft.books.active_of(job.id)) + 1
        beyond = max(0.0, held - share_over_life(draft.books, job, draft.now)) / held
        debt += beyond * seconds
    draft.put(replace(account, used_device_seconds=used, debt_device_seconds=debt))


def settle_job(draft: Draft, job_id: str) -> None:
    """Bring a job's state in line with what it holds, after something was taken or left."""
    job = draft.books.jobs[job_id]
    if job.state not in _WITH_DEVICES:
        return
    active = draft.books.active_of(job_id)
    if not active:
        empty(draft, job_id)
    elif job.state is JobState.YIELDING and not any(h.state == "yielding" for h in active):
        change_job(draft, job_id, JobEvent.SETTLED)


def empty(draft: Draft, job_id: str) -> None:
    """A job holds nothing: it waits, or is paused where it was told to."""
    job = draft.books.jobs[job_id]
    if job.order == "pause":
        job = change_job(draft, job_id, JobEvent.PARKED)
        draft.put(replace(job, paused_at=draft.now, waiting_since=None))
    else:
        if job.state is not JobState.WAITING:
            job = change_job(draft, job_id, JobEvent.EMPTIED)
        draft.put(replace(job, waiting_since=draft.now))
    last = tuple(h.device for h in _last_holdings(draft.books, job_id))
    draft.put(replace(draft.books.jobs[job_id], last_devices=last))
    draft.wake()


def _last_holdings(books: Books, job_id: str) -> list[Holding]:
    """Holdings of the job's newest use: all that were left no earlier than its last lease began."""
    leases = books.all_leases_of(job_id)
    if not leases:
        return []
    began = leases[-1].granted_at
    found = (h for lease in leases for h in books.all_holdings_of(lease.id))
    return sorted((h for h in found if (h.left_at or 0.0) >= began), key=lambda h: h.device)


def prove_empty(draft: Draft, holding: Holding) -> None:
    """A node's report shows that a device which was left is empty."""
    state = step(HOLDING_TABLE, holding.state, HoldingEvent.PROVEN_EMPTY)
    draft.put(replace(holding, state=state, since=draft.now))
    if not draft.books.holdings_of(holding.lease):
        draft.put(replace(draft.books.leases[holding.lease], ended_at=draft.now))
    draft.wake()


def claim(draft: Draft, auction: int, job_id: str, device: str, *, term_ends_at: float, visit: bool) -> None:
    """Award a device that is still to be left."""
    if draft.books.claim_on(device) is not None:
        raise IllegalEvent(f"{device} is claimed already")
    draft.put(
        Claim(
            auction=auction,
            job=job_id,
            device=device,
            made_at=draft.now,
            term_ends_at=term_ends_at,
            visit=visit,
        )
    )


def settle_claims(draft: Draft, claims: Iterable[Claim], event: ClaimEvent) -> None:
    """Grant or bury claims (the grant itself is `grant`'s)."""
    for found in list(claims):
        draft.put(replace(found, state=step(CLAIM_TABLE, found.state, event)))
        draft.wake()
