"""What the supervisor should be running on: a function of the negotiation's state and the time.

A deadline so needs nobody awake. A supervisor that was stopped for an hour asks, and gets
nothing to run on, whatever threads and messages are late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfsched.core.device_choice import Choice, choose
from selfsched.core.held_leases import NEVER, ends_at, leave_by, usable
from selfsched.core.negotiation_state import Ending, Negotiation
from selfsched.protocol import LeasedDevice


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the job should be running on."""

    devices: tuple[LeasedDevice, ...] = ()
    reason: str = ""
    leave_by: float = NEVER
    lease_ends_at: float = NEVER
    ending: Ending | None = None


def allowed_devices(state: Negotiation) -> tuple[int, ...]:
    """Device counts the job can run on, as far as is known."""
    known = state.facts.allowed_devices
    return known or tuple(range(state.terms.min_devices, state.terms.max_devices + 1))


def given_back(state: Negotiation) -> frozenset[tuple[str, str]]:
    """(lease, device) of every release that was decided and is not forgotten yet."""
    return frozenset(
        (release.effect.lease, device)
        for release in state.releases
        for device in release.effect.message.devices
    )


def choice(state: Negotiation, now: float) -> Choice:
    """Which of the leased devices to run on at this moment."""
    if state.ending is not None or order_of(state) != "go_on":
        return Choice()
    waiting_since = min(state.busy_since.values(), default=now)
    return choose(
        usable(state.leases, now, given_back=given_back(state), broker_is_away=state.contact.is_away),
        running=state.running,
        ready=state.held | state.free,
        allowed=allowed_devices(state),
        allowed_is_known=state.facts.allowed_devices is not None,
        waited_seconds=now - waiting_since if state.busy_since else 0.0,
    )


def wanted(state: Negotiation, now: float) -> Wanted:
    """What the job should be running on: a function of the state and the time alone."""
    chosen = choice(state, now)
    devices = chosen.devices if state.running or now >= state.start_at else ()
    used = state.running or tuple(device.id for device in devices)
    return Wanted(
        devices=devices,
        reason=reason(state, chosen, now),
        leave_by=_leave_by(state, {device.id for device in devices}),
        lease_ends_at=min(ends_at(state.leases, used), _gone_by(state, used)),
        ending=state.ending,
    )


def order_of(state: Negotiation) -> Literal["go_on", "pause", "stop"]:
    """What the broker last ordered."""
    return state.instructions.order if state.instructions is not None else "go_on"


def _gone_by(state: Negotiation, used: tuple[str, ...]) -> float:
    return state.gone_by if any(leave_by(state.leases, device) is None for device in used) else NEVER


def _leave_by(state: Negotiation, kept: set[str]) -> float:
    """When the running segment must be gone, if it is not wanted as it is."""
    instants = [state.order_by] if order_of(state) != "go_on" else []
    for device in state.running:
        if device not in kept:
            by = leave_by(state.leases, device)
            instants.append(state.gone_by if by is None else by)
    return min(instants, default=NEVER)


def reason(state: Negotiation, chosen: Choice, now: float) -> str:
    """Why the job has what it has, for people. Changes only when something does."""
    if state.ending is not None:
        return state.ending.reason
    if state.contact.failures >= 2:
        return _away_words(state, chosen, now)
    if state.job is None:
        return "asking the broker for devices"
    reasons = state.instructions.reasons if state.instructions is not None else ()
    if order_of(state) == "pause":
        return reasons[-1] if reasons else "paused by its owner"
    if chosen.awaits and not chosen.devices:
        return f"waiting until the last process on {', '.join(chosen.awaits)} is gone"
    return reasons[-1] if reasons else "waiting for devices"


def _away_words(state: Negotiation, chosen: Choice, now: float) -> str:
    because = state.contact.words
    if chosen.devices:
        return f"{because}; the training goes on while its lease lasts"
    if any(now >= lease.ends_at - lease.lead_seconds for lease in state.leases):
        return f"{because}; its lease has run out, so the job waits for the broker with its checkpoint"
    return f"{because}; waiting for it"
