"""The job's side of the lease, as a pure state machine: (state, event, now) -> (state, effects).

Events say what happened: an answer or a failure of a call, a segment that started or ended,
devices found free or busy, new facts of the job's model, or just that time has passed.
Effects say what the shell is to do: register, report, release, look whether devices are
free. After every event `step` asks the same questions in the same order (what is overdue,
what must be released, what must be probed, is a report due), so an effect that was lost or
failed is simply asked for again, with the same key.

`wanted` answers the supervisor's one question from a state and the time alone. So a deadline
needs nobody awake: a supervisor that was stopped for an hour asks, and gets nothing to run on,
whatever threads and messages are late (`held_leases` has the rules of the deadline).

The broker's failures and what they mean:

=====================  ===================================================================
nobody answers         go on; ask again after growing waits; when the job's own deadline
                       comes near, leave with a checkpoint, wait, and go on when it is back
the lease is lost      state everything anew without leases; the answer says what remains
unknown job            register anew, under a new key (the broker lost its books)
a lower incarnation    the same: it counts its starts anew
the job was ended      lost while it made steps: register anew; else the run ends
a new incarnation      everything is told again, the bid too
=====================  ===================================================================
"""

from __future__ import annotations

from dataclasses import replace

from selfsched.core.duties import due, ends_at_of
from selfsched.core.held_leases import NEVER, Heard, HeldLease, leases_of, leave_by
from selfsched.core.negotiation_state import (
    CallFailed,
    Contact,
    DevicesProbed,
    DevicesReleased,
    Effect,
    Ending,
    Event,
    FactsLearned,
    Instructed,
    Negotiation,
    PendingRelease,
    Registered,
    SegmentEnded,
    SegmentStarted,
    Terms,
    TimePassed,
    Told,
)
from selfsched.core.reporting import (
    OVERDUE_SECONDS,
    retry_seconds,
    wait_seconds,
)
from selfsched.core.wanted import order_of
from selfsched.protocol import Instructions, JobState, Outcome

PROBE_SECONDS = 0.25
LONGEST_RETRY_SECONDS = 15.0
LONGEST_RETRY_WITH_LEASE_SECONDS = 2.0
LONGEST_START_PAUSE_SECONDS = 5.0
IDLE_LOST_SECONDS = 300.0
"""A job lost after it had made no step for so long was lost for that, and does not come back."""


def begin(terms: Terms, now: float) -> Negotiation:
    """The state before anything was said."""
    return Negotiation(terms=terms, started_at=now)


def step(state: Negotiation, event: Event, now: float) -> tuple[Negotiation, tuple[Effect, ...]]:
    """Take in an event and say what is to be done.

    Args:
        state: as of before.
        event: what happened.
        now: the job's clock, never going back.
    """
    return _advance(_take(state, event, now), now)


def _take(state: Negotiation, event: Event, now: float) -> Negotiation:
    match event:
        case TimePassed():
            return state
        case FactsLearned(facts):
            return replace(state, facts=facts)
        case Registered():
            return _registered(state, event, now)
        case Instructed():
            return _instructed(state, event, now)
        case CallFailed(call="report"):
            return _report_failed(state, event, now)
        case CallFailed(call="register"):
            return _register_failed(state, event, now)
        case CallFailed():
            return _release_failed(state, event, now)
        case DevicesReleased(key):
            return _settle(state, key)
        case DevicesProbed():
            return _probed(state, event, now)
        case SegmentStarted(devices):
            return _segment_started(state, devices)
        case SegmentEnded():
            return _segment_ended(state, event, now)


# --- answers -----------------------------------------------------------------------------


def _registered(state: Negotiation, event: Registered, now: float) -> Negotiation:
    state = replace(
        state,
        job=event.job,
        is_registering=False,
        registered_at=event.sent_at if state.registered_at is None else state.registered_at,
        contact=Contact(),
        told=Told(),
        instructions=None,
        instructions_sequence=state.sequence,
        report_at=now,
    )
    return _obey(state, event.instructions, event.sent_at, now)


def _instructed(state: Negotiation, event: Instructed, now: float) -> Negotiation:
    if event.instructions.job != state.job:
        return state  # of a registration that is over
    answered = next((r for r in state.open_reports if r.sequence == event.sequence), None)
    state = replace(
        state,
        # What was sent before has been overtaken; its answer may still come, and says nothing new.
        open_reports=tuple(r for r in state.open_reports if r.sequence > event.sequence),
        answered_sequence=max(state.answered_sequence, event.sequence),
        contact=Contact(),
        states_leases=True,
    )
    before, new = state.instructions, event.instructions
    newest = event.sequence > state.instructions_sequence
    if before is not None and new.incarnation < before.incarnation and newest:
        return _forgotten(state, now)  # it counts its starts anew: its books are not those it had
    if before is not None and (new.incarnation, new.version) < (before.incarnation, before.version):
        return state  # overtaken by a newer answer, or of a broker that is no more
    changed = before is None or (new.incarnation, new.version) != (before.incarnation, before.version)
    if before is not None and new.incarnation != before.incarnation:
        state = replace(state, told=Told(), wants_answer=True)
    sequence = max(state.instructions_sequence, event.sequence)
    state = _obey(replace(state, instructions_sequence=sequence), new, event.sent_at, now)
    if answered is None:
        return state
    if changed or now - event.sent_at >= 0.8 * answered.wait_seconds:
        return replace(state, report_at=now)
    # A broker that answers at once though nothing changed is not to be asked in a tight loop.
    pause = wait_seconds(new.next_report_seconds, ends_at_of(state) - now)
    return replace(state, report_at=state.last_sent_at + pause)


def _obey(state: Negotiation, new: Instructions, sent_at: float, now: float) -> Negotiation:
    """Take over the broker's whole word."""
    notice = min(state.facts.notice_seconds, new.max_notice_seconds)
    heard = Heard(sent_at=sent_at, received_at=now, notice_seconds=notice)
    before = state.leases
    leases = leases_of(new, before, heard, state.terms.safety)
    listed = {device.id for lease in leases for device in lease.devices}
    gone = [device for device in state.running if device not in listed]
    newly_gone = [end for device in gone if (end := leave_by(before, device)) is not None]
    ordered = new.order != "go_on" and order_of(state) != new.order
    state = replace(
        state,
        instructions=new,
        leases=leases,
        gone_by=min([state.gone_by, now + notice, *newly_gone]) if gone else NEVER,
        order_by=now + new.max_notice_seconds if ordered else state.order_by,
        free=state.free & listed,
        busy_since={d: since for d, since in state.busy_since.items() if d in listed},
        releases=tuple(r for r in state.releases if not r.is_done or _is_listed(r, leases)),
    )
    if new.order == "stop":
        return _end(state, new.reasons[-1] if new.reasons else "stopped by its owner", Outcome.CANCELLED)
    if new.state is JobState.ENDED:
        return _end(state, new.reasons[-1] if new.reasons else "ended by the broker", Outcome.CANCELLED)
    return state


def _is_listed(release: PendingRelease, leases: tuple[HeldLease, ...]) -> bool:
    return any(
        lease.lease == release.effect.lease
        and any(device.id in release.effect.message.devices for device in lease.devices)
        for lease in leases
    )


def _end(state: Negotiation, reason: str, outcome: Outcome) -> Negotiation:
    return state if state.ending else replace(state, ending=Ending(reason=reason, outcome=outcome))


# --- failures ----------------------------------------------------------------------------


def _away(state: Negotiation, words: str, now: float) -> Negotiation:
    """Count one more failure in a row; what was told may not have arrived."""
    failures = state.contact.failures + 1
    pressed = any(now < lease.ends_at for lease in state.leases)
    longest = LONGEST_RETRY_WITH_LEASE_SECONDS if pressed else LONGEST_RETRY_SECONDS
    try_at = now + retry_seconds(failures, longest_seconds=longest, phase=state.terms.phase)
    return replace(
        state,
        contact=Contact(failures=failures, words=words, try_at=try_at),
        report_at=try_at,
        told=Told(),
    )


def _report_failed(state: Negotiation, event: CallFailed, now: float) -> Negotiation:
    if not any(report.sequence == event.sequence for report in state.open_reports):
        return state  # counted as overdue already, or of a registration that is over
    remaining = tuple(report for report in state.open_reports if report.sequence != event.sequence)
    state = replace(state, open_reports=remaining)
    if event.trouble == "lease_lost" and state.states_leases:
        return replace(state, states_leases=False, wants_answer=True, told=Told())
    if event.trouble == "not_found":
        return _forgotten(state, now)
    if event.trouble == "job_ended":
        lost = event.outcome is Outcome.LOST
        if lost and state.facts.idle_seconds < IDLE_LOST_SECONDS:
            return _forgotten(state, now)
        return _end(state, event.words, Outcome.LOST if lost else event.outcome or Outcome.CANCELLED)
    if event.sequence < state.answered_sequence:
        return replace(state, told=Told())
    return _away(state, event.words, now)


def _forgotten(state: Negotiation, now: float) -> Negotiation:
    """The broker does not know the job (any more): nothing of what it granted stands."""
    notice = state.facts.notice_seconds
    ends = [end for device in state.running if (end := leave_by(state.leases, device)) is not None]
    return replace(
        state,
        job=None,
        attempt=state.attempt + 1,
        instructions=None,
        leases=(),
        gone_by=min([state.gone_by, now + notice, *ends]),
        open_reports=(),
        releases=(),
        free=frozenset(),
        busy_since={},
        told=Told(),
    )


def _register_failed(state: Negotiation, event: CallFailed, now: float) -> Negotiation:
    state = replace(state, is_registering=False)
    if event.trouble == "refused":
        return _end(state, event.words, Outcome.FAILED)
    return _away(state, event.words, now)


def _release_failed(state: Negotiation, event: CallFailed, now: float) -> Negotiation:
    if event.trouble in ("unreachable", "no_broker", "not_allowed", "other"):
        return replace(
            state,
            releases=tuple(
                _later(release, state, now) if release.effect.key == event.key else release
                for release in state.releases
            ),
        )
    # The lease is over on the other side: there is nothing left to give back.
    return replace(_settle(state, event.key), wants_answer=True)


def _later(release: PendingRelease, state: Negotiation, now: float) -> PendingRelease:
    failures = release.failures + 1
    pause = retry_seconds(
        failures, longest_seconds=LONGEST_RETRY_WITH_LEASE_SECONDS, phase=state.terms.phase
    )
    return replace(release, failures=failures, is_open=False, try_at=now + pause)


def _settle(state: Negotiation, key: str) -> Negotiation:
    settled = (
        replace(release, is_open=False, is_done=True) if release.effect.key == key else release
        for release in state.releases
    )
    return replace(state, releases=tuple(settled))


# --- devices -----------------------------------------------------------------------------


def _probed(state: Negotiation, event: DevicesProbed, now: float) -> Negotiation:
    listed = {device.id for lease in state.leases for device in lease.devices}
    busy = {device: state.busy_since.get(device, now) for device in event.busy & listed}
    return replace(
        state,
        free=(state.free | event.free & listed) - event.busy,
        busy_since={d: at for d, at in state.busy_since.items() if d not in event.free} | busy,
        is_probing=False,
        probe_at=now + PROBE_SECONDS,
    )


def _segment_started(state: Negotiation, devices: tuple[str, ...]) -> Negotiation:
    taken = frozenset(devices)
    return replace(
        state,
        running=devices,
        held=taken,
        free=state.free - taken,
        busy_since={d: since for d, since in state.busy_since.items() if d not in taken},
        facts=replace(state.facts, is_stepping=False),
    )


def _segment_ended(state: Negotiation, event: SegmentEnded, now: float) -> Negotiation:
    failed_starts = state.failed_starts + 1 if event.never_started else 0
    pause = min(LONGEST_START_PAUSE_SECONDS, 0.25 * 2.0 ** min(failed_starts, 10))
    return replace(
        state,
        running=(),
        held=state.held - event.left,
        free=state.free - event.left,
        gone_by=NEVER,
        failed_starts=failed_starts,
        start_at=now + pause if event.never_started else now,
        checkpoint_step=event.checkpoint_step,
    )


# --- what is due -------------------------------------------------------------------------


def _advance(state: Negotiation, now: float) -> tuple[Negotiation, tuple[Effect, ...]]:
    return due(_without_overdue(state, now), now)


def _without_overdue(state: Negotiation, now: float) -> Negotiation:
    for report in state.open_reports:
        if now >= report.sent_at + report.wait_seconds + OVERDUE_SECONDS:
            words = "the broker did not answer in time"
            late = CallFailed("report", "unreachable", words, sequence=report.sequence)
            state = _report_failed(state, late, now)
    return state
