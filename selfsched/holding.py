"""Holding leases from inside the training process: what the plain callback does with a broker.

No supervisor stands between: the training sits on its devices already and cannot be moved
(`resume: never`). `Holder` looks at the broker's devices, registers the job for those it is
told to ask for, takes their locks once they are granted, keeps the lease alive by reports,
and says when it must be left. `core.negotiation` says what to do; this performs it, in one
thread for the clock and one for each call, so that the training never waits for the network.

What differs from a job under the supervisor: only the broker's *word* ends the training (an
order to leave, a stop, a pause). A broker that is away or that talks nonsense ends nothing,
not even after the lease's ttl: the process keeps the devices' locks and stands on the devices,
so that no broker finds them empty and leases them to another.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from selfsched.core import negotiation
from selfsched.core.held_leases import Safety
from selfsched.core.lease_news import LeaseNews, News, held_devices, waiting_words
from selfsched.core.negotiation_state import (
    CallFailed,
    DevicesProbed,
    DevicesReleased,
    Effect,
    Event,
    FactsLearned,
    Instructed,
    Negotiation,
    Probe,
    Register,
    Registered,
    Release,
    Report,
    SegmentStarted,
    Terms,
    TimePassed,
)
from selfsched.core.reporting import JobFacts, retry_seconds
from selfsched.core.visible_devices import Seats, taken, who_holds, why_not_free
from selfsched.core.wanted import wanted
from selfsched.elastic.segment import boottime
from selfsched.errors import BrokerError, BrokerUnreachable, Refused
from selfsched.launch.locks import DeviceLocks
from selfsched.negotiator import trouble_of
from selfsched.private_broker import BrokerAccess
from selfsched.protocol import (
    ClusterView,
    EndJob,
    LeasedDevice,
    Outcome,
    RegisterJob,
    ReleaseDevices,
)

_TICK_SECONDS = 0.1
_FACTS_EVERY_SECONDS = 1.0
_LOOK_EVERY_SECONDS = 5.0
_END_SECONDS = 4.0
_LONGEST_RETRY_SECONDS = 15.0

log = logging.getLogger(__name__)

Phase = Literal["asking", "away", "waiting", "held", "refused", "nothing"]
"""`away`: nobody has answered yet; `nothing`: the broker leases nothing that the training uses."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where the asking stands."""

    phase: Phase
    words: str = ""
    """Why, for people."""
    devices: tuple[LeasedDevice, ...] = ()
    """With `held`: those that are leased and locked."""
    held_by: str = ""
    """Who holds what was asked for; empty: no job does."""
    detail: str = ""
    """What the broker says of devices that no job holds and that it does not give."""
    confine: bool = False


class Holder:
    """The lease of one fit. Made and used by rank 0; methods may be called from any thread.

    Args:
        access: how the broker is reached.
        seats: what to ask for, from the broker's devices; None: nothing that it leases.
            It may raise `Refused`.
        registration: the message for these seats.
        locks: of this machine.
        margin_seconds: how long before a ttl's end the lease counts as over.
    """

    def __init__(
        self,
        access: BrokerAccess,
        *,
        seats: Callable[[ClusterView], Seats | None],
        registration: Callable[[Seats], RegisterJob],
        locks: DeviceLocks,
        margin_seconds: float = 5.0,
    ) -> None:
        self._access, self._locks = access, locks
        self._find_seats, self._registration = seats, registration
        self._safety = Safety(margin_seconds=margin_seconds)
        self._key = uuid.uuid4().hex
        self._phase = int(hashlib.sha256(self._key.encode()).hexdigest()[:8], 16) / 2**32
        self._changed = threading.Condition(threading.RLock())
        self._state: Negotiation | None = None
        self._seats: Seats | None = None
        self._message: RegisterJob | None = None
        self._cluster: ClusterView | None = None
        self._before: Standing = Standing(phase="asking", words="asking the broker")
        self._descriptors: dict[str, int] = {}
        self._facts = JobFacts()
        self._facts_at = 0.0
        self._news = LeaseNews()
        self._over = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="selfsched-holder", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def standing(self) -> Standing:
        """Where the asking stands at this moment."""
        with self._changed:
            state = self._state
            if state is None or self._seats is None:
                return self._before
            held = held_devices(state)
            if held:
                return Standing(phase="held", devices=held, confine=self._seats.confine)
            if state.ending is not None:
                return Standing(phase="refused", words=state.ending.reason)
            if state.job is None:
                away = state.contact.is_away
                return Standing(phase="away" if away else "asking", words=state.contact.words)
            view = self._cluster
            return Standing(
                phase="waiting",
                words=waiting_words(state, boottime()),
                held_by=who_holds(taken(self._seats, view)) if view else "",
                detail=why_not_free(self._seats, view) if view else "",
            )

    @property
    def news(self) -> deque[News]:
        """What is to be told; emptied by the training's thread."""
        return self._news.items

    @property
    def leave(self) -> str | None:
        """Why the training must leave its devices; None: it need not."""
        return self._news.leave

    def away_seconds(self) -> float:
        """How long the broker has been away; 0 when it answers."""
        with self._changed:
            return self._news.away_seconds(boottime())

    def wait(self, until: Callable[[Standing], bool], seconds: float) -> Standing:
        """Where it stands as soon as that satisfies `until`, at the latest after `seconds`."""
        give_up_at = time.monotonic() + seconds
        with self._changed:
            while True:
                standing = self.standing()
                left = give_up_at - time.monotonic()
                if until(standing) or left <= 0:
                    return standing
                # In slices: a wait for ever would not hear Ctrl-C on every platform.
                self._changed.wait(min(left, 0.5))

    @property
    def job(self) -> str | None:
        """The job's id at the broker."""
        state = self._state
        return state.job if state is not None else None

    def learn(self, facts: JobFacts) -> None:
        """What the job's model says now; the next report carries it."""
        with self._changed:
            self._facts, self._facts_at = facts, boottime()

    def close(self, outcome: Outcome, reason: str, checkpoint_step: int | None = None) -> None:
        """Give everything back and end the job. At most some seconds; said twice, it counts once."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            state = self._state
        self._over.set()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        if state is not None and state.job is not None and not state.contact.is_away:
            self._say_goodbye(state, EndJob(outcome=outcome, reason=reason[:2000]), checkpoint_step)
        self._access.close()
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def _say_goodbye(self, state: Negotiation, message: EndJob, checkpoint_step: int | None) -> None:
        give_up_at = time.monotonic() + _END_SECONDS
        client = self._access.client()
        assert state.job is not None
        while time.monotonic() < give_up_at:
            try:
                for lease in state.leases:
                    ids = tuple(device.id for device in lease.devices)
                    if not ids:
                        continue
                    release = ReleaseDevices(
                        fence=lease.fence, devices=ids, reason=message.reason, checkpoint_step=checkpoint_step
                    )
                    with suppress(Refused):
                        client.release(lease.lease, release, key=f"leave-{lease.lease}-{self._key}")
                client.end(state.job, message, key=f"end-{state.job}-{self._key}")
            except BrokerUnreachable:
                time.sleep(0.2)  # the lease ends by itself when this fails
            except (BrokerError, Refused) as error:
                log.info("the broker did not take the end of %s: %s", state.job, error)
                return
            else:
                return

    # --- the thread ----------------------------------------------------------------------

    def _work(self) -> None:
        try:
            if self._begin():
                self._go_on()
        except Exception as error:
            # The outermost loop of a thread: a mistake of ours must not end the training.
            log.exception("holding the lease went wrong")
            self._news.say(f"a mistake of selfsched ended the holding of its lease: {error!r}", warning=True)

    def _begin(self) -> bool:
        """Look at the broker's devices and begin to negotiate; False: there is nothing to ask for."""
        cluster = self._look_until_answered()
        if cluster is None:
            return False
        try:
            seats = self._find_seats(cluster)
            message = self._registration(seats) if seats is not None else None
        except Refused as error:
            self._stands(Standing(phase="refused", words=str(error)))
            return False
        if seats is None or message is None:
            self._stands(Standing(phase="nothing", words="the broker leases nothing that this training uses"))
            return False
        now = boottime()
        terms = Terms(
            incarnation=time.time_ns() // 1_000_000, min_devices=seats.count, max_devices=seats.count,
            safety=self._safety, phase=self._phase,
        )  # fmt: skip
        with self._changed:
            self._seats, self._message, self._cluster = seats, message, cluster
            self._state = negotiation.begin(terms, now)
            self._changed.notify_all()
        return True

    def _look_until_answered(self) -> ClusterView | None:
        failures = 0
        while not self._over.is_set():
            try:
                cluster = self._access.client().cluster()
            except (BrokerError, Refused) as error:
                failures += 1
                self._stands(Standing(phase="away", words=str(error)))
                self._news.away(str(error), holds=False)
            else:
                if cluster.devices:
                    return cluster
                failures += 1
                self._stands(Standing(phase="away", words="no node has reported to the broker yet"))
            pause = retry_seconds(failures, longest_seconds=_LONGEST_RETRY_SECONDS, phase=self._phase)
            self._over.wait(pause)
        return None

    def _stands(self, standing: Standing) -> None:
        with self._changed:
            self._before = standing
            self._changed.notify_all()

    def _go_on(self) -> None:
        learn_at = look_at = 0.0
        while not self._over.is_set():
            now = boottime()
            if now >= learn_at:
                learn_at = now + _FACTS_EVERY_SECONDS
                self._feed(FactsLearned(self._present_facts(now)))
            if now >= look_at and self.standing().phase == "waiting":
                look_at = now + _LOOK_EVERY_SECONDS
                self._look()
            self._feed(TimePassed())
            self._take_what_is_granted()
            with self._changed:
                assert self._state is not None
                self._news.look(self._state, boottime())
                if self._state.ending is not None:
                    return
            self._over.wait(_TICK_SECONDS)

    def _present_facts(self, now: float) -> JobFacts:
        with self._changed:
            facts = self._facts
            if facts.is_stepping:
                facts = replace(facts, idle_seconds=facts.idle_seconds + max(0.0, now - self._facts_at))
            count = self._seats.count if self._seats is not None else 1
            return replace(facts, allowed_devices=(count,))

    def _look(self) -> None:
        with suppress(BrokerError, Refused):
            cluster = self._access.client().cluster()
            with self._changed:
                self._cluster = cluster
                self._changed.notify_all()

    def _take_what_is_granted(self) -> None:
        """Lock what is leased and free, all of it or nothing."""
        with self._changed:
            assert self._state is not None
            state = self._state
            chosen = () if state.running else wanted(state, boottime()).devices
        if not chosen or self._closed:
            return
        taken_now: dict[str, int] = {}
        for device in chosen:
            if device.id in self._descriptors:
                continue
            try:
                descriptor = self._locks.take(device.id)
            except Refused as error:
                log.warning("%s", error)
                descriptor = None
            if descriptor is None:
                for opened in taken_now.values():
                    os.close(opened)
                return
            taken_now[device.id] = descriptor
        with self._changed:
            if self._closed:
                for opened in taken_now.values():
                    os.close(opened)
                return
            self._descriptors |= taken_now
        self._feed(SegmentStarted(tuple(device.id for device in chosen)))

    # --- events and effects --------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        with self._changed:
            if self._state is None or self._closed:
                return
            self._state, effects = negotiation.step(self._state, event, boottime())
            self._changed.notify_all()
        for effect in effects:
            threading.Thread(target=self._perform, args=(effect,), name="selfsched-call", daemon=True).start()

    def _perform(self, effect: Effect) -> None:
        try:
            event = self._call(effect)
        except Exception as error:
            # The outermost frame of a thread: a mistake of ours is a call that failed, no more.
            log.exception("a call to the broker went wrong")
            event = _failure(effect, BrokerError(f"a mistake in selfsched itself: {error!r}"))
        self._feed(event)
        if isinstance(event, CallFailed) and event.trouble == "unreachable" and not self._closed:
            self._access.revive()

    def _call(self, effect: Effect) -> Event:
        sent_at = boottime()
        client = self._access.client()
        try:
            match effect:
                case Probe(devices):
                    return self._probe(devices)
                case Register(attempt):
                    answer = client.register(self._message_now(), key=f"{self._key}-{attempt}")
                    return Registered(answer.job, answer.instructions, sent_at)
                case Report(job, report):
                    return Instructed(client.report(job, report), report.sequence, sent_at)
                case Release(lease, key, message):
                    client.release(lease, message, key=key)
                    return DevicesReleased(key)
        except (BrokerError, Refused) as error:
            return _failure(effect, error)

    def _message_now(self) -> RegisterJob:
        """Once it sits on devices a job asks for exactly these."""
        assert self._message is not None
        running = self._state.running if self._state is not None else ()
        return self._message.model_copy(update={"wanted_devices": running}) if running else self._message

    def _probe(self, devices: tuple[str, ...]) -> Event:
        free = set()
        for device in devices:
            with suppress(Refused):
                if device in self._descriptors or self._locks.is_free(device):
                    free.add(device)
        return DevicesProbed(free=frozenset(free), busy=frozenset(devices) - free)


def _failure(effect: Effect, error: BrokerError | Refused) -> CallFailed:
    trouble = trouble_of(error)
    if isinstance(effect, Report):
        return CallFailed("report", trouble, str(error), sequence=effect.report.sequence)
    if isinstance(effect, Release):
        return CallFailed("release", trouble, str(error), key=effect.key)
    return CallFailed("register", trouble, str(error))
