"""From a policy's answer to the books: check it, then turn it into grants, claims and orders.

A policy is never trusted. A ruling that breaks the contract of `market.Policy` is put aside
whole: everybody keeps what they have, and the audit says what was wrong with it. So it is where
a policy raises, in a broker (`Context.survives_policies`): leases must expire meanwhile. The
same failure is said once, counted always, and the policy is asked again at the next tick, or when
there is another question.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from selfsched.protocol import AuctionView, AwardView, JobState, Resume
from selfsched_broker.core.books import Auction, Books, Holding
from selfsched_broker.core.charging import bill, charges
from selfsched_broker.core.draft import Context, Decision, Draft, Settlement
from selfsched_broker.core.grants import claim, grant, is_free, order_leave
from selfsched_broker.core.market import Award, Contender, Market, Ruling, Trigger
from selfsched_broker.core.markets import Stakes, build_market, contends, keep_all

VISIT_IS_OVER = "its first visit is over: it bids like any other"
_LONGEST_WORDS = 2000
_BROKEN = "the policy's ruling broke its contract and was put aside: everything stays as it is"
_FAILED = "the broker's policy failed in this auction: everything stays as it is; the broker tries again"


def hold_auction(draft: Draft, trigger: Trigger, stakes: Stakes) -> None:
    """Ask the policy, check and record its ruling, and carry it out."""
    jobs = [job for job in draft.books.live_jobs() if contends(draft, job)]
    if not jobs or not draft.books.healthy_devices:
        return
    present = {job.id for job in jobs}
    stakes = Stakes({job: devices for job, devices in stakes.at_stake.items() if job in present})
    market = build_market(draft, trigger, stakes, jobs)
    ruling, view = _ask(draft, market)
    broker = draft.books.broker
    draft.put(replace(broker, next_auction=broker.next_auction + 1))
    draft.put(Auction(number=market.number, at=draft.now, view=view))
    if ruling.settle is not None:
        draft.settlements.append(Settlement(market.number, ruling.settle))
    for contender in market.contenders:
        _renew_and_leave(draft, contender, ruling.awards[contender.job])
    for contender in market.contenders:
        _gain(draft, market, contender, ruling.awards[contender.job])
    if charges(draft.ctx.fairness, market.total_devices):
        for contender in market.contenders:
            award = ruling.awards[contender.job]
            if award.term_part is not None:
                bill(draft, contender, len(award.devices), award.term_part)
    reserve = tuple(sorted(ruling.reserve.items()))
    draft.put(replace(draft.books.agenda, reserve=reserve))


def _ask(draft: Draft, market: Market) -> tuple[Ruling, AuctionView]:
    """The policy's ruling and its record, or that everybody keeps what they have."""
    try:
        ruling = draft.ctx.policy.rule(market, draft.ctx.rng)
        faults = find_faults(market, ruling)
        if not faults:
            view = _view(draft, market, ruling)
    except Exception as error:
        # Whatever a policy may raise, or answer that cannot even be checked, must not stop time.
        if not draft.ctx.survives_policies:
            raise
        _note_failure(draft, market, error)
        ruling = _keep_everything(market, _FAILED)
        return ruling, _view(draft, market, ruling)
    if draft.books.agenda.failure:
        draft.put(replace(draft.books.agenda, failure=""))
    if faults:
        draft.audit("ruling_refused", f"auction {market.number}", "; ".join(faults[:5]))
        ruling = _keep_everything(market, _BROKEN)
        view = _view(draft, market, ruling)
    return ruling, view


def settle_payments(books: Books, ctx: Context, number: int, payments: Mapping[str, float]) -> Decision[None]:
    """Put exact payments in the place of those that were read off the prices.

    Args:
        books: what is.
        ctx: the moment.
        number: the auction.
        payments: c by job.
    """
    draft = Draft(books, ctx)
    auction = draft.books.auctions.get(str(number))
    if auction is not None:
        awards = tuple(
            award.model_copy(update={"payment": payments.get(award.job, award.payment)})
            for award in auction.view.awards
        )
        draft.put(replace(auction, view=auction.view.model_copy(update={"awards": awards})))
    return draft.finish(lambda _: None)


def _note_failure(draft: Draft, market: Market, error: Exception) -> None:
    """Count a failure; the same one, however its message differs, is told once."""
    agenda = draft.books.agenda
    at = traceback.extract_tb(error.__traceback__)[-1]
    failure = f"{type(error).__name__} at {PurePath(at.filename).name}, line {at.lineno}"
    draft.put(replace(agenda, failed_auctions=agenda.failed_auctions + 1, failure=failure))
    if failure == agenda.failure:
        return
    words = f"the policy {draft.ctx.policy.name} failed, nobody moves: {failure}: {error}"
    draft.audit("auction_failed", f"auction {market.number}", words[:_LONGEST_WORDS])
    draft.failures.append(error)


def find_faults(market: Market, ruling: Ruling) -> list[str]:
    """What is wrong with a ruling, in words; empty when it keeps the contract."""
    faults = [f"{c.job} has no award" for c in market.contenders if c.job not in ruling.awards]
    if faults:
        return faults
    known = {c.job for c in market.contenders}
    faults += [f"{job} is no contender" for job in ruling.awards if job not in known]
    seats = {seat.device for seat in market.seats}
    given = Counter(d for c in market.contenders for d in ruling.awards[c.job].devices)
    faults += [f"{device} is awarded {n} times" for device, n in given.items() if n > 1]
    for contender in market.contenders:
        faults += _faults_of(contender, ruling.awards[contender.job], seats)
    return faults + _quota_faults(market, ruling)


def _faults_of(contender: Contender, award: Award, seats: set[str]) -> list[str]:
    devices, kept = set(award.devices), set(contender.kept)
    faults = []
    if devices - seats - kept:
        faults.append(f"{contender.job} is given what is no seat: {sorted(devices - seats - kept)[0]}")
    if kept - devices:
        faults.append(f"{contender.job} would lose {sorted(kept - devices)[0]}, which is not at stake")
    unchanged = devices == kept | set(contender.at_stake)
    if devices and not unchanged and len(devices) not in contender.allowed_devices:
        faults.append(f"{contender.job} cannot run on {len(devices)} devices")
    if not contender.may_move and not set(contender.at_stake) <= devices:
        faults.append(f"{contender.job} has not repaid its last move")
    if contender.wanted_devices and not devices <= set(contender.wanted_devices):
        faults.append(f"{contender.job} wants other devices")
    return faults


def _quota_faults(market: Market, ruling: Ruling) -> list[str]:
    gains: Counter[str] = Counter()
    left: dict[str, int] = {}
    for contender in market.contenders:
        now = len(contender.kept) + len(contender.at_stake)
        gains[contender.account] += len(ruling.awards[contender.job].devices) - now
        if contender.quota_left is not None:
            left[contender.account] = contender.quota_left
    return [f"account {a} would exceed its limit" for a, n in left.items() if gains[a] > n]


def _keep_everything(market: Market, reason: str) -> Ruling:
    awards = {
        job: Award(job=job, devices=devices, considered=False, reason=reason)
        for job, devices in keep_all(market).items()
    }
    return Ruling(awards=awards, reason=reason, reserve=market.reserved_for)


def _view(draft: Draft, market: Market, ruling: Ruling) -> AuctionView:
    awards = [(c, ruling.awards[c.job]) for c in market.contenders]
    return AuctionView(
        number=market.number,
        ago_seconds=0.0,
        trigger=market.trigger,
        policy=draft.ctx.policy.name,
        awards=tuple(_award_view(contender, award) for contender, award in awards),
        welfare_gap=ruling.gap,
        reason=ruling.reason[:_LONGEST_WORDS],
    )


def _award_view(contender: Contender, award: Award) -> AwardView:
    return AwardView(
        job=contender.job,
        account=contender.account,
        considered=award.considered,
        devices=len(award.devices),
        device_ids=tuple(sorted(award.devices)),
        rho_before=award.rho_before,
        rho_after=award.rho_after,
        payment=award.payment,
        term_part=award.term_part,
        reason=award.reason[:_LONGEST_WORDS],
    )


def _renew_and_leave(draft: Draft, contender: Contender, award: Award) -> None:
    """What a contender keeps is renewed; what it does not, it is told to leave."""
    wanted, had = set(award.devices), {*contender.kept, *contender.at_stake}
    _note_rho(draft, award)
    _renew(draft, set(contender.at_stake) & wanted)
    if wanted == had and draft.books.jobs[award.job].reasons[-1:] == (VISIT_IS_OVER,):
        # Nothing changes for it, and nothing more may for days: it has its devices for another reason now.
        draft.say(award.job, award.reason[:_LONGEST_WORDS])
    order_leave(draft, _holdings(draft.books, had - wanted), award.reason[:_LONGEST_WORDS])


def _note_rho(draft: Draft, award: Award) -> None:
    rho = award.rho_after if award.rho_after is not None else award.rho_before
    if rho is not None and rho >= 0:
        draft.put(replace(draft.books.jobs[award.job], rho=rho))


def _renew(draft: Draft, devices: set[str]) -> None:
    """Move the term ends of leases whose devices were won again. No new fence, no restart."""
    for lease_id in sorted({holding.lease for holding in _holdings(draft.books, devices)}):
        lease = draft.books.leases[lease_id]
        draft.put(replace(lease, term_ends_at=max(lease.term_ends_at, draft.books.agenda.next_tick_at)))


def _holdings(books: Books, devices: set[str]) -> list[Holding]:
    found = (books.holding_of(device) for device in sorted(devices))
    return [holding for holding in found if holding is not None and holding.active]


def _gain(draft: Draft, market: Market, contender: Contender, award: Award) -> None:
    """Grant at once when everything won is free, else claim it until it is.

    A job without devices does not wait for the rest when it can start on what is free and
    the rest may take longer to leave than the later restart costs.
    """
    books, job, reason = draft.books, draft.books.jobs[award.job], award.reason[:_LONGEST_WORDS]
    gains = sorted(set(award.devices) - {*contender.kept, *contender.at_stake})
    if not award.devices:
        _pass_over(draft, market, award.job, reason)
    if not gains:
        return
    free = [d for d in gains if is_free(books, d, draft.now, draft.options)]
    term = term_end(draft, award.job)
    starts_small = job.state is JobState.WAITING and len(free) in contender.allowed_devices
    if free and (len(free) == len(gains) or (starts_small and _wait_is_long(draft, award, gains))):
        grant(draft, award.job, free, term_ends_at=term, visit=award.visit, reason=reason)
        gains = [device for device in gains if device not in free]
    for device in gains:
        claim(draft, market.number, award.job, device, term_ends_at=term, visit=award.visit)
    if gains:
        draft.say(award.job, reason)


def _wait_is_long(draft: Draft, award: Award, gains: Sequence[str]) -> bool:
    bid = draft.books.jobs[award.job].bid
    restart = max((row.restart_seconds for row in bid.rows), default=0.0) if bid else 0.0
    deadlines = (holding.leave_by for holding in _holdings(draft.books, set(gains)))
    return max((d - draft.now for d in deadlines if d is not None), default=0.0) > 2 * restart


def term_end(draft: Draft, job_id: str) -> float:
    """When the term of what a job is awarded now ends: at the next tick, or after its stated time."""
    job, tick = draft.books.jobs[job_id], draft.books.agenda.next_tick_at
    if job.resume is Resume.NEVER and job.stated_seconds is not None:
        return max(tick, draft.now + job.stated_seconds)
    return tick


def _pass_over(draft: Draft, market: Market, job_id: str, reason: str) -> None:
    job = draft.books.jobs[job_id]
    if market.trigger == "tick" and job.state is JobState.WAITING:
        draft.put(replace(job, passed_over=job.passed_over + 1))
    draft.say(job_id, reason)
