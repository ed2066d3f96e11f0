"""What a user is told of a lease that a training holds from inside, and when it must be left.

`LeaseNews` is shown the negotiation's state again and again and says each change once: the
lease is held, the broker is away and is back, the lease is lost, its end comes near. Only the
broker's word ends a training: an order to leave, a pause or a stop of its owner.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from selfsched.core.bidding import duration_words
from selfsched.core.negotiation_state import Negotiation
from selfsched.core.wanted import order_of, wanted
from selfsched.protocol import LeasedDevice, Outcome

WARNED_SECONDS = (600.0, 60.0)
"""Before the end of the lease's term."""


@dataclass(frozen=True)
class News:
    """Something to tell the user once."""

    words: str
    is_warning: bool = False


class LeaseNews:
    """Says each change of a lease once. Whoever prints takes from `items`.

    Not thread-safe, but for `items`.
    """

    def __init__(self) -> None:
        self.items: deque[News] = deque(maxlen=100)
        """What is to be told, the oldest first."""
        self.leave: str | None = None
        """Why the training must leave its devices; None: it need not."""
        self._reasons: tuple[str, ...] = ()
        """As they stood at the last look."""
        self._away_since: float | None = None
        self._said_away = False
        self._said_held = False
        self._said_lost = False
        self._ends_at = math.inf
        self._warned: set[float] = set()

    def look(self, state: Negotiation, now: float) -> None:
        """Say what changed.

        Args:
            state: of the negotiation.
            now: the job's clock.
        """
        contact = state.contact
        if not contact.is_away:
            self._away_since = None
        elif self._away_since is None:
            self._away_since = now
        if contact.failures >= 2 or (contact.is_away and state.job is None):
            self.away(contact.words, holds=bool(state.running))
        elif self._said_away and not contact.is_away and state.job is not None:
            self._said_away = False
            self.say("the broker answers again")
        self._look_at_lease(state, now)
        self._look_at_end(state, now)
        self.leave = self.leave or why_leave(state, self._reasons)
        self._reasons = _reasons(state)

    def away_seconds(self, now: float) -> float:
        """How long the broker has been away; 0 when it answers."""
        return now - self._away_since if self._away_since is not None else 0.0

    def away(self, words: str, *, holds: bool) -> None:
        """The broker did not answer."""
        if not self._said_away:
            self._said_away = True
            has = "keeps its devices' locks" if holds else "holds no lease yet"
            self.say(f"{words}. Training goes on and {has}; the broker is asked again.", warning=True)

    def say(self, words: str, *, warning: bool = False) -> None:
        """Tell the user."""
        self.items.append(News(words, warning))

    def _look_at_lease(self, state: Negotiation, now: float) -> None:
        if not state.running:
            return
        held = bool(held_devices(state))
        if held and not self._said_held:
            self._said_held = True
            self._ends_at = min(lease.term_ends_at for lease in state.leases)
            rest = self._ends_at - now
            self._warned |= {left for left in WARNED_SECONDS if rest <= left}
            names = ", ".join(state.running)
            self.say(f"holds {names} for {duration_words(rest)}, longer if nobody waits for it by then.")
        lost = not held and not state.contact.is_away and state.instructions is not None
        if lost and not self._said_lost and why_leave(state) is None:
            why = state.instructions.reasons[-1] if state.instructions and state.instructions.reasons else ""
            self.say(
                f"its lease is over ({why or 'the broker says so'}). Training goes on without one; it keeps "
                "its devices' locks.",
                warning=True,
            )
        self._said_lost = lost or (self._said_lost and not held)

    def _look_at_end(self, state: Negotiation, now: float) -> None:
        rest = self._ends_at - now
        for left in WARNED_SECONDS:
            if rest <= left and left not in self._warned:
                self._warned.add(left)
                self.say(
                    f"its lease ends in {duration_words(max(0.0, rest))}. If others wait then, this training "
                    "writes a checkpoint and stops.",
                    warning=True,
                )
        term_ends_at = min((lease.term_ends_at for lease in state.leases), default=0.0)
        if rest <= 0 and term_ends_at > now and self.leave is None:
            self._ends_at = math.inf
            self.say("its stated time is over; it goes on while nobody waits for its devices.")


def held_devices(state: Negotiation) -> tuple[LeasedDevice, ...]:
    """The devices that the training runs on, while all of them are leased; else none."""
    leased = {device.id: device for lease in state.leases for device in lease.devices}
    if not state.running or not leased.keys() >= set(state.running):
        return ()
    return tuple(leased[name] for name in state.running)


def waiting_words(state: Negotiation, now: float) -> str:
    """Why the job waits, and what the broker expects."""
    told = state.instructions.forecast if state.instructions is not None else None
    words = wanted(state, now).reason
    if told is None:
        return words
    likely, late = duration_words(told.p50_seconds), duration_words(told.p90_seconds)
    return f"{words}; the broker expects its end in {likely} (90 %: within {late})"


def why_leave(state: Negotiation, known: Sequence[str] = ()) -> str | None:
    """Why the broker wants the training to leave, in its words; None: it does not.

    Args:
        state: of the negotiation.
        known: reasons that stood there before the order: the first new one came with it, and
            what follows speaks of what the job waits for since.
    """
    reasons = _reasons(state)
    new = [reason for reason in reasons if reason not in known]
    why = (new or [*reasons[-1:], "the broker wants its devices back"])[0]
    if any(lease.leave.intersection(state.running) for lease in state.leases):
        return why
    if order_of(state) != "go_on":
        return why if reasons else f"told to {order_of(state)}"
    if state.ending is not None and state.job is not None and state.ending.outcome is Outcome.CANCELLED:
        return state.ending.reason
    return None


def _reasons(state: Negotiation) -> tuple[str, ...]:
    return state.instructions.reasons if state.instructions is not None else ()
