"""The books as others may see them: instructions for a job, views for people.

Nothing is decided here. Other people's sealed bids, names and reasons are left out; who holds
a device is told as an account only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from selfsched.protocol import (
    AccountView,
    AuctionView,
    AwardView,
    ClaimsHeld,
    ClusterView,
    DeviceProcess,
    DeviceSpan,
    DeviceState,
    DeviceView,
    Forecast,
    Instructions,
    JobState,
    JobView,
    LeasedDevice,
    LeaseInstruction,
    ProblemCode,
)
from selfsched_broker.core import past_forecasts
from selfsched_broker.core.books import Auction, Books, Device, Holding, Job, JobPulse, Lease
from selfsched_broker.core.draft import Context
from selfsched_broker.core.leases import Refusal
from selfsched_broker.core.occupants import free_when, strangers
from selfsched_broker.core.shares import age_seconds, share_over_life
from selfsched_broker.core.track_record import TrackRecord

_MOST_PROCESSES = 64
"""Of one device that are shown."""


def instructions(books: Books, ctx: Context, job_id: str) -> Instructions:
    """The broker's whole word to a job, as the books stand.

    Raises:
        Refusal: NOT_FOUND.
    """
    job = _job(books, job_id)
    leases = [lease for lease in books.leases_of(job_id) if not lease.end_reason]
    return Instructions(
        job=job_id,
        incarnation=books.broker.incarnation,
        version=job.instructions_version,
        state=job.state,
        leases=tuple(_lease_instruction(books, ctx, lease) for lease in leases),
        order=job.order,
        visit=any(lease.visit for lease in leases),
        rho=job.rho,
        forecast=_under_contention(books, ctx, job_id),
        next_report_seconds=ctx.options.report_seconds,
        max_notice_seconds=ctx.options.max_notice_seconds,
        reasons=job.reasons,
    )


def _under_contention(books: Books, ctx: Context, job_id: str) -> Forecast | None:
    """What the broker foresees of a job that runs and has measured itself; of others None."""
    held = len(books.devices_of(job_id))
    found = ctx.outlook.of(job_id, ctx.now, held) if ctx.outlook is not None else None
    if found is None or not found.known or not held:
        return None
    return found.finish


def _ends(books: Books, ctx: Context, job: Job) -> Forecast | None:
    """When a job that has measured itself is expected to have ended, whether it holds devices or waits."""
    held = len(books.devices_of(job.id))
    found = ctx.outlook.of(job.id, ctx.now, held) if ctx.outlook is not None and job.live else None
    return found.finish if found is not None and found.known else None


def _starts(books: Books, ctx: Context, job: Job) -> Forecast | None:
    """When a job that waits is expected to have devices."""
    if job.state is not JobState.WAITING or ctx.outlook is None or books.devices_of(job.id):
        return None
    if job.stands_back(ctx.now):
        return None  # the look-ahead would have it bid at once
    found = ctx.outlook.of(job.id, ctx.now, 0)
    return found.start if found is not None else None


def _lease_instruction(books: Books, ctx: Context, lease: Lease) -> LeaseInstruction:
    active = [holding for holding in books.holdings_of(lease.id) if holding.active]
    leave = [holding for holding in active if holding.state == "yielding"]
    deadlines = [_within_seconds(ctx, holding) for holding in leave]
    pulse = books.lease_pulses[lease.id]
    return LeaseInstruction(
        lease=lease.id,
        fence=lease.fence,
        ttl_seconds=max(0.0, pulse.renewed_at + ctx.options.ttl_seconds - ctx.now),
        term_seconds=max(0.0, lease.term_ends_at - ctx.now),
        devices=tuple(leased_device(books.devices[holding.device]) for holding in active),
        leave=tuple(holding.device for holding in leave),
        within_seconds=min(deadlines, default=None),
    )


def _within_seconds(ctx: Context, holding: Holding) -> float:
    """What a job is told to leave within: its whole notice, however late the order reaches it.

    The broker waits one report longer than the notice (`order_leave`), so what an answer is late
    by uses that up first; only then does the notice shrink.
    """
    if holding.leave_by is None:
        return 0.0
    notice = holding.leave_by - ctx.options.report_seconds - holding.since
    return max(0.0, min(notice, holding.leave_by - ctx.now))


def leased_device(device: Device) -> LeasedDevice:
    """A device as a job must know it."""
    return LeasedDevice(
        id=device.id,
        node=device.node,
        index=device.index,
        model=device.model,
        kind=device.kind,
        cores=device.cores,
    )


def job_view(books: Books, ctx: Context, job_id: str) -> JobView:
    """A job for its owner or an administrator (who asks is the caller's to check)."""
    job = _job(books, job_id)
    pulse = books.job_pulses.get(job_id) if job.live else None
    terms = [lease.term_ends_at for lease in books.leases_of(job_id) if not lease.end_reason]
    return JobView(
        job=job.id,
        name=job.name,
        account=job.account,
        state=job.state,
        outcome=job.outcome,
        devices=tuple(leased_device(books.devices[d]) for d in books.devices_of(job_id)),
        min_devices=job.min_devices,
        max_devices=job.max_devices,
        resume=job.resume,
        priority=job.priority,
        step=pulse.step if pulse else job.step,
        planned_steps=pulse.planned_steps if pulse else job.planned_steps,
        fraction_done=pulse.fraction_done if pulse else job.fraction_done,
        age_seconds=age_seconds(job, ctx.now),
        idle_seconds=idle_seconds(pulse, ctx.now),
        share=_share(books, ctx, job),
        rho=job.rho,
        forecast=pulse.forecast if pulse and _goes_on(job, ctx.now) else None,
        starts=_starts(books, ctx, job),
        ends=_ends(books, ctx, job),
        term_seconds=max(0.0, min(terms) - ctx.now) if terms else None,
        bid=job.bid,
        history=history(books, job, ctx.now),
        reasons=job.reasons,
        reason_ages_seconds=tuple(max(0.0, ctx.now - at) for at in job.reasons_at),
    )


def _goes_on(job: Job, now: float) -> bool:
    """Whether nobody has ordered it to leave: what it foresaw before such an order holds no more."""
    return job.order == "go_on" and not job.stands_back(now)


def idle_seconds(pulse: JobPulse | None, now: float) -> float:
    """Since a job's last step, validation or checkpoint, as far as is known now.

    What a job said is as old as its report. One that made no step in its last report goes on
    idling until it is heard again; of one that did, nobody knows yet.
    """
    if pulse is None or pulse.idle_seconds <= 0:
        return 0.0
    idles = pulse.stepped_at < pulse.reported_at
    return pulse.idle_seconds + (max(0.0, now - pulse.reported_at) if idles else 0.0)


def _share(books: Books, ctx: Context, job: Job) -> float:
    if job.live:
        return share_over_life(books, job, ctx.now)
    age = age_seconds(job, ctx.now)
    return job.share_integral / age if age > 0 else 0.0


def history(books: Books, job: Job, now: float) -> tuple[DeviceSpan, ...]:
    """Which devices a job had when, oldest first; an open span has no end."""
    uses = [
        (lease.granted_at, holding.left_at, holding.device)
        for lease in books.all_leases_of(job.id)
        for holding in books.all_holdings_of(lease.id)
    ]
    edges = sorted({start for start, _, _ in uses} | {end for _, end, _ in uses if end is not None})
    spans: list[DeviceSpan] = []
    stops = [*edges[1:], None] if edges else []
    for start, stop in zip(edges, stops, strict=True):
        held = tuple(sorted(d for s, e, d in uses if s <= start and (e is None or e > start)))
        if held:
            begin, until = start - job.registered_at, None if stop is None else stop - job.registered_at
            spans.append(DeviceSpan(devices=held, from_seconds=max(0.0, begin), to_seconds=until))
    return tuple(spans)


def cluster_view(books: Books, ctx: Context) -> ClusterView:
    """The cluster for anyone."""
    jobs = list(books.live_jobs())
    running = (JobState.STARTING, JobState.RUNNING, JobState.YIELDING)
    ordered = sorted(books.devices.values(), key=lambda d: (d.node, d.index, d.id))
    return ClusterView(
        policy=ctx.policy.name,
        devices=tuple(_device_view(books, ctx, device) for device in ordered),
        waiting_jobs=sum(job.state is JobState.WAITING for job in jobs),
        running_jobs=sum(job.state in running for job in jobs),
        next_tick_seconds=max(0.0, books.agenda.next_tick_at - ctx.now),
        incarnation=books.broker.incarnation,
        newcomers_per_hour=ctx.outlook.newcomers_per_hour if ctx.outlook is not None else 0.0,
    )


def device_state(books: Books, device_id: str) -> DeviceState:
    """The state of a device, from its holding, its administrator and its node."""
    device, pulse = books.devices[device_id], books.pulses.get(device_id)
    holding = books.holding_of(device_id)
    if holding is not None:
        return DeviceState(holding.state)
    if device.drained:
        return DeviceState.DRAINED
    if pulse is None or pulse.state in ("unknown", "sick"):
        return DeviceState.UNKNOWN
    return DeviceState.FREE if pulse.state == "empty" else DeviceState.QUARANTINED


def _device_view(books: Books, ctx: Context, device: Device) -> DeviceView:
    pulse, holding = books.pulses.get(device.id), books.holding_of(device.id)
    since = holding.since if holding else pulse.since if pulse else ctx.now
    owner = books.jobs[books.leases[holding.lease].job].account if holding else None
    state = device_state(books, device.id)
    shown = _largest_first(pulse.processes) if pulse else ()
    outside = frozenset(strangers(books, device))
    return DeviceView(
        id=device.id,
        node=device.node,
        index=device.index,
        model=device.model,
        kind=device.kind,
        state=state,
        since_seconds=max(0.0, ctx.now - since),
        cores=device.cores,
        account=owner,
        detail=_detail(books, device),
        free_when=free_when(books, ctx, device, state),
        memory_bytes=pulse.memory_bytes if pulse else None,
        memory_used_bytes=pulse.memory_used_bytes if pulse else None,
        utilisation=pulse.utilisation if pulse else None,
        processes=shown,
        strangers=tuple(process.pid for process in shown if process.pid in outside),
    )


def _largest_first(processes: Sequence[DeviceProcess]) -> tuple[DeviceProcess, ...]:
    largest = sorted(processes, key=lambda p: -(p.used_bytes or 0))[:_MOST_PROCESSES]
    return tuple(p.model_copy(update={"parents": ()}) if p.parents else p for p in largest)


def _detail(books: Books, device: Device) -> str:
    """Why a device is not free: strangers on it, a sickness, a silent node."""
    pulse, holding = books.pulses.get(device.id), books.holding_of(device.id)
    if pulse is None:
        return "its node has not reported since the broker started"
    if pulse.detail:
        return pulse.detail
    if pulse.state == "occupied" and (holding is None or not holding.active):
        owners = sorted({p.account or "somebody" for p in pulse.processes}) or ["somebody"]
        pids = ", ".join(str(p.pid) for p in pulse.processes[:5])
        return f"in use without a lease by {', '.join(owners)}" + (f" (process {pids})" if pids else "")
    return device.detail


def auction_view(books: Books, ctx: Context, number: int, account: str, *, admin: bool) -> AuctionView:
    """One decision for one reader: the numbers and reasons of other accounts' jobs left out.

    Raises:
        Refusal: NOT_FOUND.
    """
    auction: Auction | None = books.auctions.get(str(number))
    if auction is None:
        raise Refusal(ProblemCode.NOT_FOUND, f"there is no auction {number} (any more)")
    awards = tuple(a if admin or a.account == account else _sealed(a) for a in auction.view.awards)
    ago = max(0.0, ctx.now - auction.at)
    return auction.view.model_copy(update={"awards": awards, "ago_seconds": ago})


def _sealed(award: AwardView) -> AwardView:
    numbers = dict.fromkeys(("rho_before", "rho_after", "payment", "term_part"))
    return award.model_copy(update={**numbers, "reason": "another account's"})


def account_view(books: Books, name: str) -> AccountView:
    """An account for its owner or an administrator.

    Raises:
        Refusal: NOT_FOUND.
    """
    account = books.accounts.get(name)
    if account is None:
        raise Refusal(ProblemCode.NOT_FOUND, f"there is no account {name}")
    return AccountView(
        account=name,
        weight=account.weight,
        max_devices=account.max_devices,
        admin=account.admin,
        disabled=account.disabled,
        held_devices=sum(len(books.devices_of(job.id)) for job in books.live_jobs_of(name)),
        used_device_seconds=account.used_device_seconds,
        debt_device_seconds=account.debt_device_seconds,
        claims=claims_held(account.claims),
        forecast_scores=past_forecasts.summary(books, name),
    )


def claims_held(record: TrackRecord) -> ClaimsHeld | None:
    """How an account's claims came out; None: nothing could be compared yet."""
    if not record.weight:
        return None
    level, slope = record.line
    return ClaimsHeld(
        jobs=record.jobs,
        took_over_claimed=math.exp(level),
        doubling_over_claimed=math.exp(slope * math.log(2)),
        spread_log=record.spread_log,
    )


def _job(books: Books, job_id: str) -> Job:
    job = books.jobs.get(job_id)
    if job is None:
        raise Refusal(ProblemCode.NOT_FOUND, f"there is no job {job_id}")
    return job
