"""What is due after each event: releases, probes, a registration, a report.

Each question is asked anew from the state, in this order, so that an effect that was lost
is asked for again. Nothing here depends on which event came.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from selfsched.core.held_leases import NEVER, HeldLease
from selfsched.core.negotiation_state import (
    Effect,
    Negotiation,
    OpenReport,
    PendingRelease,
    Probe,
    Register,
    Release,
    Report,
    Told,
)
from selfsched.core.reporting import (
    LEAST_GAP_SECONDS,
    LEAST_WIDTH,
    MOST_WIDTH,
    NEWS_GAP_SECONDS,
    STATISTICS_SECONDS,
    WORTH_INTERRUPTING,
    WORTH_SENDING,
    bid_change,
    unmeasured_bid,
    wait_seconds,
)
from selfsched.core.wanted import allowed_devices, choice, given_back, order_of
from selfsched.protocol import JobReport, JobState, ReleaseDevices, StandingBid

BUSY_GIVE_UP_SECONDS = 30.0
"""A granted device whose lock stays taken so long goes back."""
STALE_SECONDS = 2.0
"""A device found free and not started on for so long is looked at again."""
MOST_OPEN_REPORTS = 3


def due(state: Negotiation, now: float) -> tuple[Negotiation, tuple[Effect, ...]]:
    """Everything that is to be done at this moment, and the state in which it is under way."""
    effects: list[Effect] = []
    for question in (_due_releases, _due_probe, _due_registration, _due_report):
        state, asked = question(state, now)
        effects.extend(asked)
    return state, tuple(effects)


def ends_at_of(state: Negotiation) -> float:
    """When the first of the job's leases ends by its own count; infinity when it has none."""
    return min((lease.ends_at for lease in state.leases), default=NEVER)


def _due_releases(state: Negotiation, now: float) -> tuple[Negotiation, list[Effect]]:
    for lease, devices, why in _to_release(state, now):
        key = f"release-{state.job}-{state.terms.incarnation}-{state.release_count + 1}"
        message = ReleaseDevices(
            fence=lease.fence, devices=devices, reason=why, checkpoint_step=state.checkpoint_step
        )
        new = PendingRelease(effect=Release(lease.lease, key, message))
        state = replace(
            state, releases=(*state.releases, new), release_count=state.release_count + 1
        )
    due = [r for r in state.releases if not r.is_open and not r.is_done and now >= r.try_at]
    opened = tuple(replace(r, is_open=True) if r in due else r for r in state.releases)
    return replace(state, releases=opened), [release.effect for release in due]


def _to_release(state: Negotiation, now: float) -> Iterator[tuple[HeldLease, tuple[str, ...], str]]:
    """What is leased, not run on, of no use any more, and not on its way back yet."""
    surplus = choice(state, now).surplus
    on_its_way = given_back(state)
    for lease in state.leases:
        whys: dict[str, list[str]] = {}
        for device in lease.devices:
            if device.id in state.running or (lease.lease, device.id) in on_its_way:
                continue
            why = _why_release(state, lease, device.id, device.id in surplus, now)
            if why:
                whys.setdefault(why, []).append(device.id)
        for why, devices in whys.items():
            yield lease, tuple(devices), why


def _why_release(state: Negotiation, lease: HeldLease, device: str, surplus: bool, now: float) -> str:
    if device in lease.leave:
        return "left as ordered"
    if order_of(state) != "go_on":
        return f"left by order of its owner: {order_of(state)}"
    if now - state.busy_since.get(device, now) >= BUSY_GIVE_UP_SECONDS:
        return "granted, but another process holds its lock"
    if surplus:
        counts = ", ".join(map(str, allowed_devices(state)))
        return f"more than the job can use: only {counts} devices keep its global batch"
    return ""


def _due_probe(state: Negotiation, now: float) -> tuple[Negotiation, list[Effect]]:
    known = state.held | state.free
    if not state.running and now >= state.probe_at + STALE_SECONDS:
        known = state.held  # nothing was started: somebody else may have been quicker
    unknown = tuple(
        device.id
        for lease in state.leases
        for device in lease.devices
        if device.id not in lease.leave and device.id not in known
    )
    if not unknown or state.is_probing or now < state.probe_at or state.ending is not None:
        return state, []
    return replace(state, is_probing=True), [Probe(unknown)]


def _due_registration(state: Negotiation, now: float) -> tuple[Negotiation, list[Effect]]:
    due = state.job is None and not state.is_registering and now >= state.contact.try_at
    if not due or state.ending is not None:
        return state, []
    return replace(state, is_registering=True), [Register(state.attempt)]


def _due_report(state: Negotiation, now: float) -> tuple[Negotiation, list[Effect]]:
    if state.job is None or now < state.last_sent_at + LEAST_GAP_SECONDS:
        return state, []
    if len(state.open_reports) >= MOST_OPEN_REPORTS or now < state.contact.try_at:
        return state, []
    idle = not state.open_reports and now >= state.report_at
    if not idle and now < state.last_sent_at + _news_gap(state, now):
        return state, []
    return _report(state, state.job, now)


def _news_gap(state: Negotiation, now: float) -> float:
    """How soon after the last report the news that there are deserve another."""
    told, facts = state.told, state.facts
    change = bid_change(told.bid, facts.bid, now - told.bid_at)
    if (
        state.wants_answer
        or told.state is not job_state(state, now)
        or told.running != state.running
        or (facts.allowed_devices is not None and told.allowed_devices != facts.allowed_devices)
        or change == NEVER
    ):
        return LEAST_GAP_SECONDS
    return NEWS_GAP_SECONDS if change > WORTH_INTERRUPTING else NEVER


def job_state(state: Negotiation, now: float) -> JobState:
    """The word for what the job is doing."""
    if not state.running:
        return JobState.PAUSED if order_of(state) == "pause" else JobState.WAITING
    if {device.id for device in choice(state, now).devices} != set(state.running):
        return JobState.YIELDING
    return JobState.RUNNING if state.facts.is_stepping else JobState.STARTING


def _report(state: Negotiation, job: str, now: float) -> tuple[Negotiation, list[Effect]]:
    told, facts = state.told, state.facts
    bid: StandingBid | None = facts.bid or (None if told.bid else unmeasured_bid(allowed_devices(state)))
    if bid_change(told.bid, bid, now - told.bid_at) <= WORTH_SENDING:
        bid = None
    allowed = facts.allowed_devices if facts.allowed_devices != told.allowed_devices else None
    counts = bool(facts.statistics) and now - told.statistics_at >= STATISTICS_SECONDS
    instructions = state.instructions
    asked = instructions.next_report_seconds if instructions is not None else 0.0
    at_once = state.wants_answer or state.contact.is_away
    wait = 0.0 if at_once else wait_seconds(asked, ends_at_of(state) - now)
    report = JobReport(
        incarnation=state.terms.incarnation,
        sequence=state.sequence + 1,
        state=job_state(state, now),
        step=facts.step,
        planned_steps=facts.planned_steps,
        fraction_done=facts.fraction_done,
        steady_steps=facts.steady_steps,
        devices_in_use=state.running,
        notice_seconds=facts.notice_seconds,
        idle_seconds=facts.idle_seconds,
        leases=tuple(lease.reference for lease in state.leases) if state.states_leases else (),
        bid=bid,
        allowed_devices=allowed,
        statistics=facts.statistics if counts else (),
        forecast=facts.forecast,
        forecast_width=min(max(facts.forecast_width, LEAST_WIDTH), MOST_WIDTH),
        wait_seconds=wait,
        seen=instructions.version if instructions is not None else 0,
    )
    told = Told(
        bid=bid or told.bid,
        bid_at=now if bid else told.bid_at,
        allowed_devices=facts.allowed_devices,
        statistics_at=now if counts else told.statistics_at,
        state=report.state,
        running=state.running,
    )
    opened = OpenReport(sequence=report.sequence, sent_at=now, wait_seconds=wait)
    state = replace(
        state,
        sequence=report.sequence,
        open_reports=(*state.open_reports, opened),
        last_sent_at=now,
        wants_answer=False,
        told=told,
    )
    return state, [Report(job, report)]
