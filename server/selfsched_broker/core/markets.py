"""From the books to a policy's question: who contends, for which devices.

A contender is a live job that is neither paused, stopped nor silent. Its devices are split:
`at_stake` are in this auction, `kept` are not (their term goes on, or they are claims on their
way to it). Devices it is told to leave are neither.

Seats are free devices without a claim, and held ones by the auction's kind: at a tick those
whose term has ended; between ticks, for the sake of jobs without a device, what holders have
beyond their share and have repaid. A first visit is taken from the holder furthest above its
share, also where that is less than a whole device.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from selfsched.protocol import BidRow, JobState, Placement, Resume, StandingBid
from selfsched_broker.core.books import Books, Job
from selfsched_broker.core.controls import newest_first
from selfsched_broker.core.draft import Draft
from selfsched_broker.core.fairness import current_shares, is_measured
from selfsched_broker.core.grants import is_free, is_repaid
from selfsched_broker.core.lease_history import device_seconds_by_model
from selfsched_broker.core.market import Contender, Market, Seat, Trigger
from selfsched_broker.core.metering import Meter
from selfsched_broker.core.shares import age_seconds, share_over_life
from selfsched_broker.core.track_record import TrackRecord

_SHARE_SLACK = 1e-9


def allowed_counts(job: Job, most: int) -> tuple[int, ...]:
    """Device counts a job can run on, ascending, none above `most`; at least its smallest."""
    counts = job.allowed_devices or range(job.min_devices, min(job.max_devices, most) + 1)
    fitting = tuple(n for n in counts if job.min_devices <= n <= job.max_devices)
    return fitting or (job.min_devices,)


def can_run_on(job: Job, count: int) -> bool:
    """Whether a job can run on so many devices."""
    if job.allowed_devices and count not in job.allowed_devices:
        return False
    return job.min_devices <= count <= job.max_devices


def needs_visit(job: Job) -> bool:
    """Whether a job cannot bid before it has run for a moment."""
    return not job.visited and not is_measured(job.bid)


def contends(draft: Draft, job: Job) -> bool:
    """Whether a job takes part: it wants devices, its owner lets it, and somebody is there."""
    if job.state is JobState.PAUSED or job.order != "go_on" or draft.books.accounts[job.account].disabled:
        return False
    if job.resume is Resume.NEVER and job.state is JobState.WAITING and draft.books.all_leases_of(job.id):
        return False  # it has had its time and cannot go on
    if job.barred_until is not None and draft.now < job.barred_until:
        return False  # it has paid with its devices
    if job.stands_back(draft.now):
        return False
    return not is_silent(draft, job)


def is_silent(draft: Draft, job: Job) -> bool:
    """Whether a job has not reported for longer than a lease would live."""
    pulse, options = draft.books.job_pulses.get(job.id), draft.options
    return pulse is None or draft.now - pulse.reported_at >= options.ttl_seconds + options.grace_seconds


def standing_bid(draft: Draft, job: Job) -> StandingBid | None:
    """A job's bid as a policy sees it: for one that has visited in vain, or states its time, ours."""
    if is_measured(job.bid) or needs_visit(job):
        return job.bid
    count = allowed_counts(job, len(draft.books.devices))[0]
    left = draft.ctx.fairness.unknown_end_seconds
    if job.stated_seconds is not None:
        began = min((lease.granted_at for lease in draft.books.leases_of(job.id)), default=draft.now)
        left = max(1.0, job.stated_seconds - (draft.now - began))
    row = BidRow(placement=Placement(devices=count), remaining_seconds=left)
    return StandingBid(rows=(row,), end_is_unknown=job.stated_seconds is None)


@dataclass(frozen=True, slots=True)
class Stakes:
    """Which held devices are in an auction, by job."""

    at_stake: Mapping[str, tuple[str, ...]]

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(device for devices in self.at_stake.values() for device in devices)


def ended_terms(draft: Draft) -> Stakes:
    """Everything whose term has ended, apart from visits, stated times and what is being left."""
    stakes: dict[str, list[str]] = {}
    for lease in draft.books.open_leases():
        if lease.visit or lease.end_reason or lease.term_ends_at > draft.now:
            continue
        if draft.books.jobs[lease.job].resume is Resume.NEVER:
            continue
        held = [h.device for h in draft.books.holdings_of(lease.id) if h.state == "held"]
        stakes.setdefault(lease.job, []).extend(held)
    return Stakes({job: tuple(sorted(devices)) for job, devices in stakes.items() if devices})


def beyond_share(draft: Draft, *, for_visit: bool) -> Stakes:
    """What elastic holders have beyond their share and have repaid, newest devices first."""
    books = draft.books
    shares = current_shares(books.live_jobs(), books.accounts, books.healthy_devices)
    surplus: dict[str, tuple[str, ...]] = {}
    above: dict[str, float] = {}
    for job in books.live_jobs():
        held = [h for h in books.active_of(job.id) if h.state == "held"]
        excess = len(held) - shares[job.id]
        if excess <= _SHARE_SLACK or job.resume is not Resume.ELASTIC or not is_repaid(draft, job):
            continue
        if any(books.leases[h.lease].visit for h in held) or books.claims_of(job.id):
            continue
        above[job.id] = len(held) / max(shares[job.id], _SHARE_SLACK)
        most = math.ceil(excess - _SHARE_SLACK) if for_visit else math.floor(excess + _SHARE_SLACK)
        whole = _giveable(draft, job, len(held), most, for_visit=for_visit)
        if whole:
            surplus[job.id] = tuple(sorted(h.device for h in newest_first(books, held)[:whole]))
    if for_visit and surplus:
        furthest = max(surplus, key=lambda job: (above[job], -books.jobs[job].number))
        return Stakes({furthest: surplus[furthest]})
    return Stakes(surplus)


def _giveable(draft: Draft, job: Job, held: int, most: int, *, for_visit: bool) -> int:
    """The largest number of devices up to `most` that a job can give and still run; for a visit else all."""
    allowed = allowed_counts(job, len(draft.books.devices))
    rest = [held - n for n in range(most, 0, -1) if held - n in allowed]
    if rest:
        return held - rest[0]
    return held if for_visit else 0


def free_devices(draft: Draft) -> list[str]:
    """Devices that can be awarded at once, sorted."""
    books = draft.books
    return sorted(
        device
        for device in books.idle_devices()
        if books.devices[device].sick_at is None or is_free(books, device, draft.now, draft.options)
    )


def build_market(draft: Draft, trigger: Trigger, stakes: Stakes, contenders: Iterable[Job]) -> Market:
    """One auction's question."""
    books = draft.books
    holders = {device: job for job, devices in stakes.at_stake.items() for device in devices}
    seats = sorted([*free_devices(draft), *holders])
    tells_models = len({device.model for device in books.devices.values()}) > 1
    known = tuple(_contender(draft, job, stakes, tells_models=tells_models) for job in contenders)
    kept = sorted({device for contender in known for device in contender.kept})
    doubtful = {device.node for device in books.devices.values() if device.sick_at is not None}
    return Market(
        number=books.broker.next_auction,
        trigger=trigger,
        seats=tuple(_seat(books, device, holders.get(device), doubtful) for device in seats),
        kept_seats=tuple(_seat(books, device, None, doubtful) for device in kept),
        contenders=known,
        total_devices=books.healthy_devices,
        reserved_for=dict(books.agenda.reserve),
        options=draft.ctx.fairness,
    )


def _seat(books: Books, device_id: str, holder: str | None, doubtful: Collection[str]) -> Seat:
    device = books.devices[device_id]
    return _make_seat(device_id, device.node, device.model, holder, device.node in doubtful)


@lru_cache(maxsize=2**17)
def _make_seat(device: str, node: str, model: str, holder: str | None, doubtful: bool) -> Seat:
    """The same seats are written in auction after auction."""
    return Seat(device=device, node=node, model=model, holder=holder, doubtful=doubtful)


def _contender(draft: Draft, job: Job, stakes: Stakes, *, tells_models: bool) -> Contender:
    books, now = draft.books, draft.now
    at_stake = stakes.at_stake.get(job.id, ())
    account, pulse = books.accounts[job.account], books.job_pulses.get(job.id)
    is_metered = pulse is not None and job.bid is not None and not job.bid.end_is_unknown
    meter = pulse.meter if pulse is not None and is_metered else Meter()
    record = account.claims if is_metered and job.bid is not None else TrackRecord()
    sigma = meter.sigma_log
    if sigma is None and record.weight:
        sigma = _doubted(job, record.spread_log)
    return Contender(
        job=job.id,
        number=job.number,
        account=job.account,
        account_weight=account.weight,
        priority=job.priority,
        min_devices=job.min_devices,
        max_devices=job.max_devices,
        allowed_devices=allowed_counts(job, len(books.devices)),
        resume=job.resume,
        bid=standing_bid(draft, job),
        age_seconds=age_seconds(job, now),
        fraction_done=pulse.fraction_done if pulse else job.fraction_done,
        share=share_over_life(books, job, now),
        kept=kept_devices(books, job.id, at_stake),
        at_stake=at_stake,
        last_devices=job.last_devices,
        may_move=is_repaid(draft, job),
        waiting_seconds=max(0.0, now - job.waiting_since) if job.waiting_since is not None else 0.0,
        passed_over=job.passed_over,
        quota_left=quota_left(books, job.account),
        wanted_devices=job.wanted_devices,
        claim_factor=meter.factor,
        claim_factors=record.factors(job.bid.rows if job.bid else ()),
        claim_paces=meter.paces,
        claim_sigma_log=sigma,
        ran_device_seconds=device_seconds_by_model(books, job.id, now) if tells_models else {},
    )


def _doubted(job: Job, spread_log: float) -> float:
    """How sure unproven times are: as its account's were, or less if the job says so."""
    return max(spread_log, *(row.sigma_log for row in job.bid.rows)) if job.bid else spread_log


def kept_devices(books: Books, job_id: str, at_stake: Iterable[str]) -> tuple[str, ...]:
    """What a job has or is about to have that is not in this auction, sorted."""
    held = {h.device for h in books.active_of(job_id) if h.state == "held"}
    claimed = {claim.device for claim in books.claims_of(job_id)}
    return tuple(sorted((held | claimed) - set(at_stake)))


def quota_left(books: Books, account: str) -> int | None:
    """Further devices an account may hold; None: no limit."""
    limit = books.accounts[account].max_devices
    if limit is None:
        return None
    used = sum(len(kept_devices(books, job.id, ())) for job in books.live_jobs_of(account))
    return max(0, limit - used)


def keep_all(market: Market) -> dict[str, tuple[str, ...]]:
    """The awards that change nothing."""
    return {c.job: (*c.kept, *c.at_stake) for c in market.contenders}
