"""What time itself brings: everything that is due by `now`, in a fixed order.

1. Silent nodes, expired leases, overdue orders to leave, jobs that idle or were never heard
   of again, visits that are over.
2. Claims whose devices are proven empty are granted; so are devices to the very job whose
   processes are on them.
3. After the quiet time of a restart: the auction of the tick, or between ticks one for a
   device that became free and for jobs that have none. The same question (which seats, who
   contends for how many) is not asked twice between two ticks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from selfsched.protocol import EndJob, JobState, Outcome, Resume
from selfsched_broker.core.books import Agenda, Books, Claim, Job, JobPulse, Lease, LeasePulse
from selfsched_broker.core.charging import collect
from selfsched_broker.core.controls import newest_first, pause_job
from selfsched_broker.core.draft import Context, Decision, Draft
from selfsched_broker.core.fairness import is_measured
from selfsched_broker.core.grants import grant, is_free, is_repaid, lose, order_leave, settle_claims, sits_on
from selfsched_broker.core.jobs import end_job
from selfsched_broker.core.leases import ClaimEvent
from selfsched_broker.core.markets import (
    Stakes,
    allowed_counts,
    beyond_share,
    can_run_on,
    contends,
    ended_terms,
    free_devices,
    is_silent,
    needs_visit,
    quota_left,
)
from selfsched_broker.core.nodes import silence_nodes
from selfsched_broker.core.retention import forget_old
from selfsched_broker.core.rulings import VISIT_IS_OVER, hold_auction, term_end

_NOTHING = Stakes({})
_NEVER = math.inf


def restart(books: Books, ctx: Context) -> Decision[None]:
    """After the store was opened: every lease gets a full ttl, and everybody time to come back."""
    draft = Draft(books, ctx)
    for lease in books.open_leases():
        draft.put(LeasePulse(lease=lease.id, renewed_at=ctx.now))
    for job in books.live_jobs():
        draft.put(
            JobPulse(
                job=job.id,
                incarnation=0,
                sequence=0,
                reported_at=ctx.now,
                state=job.state,
                step=job.step,
                planned_steps=job.planned_steps,
                fraction_done=job.fraction_done,
                steady_seconds=job.steady_seconds,
                stepped_at=ctx.now,
                meter=job.meter.interrupted(),
                tally=job.tally,
            )
        )
    held = any(not lease.end_reason for lease in books.open_leases())
    quiet_until = ctx.now + ctx.options.restart_window_seconds if held else ctx.now
    overdue = any(lease.term_ends_at <= quiet_until for lease in books.open_leases())
    tick = quiet_until if overdue else next_tick(ctx)
    draft.put(Agenda(quiet_until=quiet_until, next_tick_at=tick))
    return draft.finish(lambda _: None)


def next_tick(ctx: Context) -> float:
    """The next moment of the grid of ticks, after now."""
    term = ctx.options.term_seconds
    return (math.floor(ctx.now / term) + 1) * term


def advance(books: Books, ctx: Context) -> Decision[None]:
    """Do everything that is due by now."""
    draft = Draft(books, ctx)
    silence_nodes(draft)
    _expire_leases(draft)
    _end_overdue(draft)
    for job in list(draft.books.live_jobs()):
        _look_after(draft, job.id)
    _end_visits(draft)
    _end_stated_times(draft)
    _grant_claims(draft)
    if ctx.now >= draft.books.agenda.quiet_until:
        _grant_to_sitters(draft)
        collect(draft)
        _hold_auctions(draft)
    if draft.books.agenda.wake:
        draft.put(replace(draft.books.agenda, wake=False))
    forget_old(draft)
    return draft.finish(lambda _: None)


def next_due(books: Books, ctx: Context) -> float:
    """When `advance` is due next, in broker time; `ctx.now` or less when it is due now."""
    if books.agenda.wake:
        return ctx.now
    return min(_deadlines(books, ctx), default=_NEVER)


def _deadlines(books: Books, ctx: Context) -> Iterator[float]:
    options, agenda = ctx.options, books.agenda
    yield max(agenda.next_tick_at, agenda.quiet_until)
    if agenda.quiet_until > ctx.now:
        yield agenda.quiet_until
    patience = options.max_notice_seconds + options.grace_seconds
    yield from (c.made_at + patience for c in books.open_claims() if c.made_at + patience > ctx.now)
    for node in books.nodes.values():
        if not node.silent:
            yield node.reported_at + options.node_silent_seconds
    for lease in books.open_leases():
        if not lease.end_reason:
            yield _expires_at(books, ctx, lease)
            for holding in books.holdings_of(lease.id):
                if holding.leave_by is not None:
                    yield holding.leave_by + options.grace_seconds
            if lease.visit:
                yield lease.granted_at + options.visit_start_seconds
    hungry = False
    for job in books.live_jobs():
        yield from _job_deadlines(books, ctx, job)
        hungry = hungry or (job.state is JobState.WAITING and job.order == "go_on")
    if hungry and agenda.quiet_until <= ctx.now and not options.rounds_only:
        yield agenda.looked_at + options.min_auction_seconds


def _job_deadlines(books: Books, ctx: Context, job: Job) -> Iterator[float]:
    options, pulse = ctx.options, books.job_pulses.get(job.id)
    if pulse is None:
        return
    if not books.active_of(job.id):
        if job.state is not JobState.PAUSED:
            yield pulse.reported_at + options.silent_job_seconds
        return
    if job.state is JobState.RUNNING and job.resume is not Resume.NEVER:
        limit = options.idle_lost_seconds if "idle" in pulse.warned else options.idle_warned_seconds
        if pulse.idle_seconds > 0:
            yield pulse.reported_at + limit - pulse.idle_seconds
    if job.pays_from is not None and job.pays_from > ctx.now:
        yield job.pays_from
    if job.resume is Resume.NEVER:
        ends = min(lease.term_ends_at for lease in books.leases_of(job.id))
        if ends > ctx.now:
            yield ends
        yield from (ends - left for left in options.end_warned_seconds if f"end-{left:g}" not in pulse.warned)


def _expires_at(books: Books, ctx: Context, lease: Lease) -> float:
    renewed = books.lease_pulses[lease.id].renewed_at
    return renewed + ctx.options.ttl_seconds + ctx.options.grace_seconds


def _expire_leases(draft: Draft) -> None:
    for lease in draft.books.open_leases():
        if lease.end_reason or _expires_at(draft.books, draft.ctx, lease) > draft.now:
            continue
        active = [h for h in draft.books.holdings_of(lease.id) if h.active]
        silent = draft.options.ttl_seconds + draft.options.grace_seconds
        draft.audit("lease_expired", lease.id, f"{lease.job} did not renew it for {silent:.0f} s")
        lose(draft, active, "expired", f"no report renewed {lease.id} for {silent:.0f} s: it is lost")


def _end_overdue(draft: Draft) -> None:
    for lease in draft.books.open_leases():
        for holding in draft.books.holdings_of(lease.id):
            if holding.leave_by is None or not holding.active:
                continue
            if holding.leave_by + draft.options.grace_seconds <= draft.now:
                draft.audit("overdue", holding.key, f"{lease.job} did not leave within its notice")
                lose(draft, [holding], "overdue", f"did not leave {holding.device} within its notice")


def _look_after(draft: Draft, job_id: str) -> None:
    """Claims of silent jobs die; jobs that idle are warned, then paused; the lost are buried."""
    books, options = draft.books, draft.options
    job, pulse = books.jobs[job_id], books.job_pulses.get(job_id)
    if pulse is None:
        return
    active = books.devices_of(job_id)
    if is_silent(draft, job) and not active:
        settle_claims(draft, books.claims_of(job_id), ClaimEvent.DIED)
        if job.order == "stop":
            end_job(draft, job_id, EndJob(outcome=Outcome.CANCELLED, reason="stopped by its owner"))
        elif job.state is not JobState.PAUSED and draft.now - pulse.reported_at >= options.silent_job_seconds:
            reason = f"not heard of for {options.silent_job_seconds:.0f} s"
            end_job(draft, job_id, EndJob(outcome=Outcome.LOST, reason=reason))
    elif job.resume is Resume.NEVER:
        _warn_of_end(draft, job, pulse)
    elif active:
        _trim(draft, job)
        if job.state is JobState.RUNNING:
            _look_for_steps(draft, job, pulse)


def _trim(draft: Draft, job: Job) -> None:
    """Have a job leave what it cannot use: it lost a device, or its batch allows other counts now."""
    holdings = draft.books.active_of(job.id)
    held = [holding for holding in holdings if holding.state == "held"]
    if len(held) < len(holdings) or can_run_on(job, len(held)) or draft.books.claims_of(job.id):
        return
    usable = max((n for n in allowed_counts(job, len(held)) if n < len(held)), default=0)
    reason = f"it cannot run on {len(held)} devices"
    order_leave(draft, newest_first(draft.books, held)[: len(held) - usable], reason)


def _look_for_steps(draft: Draft, job: Job, pulse: JobPulse) -> None:
    """Idleness by the job's word, and by the steps the broker saw: validation may take its time once."""
    options = draft.options
    since_report = draft.now - pulse.reported_at
    stalled = draft.now - pulse.stepped_at - options.idle_lost_seconds
    idle = max(pulse.idle_seconds + since_report if pulse.idle_seconds > 0 else 0.0, stalled)
    if idle >= options.idle_lost_seconds:
        minutes = options.idle_lost_seconds / 60
        draft.audit("idle_lost", job.id, f"no step for {minutes:.0f} min", account=job.account)
        pause_job(draft, job, f"made no step for {minutes:.0f} min: paused; resume it when it can go on")
    elif idle >= options.idle_warned_seconds and "idle" not in pulse.warned:
        left = (options.idle_lost_seconds - options.idle_warned_seconds) / 60
        draft.put(replace(pulse, warned=pulse.warned | {"idle"}))
        draft.audit("idle_warned", job.id, account=job.account)
        minutes = options.idle_warned_seconds / 60
        draft.say(job.id, f"made no step for {minutes:.0f} min: loses its devices in {left:.0f} min")


def _warn_of_end(draft: Draft, job: Job, pulse: JobPulse) -> None:
    terms = [lease.term_ends_at for lease in draft.books.leases_of(job.id) if not lease.end_reason]
    if not terms:
        return
    for left in draft.options.end_warned_seconds:
        name = f"end-{left:g}"
        if min(terms) - draft.now <= left and name not in pulse.warned:
            pulse = replace(pulse, warned=pulse.warned | {name})
            draft.put(pulse)
            draft.say(job.id, f"its stated time ends in {max(0.0, min(terms) - draft.now) / 60:.0f} min")


def _end_visits(draft: Draft) -> None:
    """A first visit is over when it was measured, or has had its time: then the job bids."""
    fairness, books = draft.ctx.fairness, draft.books
    for lease in [found for found in books.open_leases() if found.visit and not found.end_reason]:
        job, pulse = books.jobs[lease.job], books.job_pulses.get(lease.job)
        if pulse is None:
            continue
        running = draft.now - pulse.running_since if pulse.running_since is not None else 0.0
        measured = is_measured(job.bid)
        enough = pulse.steady_steps >= fairness.visit_steps or running >= fairness.visit_seconds
        late = draft.now - lease.granted_at >= draft.options.visit_start_seconds
        if (measured and enough) or running >= 2 * fairness.visit_seconds or late:
            draft.put(replace(lease, visit=False, term_ends_at=draft.now), replace(job, visited=True))
            draft.say(job.id, VISIT_IS_OVER)
            draft.wake()


def _end_stated_times(draft: Draft) -> None:
    """A program that cannot resume leaves when its stated time is over and somebody waits."""
    for lease in draft.books.open_leases():
        job = draft.books.jobs[lease.job]
        if job.resume is not Resume.NEVER or lease.end_reason or lease.term_ends_at > draft.now:
            continue
        if any(contends(draft, other) and _has_nothing(draft, other) for other in draft.books.live_jobs()):
            reason = "its stated time is over and others wait for its devices"
            order_leave(draft, draft.books.holdings_of(lease.id), reason)
        else:
            draft.put(replace(lease, term_ends_at=next_tick(draft.ctx)))
            draft.say(job.id, "its stated time is over; it goes on while nobody waits")


def _grant_claims(draft: Draft) -> None:
    by_job: dict[str, list[Claim]] = {}
    for claim in draft.books.open_claims():
        by_job.setdefault(claim.job, []).append(claim)
    for job_id, claims in sorted(by_job.items()):
        ready = [c for c in claims if is_free(draft.books, c.device, draft.now, draft.options)]
        granted = _grantable(draft, job_id, claims, ready)
        if granted:
            tick = draft.books.agenda.next_tick_at
            term = max(tick, *(claim.term_ends_at for claim in granted))
            settle_claims(draft, granted, ClaimEvent.GRANTED)
            reason = _why_awarded(draft, job_id, granted[-1].auction)
            visit = all(claim.visit for claim in granted)
            devices = [claim.device for claim in granted]
            grant(draft, job_id, devices, term_ends_at=term, visit=visit, reason=reason)


def _why_awarded(draft: Draft, job_id: str, auction_number: int) -> str:
    """What the auction said when it awarded devices that have become free only now."""
    auction = draft.books.auctions.get(str(auction_number))
    awards = auction.view.awards if auction is not None else ()
    said = next((award.reason for award in awards if award.job == job_id and award.reason), "")
    free = "the devices it was awarded have become free"
    return f"{said}; {free}" if said else free


def _grant_to_sitters(draft: Draft) -> None:
    """A job that asks for exactly the devices it sits on gets them: they are of no use to others."""
    books = draft.books
    for job in [job for job in books.live_jobs() if job.wanted_devices and contends(draft, job)]:
        devices = job.wanted_devices
        if not _has_nothing(draft, job) or not any(sits_on(books, device, job) for device in devices):
            continue
        limit = quota_left(books, job.account)
        if limit is not None and len(devices) > limit:
            continue
        if all(
            books.claim_on(device) is None
            and (is_free(books, device, draft.now, draft.options) or sits_on(books, device, job))
            for device in devices
        ):
            reason = "its own processes are on them already"
            grant(draft, job.id, devices, term_ends_at=term_end(draft, job.id), visit=False, reason=reason)


def _grantable(draft: Draft, job_id: str, claims: list[Claim], ready: list[Claim]) -> list[Claim]:
    """All of a job's claims together; when some are stuck, as many as make an allowed count."""
    if len(ready) == len(claims):
        return ready
    patience = draft.options.max_notice_seconds + draft.options.grace_seconds
    if not ready or draft.now - min(claim.made_at for claim in claims) < patience:
        return []
    held = len(draft.books.devices_of(job_id))
    allowed = allowed_counts(draft.books.jobs[job_id], len(draft.books.devices))
    most = max((n - held for n in allowed if held < n <= held + len(ready)), default=0)
    return ready[:most]


def _hold_auctions(draft: Draft) -> None:
    agenda = draft.books.agenda
    if draft.now >= agenda.next_tick_at:
        draft.put(replace(agenda, next_tick_at=next_tick(draft.ctx), question=frozenset()))
        hold_auction(draft, "tick", ended_terms(draft))
    elif not draft.options.rounds_only:
        _between_ticks(draft)
    draft.put(replace(draft.books.agenda, looked_at=draft.now))


def _between_ticks(draft: Draft) -> None:
    """Serve who has nothing, at most once in a while taking from holders; else give out what is free."""
    agenda, free = draft.books.agenda, free_devices(draft)
    ended = ended_terms(draft)
    contending = [job for job in draft.books.live_jobs() if contends(draft, job)]
    hungry = [job for job in contending if _has_nothing(draft, job)]
    if hungry and draft.now >= agenda.took_at + draft.options.min_auction_seconds:
        visit = any(needs_visit(job) for job in hungry)
        stakes = beyond_share(draft, for_visit=visit and not free)
        both = Stakes({**stakes.at_stake, **ended.at_stake})
        if (free or both.devices) and _is_new_question(draft, free, both, contending):
            draft.put(replace(draft.books.agenda, took_at=draft.now))
            hold_auction(draft, "visit" if visit else "arrival", both)
            return
    if (free or ended.devices) and _is_new_question(draft, free, ended, contending):
        hold_auction(draft, "device_free" if free else "arrival", ended)


def _has_nothing(draft: Draft, job: Job) -> bool:
    return job.state is JobState.WAITING and not draft.books.claims_of(job.id)


def _is_new_question(draft: Draft, free: list[str], stakes: Stakes, contending: list[Job]) -> bool:
    """Whether anything differs from the last auction between ticks; remembers the question."""
    wants = (
        f"{job.id}:{job.min_devices}-{job.max_devices}:{job.allowed_devices}:{job.priority:g}:"
        f"{sum(r.remaining_seconds is not None for r in job.bid.rows) if job.bid else 0}:"
        f"{job.state.value}:{is_repaid(draft, job)}"
        for job in contending
    )
    question = frozenset((*free, *(f"stake {d}" for d in stakes.devices), *wants))
    if question == draft.books.agenda.question:
        return False
    draft.put(replace(draft.books.agenda, question=question))
    return True
