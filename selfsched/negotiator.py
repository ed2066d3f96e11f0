"""The `AllocationSource` that speaks with a broker, in threads of the supervisor.

It performs and decides nothing: `core.negotiation` is told what happened and says what to do.

- The *supervisor's thread* calls the methods of the contract. They change the state under a
  lock for microseconds, or put something into the worker's inbox. `wanted` reads the newest
  state and the clock, and needs no other thread to be awake.
- The *worker* drains rank events into the job's model, learns facts, lets time pass.
- Each *call* to the broker has a thread of its own (there are at most a few, each bounded by
  the client's time-outs), so that a broker that hangs delays nothing but that call.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import re
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from selfsched.client import NO_BROKER
from selfsched.core import negotiation
from selfsched.core.events import RankRaised, StepsTimed
from selfsched.core.hardware_figures import FiguresDue
from selfsched.core.held_leases import Safety
from selfsched.core.negotiation_state import (
    CallFailed,
    DevicesProbed,
    DevicesReleased,
    Effect,
    Event,
    FactsLearned,
    Instructed,
    Probe,
    Register,
    Registered,
    Release,
    Report,
    SegmentEnded,
    SegmentStarted,
    Terms,
    TimePassed,
    Trouble,
)
from selfsched.core.reporting import JobFacts
from selfsched.core.wanted import allowed_devices, wanted
from selfsched.elastic.allocation import Allocation, Device, SegmentEnd
from selfsched.elastic.job import JobDescription
from selfsched.elastic.segment import boottime
from selfsched.errors import BrokerError, BrokerUnreachable, LeaseLost, NotAllowed, Refused
from selfsched.job_record import LEAVING_SECONDS, JobRecord
from selfsched.launch.locks import MachineLocks
from selfsched.private_broker import BrokerAccess, find_broker
from selfsched.protocol import (
    EndJob,
    ForecastScores,
    Instructions,
    Outcome,
    ProblemCode,
    ProcessOnNode,
    RegisterJob,
    Resume,
)
from selfsched.settings import Settings, load

_TICK_SECONDS = 0.1
_FACTS_EVERY_SECONDS = 0.5
_SAVE_EVERY_SECONDS = 5.0
_END_SECONDS = 4.0
_MOST_NEWS = 16
_STATED_SECONDS = 4 * 3600.0
"""For a program that cannot be moved and says nothing of its time; the broker's own cap."""

log = logging.getLogger(__name__)


class FreeLocks(Protocol):
    """How it is found out whether a device is free."""

    def is_free(self, device_id: str) -> bool:
        """Whether nobody holds the device at this moment."""


class Negotiator:
    """Gets devices from a broker for one job.

    Args:
        settings: as read; None: read when the job starts.
        access: how the broker is found and reached; None: as the settings say.
        locks: of this machine.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        access: BrokerAccess | None = None,
        locks: FreeLocks | None = None,
    ) -> None:
        self._settings = settings
        self._given_access = access
        self._given_locks = locks
        self._lock = threading.Lock()
        self._inbox: queue.SimpleQueue[Callable[[JobRecord, float], None] | None] = queue.SimpleQueue()
        self._key = uuid.uuid4().hex
        self._worker: threading.Thread | None = None
        self._is_over = False
        self._status: str | None = None
        self._shown: Any = None
        self._first_reason = ""
        self._news: deque[str] = deque(maxlen=_MOST_NEWS)
        self._figures_due = FiguresDue()
        self._trained_on: set[int] = set()
        """Device counts on which steps were made."""

    # --- the contract ------------------------------------------------------------------

    def start(self, job: JobDescription, wake: Callable[[], None]) -> None:
        """Find the broker, register, and begin to negotiate. See `AllocationSource.start`."""
        settings = self._settings or load(unknown="ignore", broker=job.broker)
        self._job, self._wake = job, wake
        self._access = self._given_access or find_broker(settings)
        self._locks = self._given_locks or MachineLocks(settings.lock_dir)
        self._message = registration(job, settings)
        self._record = JobRecord(job, self._message.name)
        terms = Terms(
            incarnation=time.time_ns() // 1_000_000,
            min_devices=self._message.min_devices,
            max_devices=self._message.max_devices,
            safety=Safety(margin_seconds=settings.margin_seconds),
            phase=int(hashlib.sha256(self._key.encode()).hexdigest()[:8], 16) / 2**32,
        )
        # Until the model has seen a step, a leave takes at least what any leave takes.
        unknown = JobFacts(notice_seconds=LEAVING_SECONDS)
        self._state = replace(negotiation.begin(terms, boottime()), facts=unknown)
        self._register_first()
        self._worker = threading.Thread(target=self._work, name="selfsched-negotiator", daemon=True)
        self._worker.start()

    def _register_first(self) -> None:
        """Register where the broker can be reached, so that what can never run is refused now.

        Raises:
            Refused: the broker says that it can never run, or what answers is no broker.
            NotAllowed: it does not accept who we are.
        """
        self._state, effects = negotiation.step(self._state, TimePassed(), boottime())
        for effect in effects:
            event = self._call(effect)
            if isinstance(event, CallFailed) and event.trouble in ("refused", "no_broker"):
                raise Refused(event.words)
            if isinstance(event, CallFailed) and event.trouble == "not_allowed":
                raise NotAllowed(event.words)
            self._took(event)

    def wanted(self, now: float) -> Allocation:
        """The allocation as of this moment, from the newest state and the clock alone."""
        chosen = wanted(self._state, now)
        return Allocation(
            devices=chosen.devices,
            reason=self._introduced(chosen.reason),
            leave_by=chosen.leave_by,
            lease_ends_at=chosen.lease_ends_at,
            ends_because=chosen.ending.reason if chosen.ending else None,
            outcome=chosen.ending.outcome if chosen.ending else Outcome.CANCELLED,
        )

    def _introduced(self, reason: str) -> str:
        """A reason; the first one says how the broker was found."""
        self._first_reason = self._first_reason or reason
        introduction = self._access.introduction if reason == self._first_reason else ""
        return f"{reason} ({introduction})" if introduction else reason

    def handle(self, event: Any) -> None:
        """Hand an event of a rank to the worker; a job that does not fit any more is helped at once."""
        devices = len(self._state.running)
        if isinstance(event, StepsTimed) and event.timings:
            self._trained_on.add(devices)
        elif (
            isinstance(event, RankRaised)
            and event.out_of_memory
            and devices < max(self._trained_on, default=0)
        ):
            # Known before the segment is closed, so that its devices are not started on again.
            known = tuple(count for count in allowed_devices(self._state) if count > devices)
            self._feed(FactsLearned(replace(self._state.facts, allowed_devices=known)))
            self._later(lambda record, now: record.ran_out_of_memory(devices))
        self._later(lambda record, now: record.event(event, now))

    def segment_started(self, ordinal: int, devices: tuple[Device, ...]) -> None:
        """The supervisor starts a segment."""
        self._feed(SegmentStarted(tuple(device.id for device in devices)))
        reasons = self._state.instructions.reasons if self._state.instructions else ()
        why = reasons[-1] if reasons else ""
        self._later(lambda record, now: record.segment_started(ordinal, devices, why, now))

    def segment_ended(self, end: SegmentEnd) -> None:
        """The segment's processes are gone."""
        left = frozenset(device.id for device in end.left)
        self._feed(SegmentEnded(left, end.reason == "never_started", end.checkpoint_step))
        self._later(lambda record, now: record.segment_ended(end, now))

    def status_line(self) -> str | None:
        """The predicted finish, and what is wrong with the broker, in a few words."""
        contact = self._state.contact
        away = "the broker does not answer" if contact.failures >= 2 else None
        return "; ".join(part for part in (self._status, away) if part) or None

    def end(self, outcome: Outcome, reason: str) -> None:
        """Stop negotiating, write the history, tell the broker. At most 5 s."""
        if self._worker is None or self._is_over:
            return
        self._is_over = True
        self._inbox.put(None)
        self._worker.join(timeout=1.0)
        now = boottime()
        self._record.finish(str(outcome), now)
        self._say_goodbye(self._record.last_word(outcome, reason, now))
        self._access.close()

    def _say_goodbye(self, message: EndJob) -> None:
        job = self._state.job
        give_up_at = boottime() + _END_SECONDS
        while job is not None and boottime() < give_up_at:
            try:
                self._access.client().end(job, message, key=f"end-{job}-{self._key}")
            except BrokerUnreachable:
                time.sleep(0.2)  # its leases end by themselves when this fails
            except BrokerError as error:
                log.info("the broker did not take the end of %s: %s", job, error)
                return
            else:
                return

    # --- events and effects --------------------------------------------------------------

    def _later(self, what: Callable[[JobRecord, float], None]) -> None:
        self._inbox.put(what)

    def _feed(self, event: Event) -> None:
        """Take in an event; what follows from it is begun in threads of its own."""
        now = boottime()
        with self._lock:
            self._state, effects = negotiation.step(self._state, event, now)
            chosen = wanted(self._state, now)
        for effect in () if self._is_over else effects:
            threading.Thread(
                target=self._perform, args=(effect,), name="selfsched-call", daemon=True
            ).start()
        shown = (tuple(device.id for device in chosen.devices), chosen.ending)
        if shown != self._shown:
            self._shown = shown
            self._wake()

    def _perform(self, effect: Effect) -> None:
        try:
            event = self._call(effect)
        except Exception as error:
            # The outermost frame of a thread: a mistake of ours is a call that failed, no more.
            log.exception("a call to the broker went wrong")
            event = self._failure(effect, BrokerError(f"a mistake in selfsched itself: {error!r}"))
        if self._is_over:
            return
        self._took(event)
        if isinstance(event, CallFailed) and event.trouble == "unreachable":
            self._access.revive()

    def _took(self, event: Event) -> None:
        """Take in what came of a call, and note it in the record."""
        self._feed(event)
        if isinstance(event, Registered):
            self._note_registered(event)
        if isinstance(event, Registered | Instructed):
            self._note(event.instructions)

    def _call(self, effect: Effect) -> Event:
        """Perform an effect; the event that came of it. Never raises what a broker can cause."""
        sent_at = boottime()
        try:
            client = self._access.client()
            match effect:
                case Probe(devices):
                    return self._probe(devices)
                case Register(attempt):
                    answer = client.register(self._message, key=f"{self._key}-{attempt}")
                    self._note_scores(answer.forecast_scores)
                    return Registered(answer.job, answer.instructions, sent_at)
                case Report(job, report):
                    return Instructed(client.report(job, report), report.sequence, sent_at)
                case Release(lease, key, message):
                    client.release(lease, message, key=key)
                    return DevicesReleased(key)
        except (BrokerError, Refused) as error:
            return self._failure(effect, error)

    def _probe(self, devices: tuple[str, ...]) -> Event:
        free = frozenset(device for device in devices if self._is_free(device))
        return DevicesProbed(free=free, busy=frozenset(devices) - free)

    def _is_free(self, device: str) -> bool:
        try:
            return self._locks.is_free(device)
        except Refused as error:  # no lock directory, or one that is not ours to use
            log.warning("%s", error)
            return False

    def _failure(self, effect: Effect, error: BrokerError | Refused) -> CallFailed:
        trouble, outcome = trouble_of(error), None
        if isinstance(effect, Report):
            if trouble == "job_ended":
                outcome = self._outcome_of(effect.job)
            return CallFailed("report", trouble, str(error), sequence=effect.report.sequence, outcome=outcome)
        if isinstance(effect, Release):
            return CallFailed("release", trouble, str(error), key=effect.key)
        return CallFailed("register", trouble, str(error))

    def _outcome_of(self, job: str) -> Outcome | None:
        try:
            return self._access.client().job(job).outcome
        except BrokerError:
            return None

    # --- the worker ----------------------------------------------------------------------

    def _note_registered(self, event: Registered) -> None:
        self._later(lambda record, now: record.registered(event.job, event.sent_at))

    def _note_scores(self, scores: ForecastScores | None) -> None:
        if scores is not None:
            self._later(lambda record, now: record.told_scores(scores))

    def _note(self, instructions: Instructions) -> None:
        self._later(lambda record, now: record.instructed(instructions, now))
        devices = frozenset(device.id for lease in instructions.leases for device in lease.devices)
        with self._lock:
            is_due = bool(devices) and self._figures_due.ask(devices, boottime())
        if is_due:
            self._fetch_prior(instructions.leases[0].devices[0].model)

    def _fetch_prior(self, hardware: str) -> None:
        """What other jobs taught the broker of this hardware; the documented figures do without."""
        try:
            prior = self._access.client().hardware_prior(hardware, job=self._state.job)
        except BrokerError as error:
            self._no_prior(hardware, error)
            return
        with self._lock:
            self._figures_due.came()
        self._later(lambda record, now: self._tell(record.told_of_hardware(hardware, prior)))

    def _no_prior(self, hardware: str, error: BrokerError) -> None:
        is_no_prior = isinstance(error, BrokerUnreachable) and error.code == NO_BROKER
        with self._lock:
            is_lasting = self._figures_due.failed(boottime())
        if is_no_prior or is_lasting:
            words = str(error)
            self._later(lambda record, now: self._tell(record.refused_figures(hardware, words)))

    def _tell(self, words: str | None) -> None:
        if words is not None:
            self._news.append(words)

    def news(self) -> tuple[str, ...]:
        """What is to be said to the user, once each."""
        told = []
        while self._news:
            told.append(self._news.popleft())
        return tuple(told)

    def _work(self) -> None:
        learn_at = save_at = 0.0
        while True:
            try:
                if not self._drain():
                    return
                now = boottime()
                if now >= learn_at:
                    self._feed(FactsLearned(self._record.facts(now)))
                    self._status = self._record.status_line()
                    learn_at = now + _FACTS_EVERY_SECONDS
                if now >= save_at:
                    self._record.save_history()
                    self._record.save_model()
                    save_at = now + _SAVE_EVERY_SECONDS
                self._feed(TimePassed())
            except Exception:
                # The outermost loop of a thread: the lease must be renewed whatever the model does.
                log.exception("the negotiator stumbled and goes on")
                learn_at = boottime() + 10 * _FACTS_EVERY_SECONDS

    def _drain(self) -> bool:
        """Take what is in the inbox, waiting a tick for the first; False when the run is over."""
        try:
            what = self._inbox.get(timeout=_TICK_SECONDS)
            while True:
                if what is None:
                    return False
                what(self._record, boottime())
                what = self._inbox.get_nowait()
        except queue.Empty:
            return True


def trouble_of(error: BrokerError | Refused) -> Trouble:
    """What an error of the client means to the negotiation."""
    if isinstance(error, BrokerUnreachable):
        return "no_broker" if error.code == NO_BROKER else "unreachable"
    if isinstance(error, LeaseLost):
        return "lease_lost"
    if isinstance(error, NotAllowed):
        return "not_allowed"
    if isinstance(error, Refused):
        return "refused"
    codes: dict[str, Trouble] = {ProblemCode.NOT_FOUND: "not_found", ProblemCode.JOB_ENDED: "job_ended"}
    return codes.get(error.code, "other")


def registration(job: JobDescription, settings: Settings) -> RegisterJob:
    """What the broker is told of a job.

    Raises:
        Refused: `min_devices` is larger than `max_devices`.
    """
    if job.min_devices > job.max_devices:
        raise Refused(f"min_devices ({job.min_devices}) is larger than max_devices ({job.max_devices})")
    stated = job.stated_seconds or _STATED_SECONDS
    return RegisterJob(
        name=_name_of(job, settings),
        min_devices=job.min_devices,
        max_devices=job.max_devices,
        resume=Resume.NEVER if job.fixed else Resume.ELASTIC,
        stated_seconds=stated if job.fixed else None,
        priority=job.priority,
        process=_this_process(),
    )


def _name_of(job: JobDescription, settings: Settings) -> str:
    name = job.name or settings.name or job.run_directory.name
    return _legal(name) or "job"


def _legal(text: str) -> str:
    """What of a text may stand in a name of the protocol."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text).lstrip("._-")[:64]


def _this_process() -> ProcessOnNode:
    with open("/proc/self/stat", "rb") as file:
        # After the name in brackets, which may hold anything: field 22 is the start time.
        started = int(file.read().rpartition(b")")[2].split()[19])
    node = _legal(socket.gethostname()) or "node"
    return ProcessOnNode(node=node, pid=os.getpid(), session=os.getsid(0), started=started)
