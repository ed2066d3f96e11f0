"""The one pipeline of the broker: lock, decide, commit, apply, publish.

Every call that may change something goes through `Service.perform`; every look at the books
through `Service.look`. Decisions are the arbiter's, pure; here is only their order:

1. One at a time, under one lock. Duplicates of a call that is under way wait for it.
2. Decide. A `Refusal` changes nothing.
3. Commit what is durable, with the answer to the idempotency key in the same transaction. What
   is only true while somebody keeps saying it (renewals of a ttl, what a node last saw) never
   touches the disk: a full disk ends no lease.
4. Apply to the books in memory, answer, and tell listeners which topics changed.

A thread of its own drives time: it advances the books whenever something is due.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from selfsched.protocol import Instructions, JobReport, Message, ProblemCode
from selfsched_broker.clock import BrokerClock
from selfsched_broker.core import arbiter
from selfsched_broker.core.ahead.scene import take_scene
from selfsched_broker.core.books import (
    Answer,
    Books,
    Broker,
    Change,
    DevicePulse,
    Erase,
    Holding,
    Job,
    JobEvidence,
    JobPulse,
    LearnedPrior,
    LeasePulse,
    Node,
    PastForecast,
)
from selfsched_broker.core.draft import Context, Decision
from selfsched_broker.core.leases import LeaseOptions, Refusal
from selfsched_broker.core.look_ahead import Outlook
from selfsched_broker.core.market import FairnessOptions, Policy
from selfsched_broker.failpoint import Failpoint
from selfsched_broker.outlook import OutlookKeeper
from selfsched_broker.settling import Settler
from selfsched_broker.store.contract import Store, StoreFenced, StoreUnavailable, StoreUnusable

log = logging.getLogger(__name__)
A = TypeVar("A")
Listener = Callable[[frozenset[str]], None]
"""Called with the topics that changed, under the lock: it must return at once."""

CLUSTER = "cluster"
"""Topic: something that anyone may see of the cluster."""
LEFT = "devices left"
"""Topic: a device waits for its node's proof that it is empty."""
_ASIDE = (PastForecast, JobEvidence, LearnedPrior, Erase)
"""Nothing that is decided follows from them, and nobody waits for them."""
_LATER = (Broker, JobPulse, LeasePulse, Node, DevicePulse, *_ASIDE)
"""A sign of life only makes things due later: the driver of time need not look again for it."""
_RETRY_SECONDS = 1.0
_SHORTEST_PAUSE_SECONDS = 0.01


def instructions_topic(job: str) -> str:
    """Topic of what a job is told."""
    return f"instructions of {job}"


def job_topic(job: str) -> str:
    """Topic of what is seen of a job."""
    return f"view of {job}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A call that carries an idempotency key."""

    account: str
    key: str
    action: str
    """Method and path."""
    message: Message

    def hash(self) -> str:
        """Of all that makes it the same question."""
        return hashlib.sha256(f"{self.action}\n{self.message.to_json()}".encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """An answer that was given before."""

    status: int
    body: str


@dataclass(frozen=True, kw_only=True)
class Rules:
    """By what a service decides."""

    policy: Policy
    lease: LeaseOptions = field(default_factory=LeaseOptions)
    fairness: FairnessOptions = field(default_factory=FairnessOptions)
    seed: int = 0


class Service:
    """A broker without its network. All methods may be called from any thread.

    Args:
        store: where the books are kept; opened here.
        rules: by what it decides.
        failpoint: where it kills itself, in tests of that.
        monotonic: a clock of seconds that never goes back.

    Raises:
        StoreUnusable: see the store's contract.
    """

    def __init__(
        self,
        store: Store,
        rules: Rules,
        *,
        failpoint: Failpoint | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._rules = rules
        self._failpoint = failpoint or Failpoint()
        self._rng = np.random.default_rng(rules.seed)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._listeners: list[Listener] = []
        self._driver: threading.Thread | None = None
        self._stopping = False
        self._settler = Settler(self._record_payments)
        self._outlook: Outlook | None = None
        self._keeper = OutlookKeeper(lambda: self.look(take_scene), self._keep_outlook, monotonic=monotonic)
        self._fenced = ""
        self._trouble = ""
        self.books: Books = store.open()
        self.clock = BrokerClock(self.books.broker.clock, monotonic=monotonic)
        with self._lock:
            self._carry_out(arbiter.restart(self.books, self._context()))

    # --- life ------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to drive time."""
        self._driver = threading.Thread(target=self._drive, name="broker-time", daemon=True)
        self._driver.start()
        self._keeper.start()

    def close(self) -> None:
        """Stop driving time and close the store."""
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
        if self._driver is not None:
            self._driver.join()
        self._settler.close()
        self._keeper.close()
        self._store.close()

    def listen(self, listener: Listener) -> None:
        """Have a listener told of every change from now on."""
        with self._lock:
            self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Tell it no more."""
        with self._lock:
            self._listeners.remove(listener)

    @property
    def trouble(self) -> str:
        """Why nothing can be decided now; empty when all is well."""
        return self._fenced or self._trouble

    @property
    def fenced(self) -> str:
        """Who has taken the store over; empty while it is ours."""
        return self._fenced

    # --- calls -----------------------------------------------------------------------

    def perform(
        self,
        call: Callable[..., Decision[A]],
        *arguments: Any,  # of the arbiter's entry, checked where it is called
        question: Question | None = None,
        status: int = 200,
        **keywords: Any,
    ) -> A | Known:
        """Decide, commit, apply, publish.

        Args:
            call: an entry of the arbiter.
            question: for a call with an idempotency key: it is answered once.
            status: of the answer, kept with it.

        Raises:
            Refusal: the broker's no, or UNAVAILABLE: nothing has changed.
        """
        with self._lock:
            self._refuse_when_fenced()
            known = self._known(question) if question else None
            if known is not None:
                return known
            decision = call(self.books, self._context(), *arguments, **keywords)
            self._carry_out(decision, self._answer_record(question, decision, status))
            return decision.answer

    def report(self, job: str, message: JobReport) -> Instructions:
        """A job's report. It renews leases also while the store cannot be written.

        Then only a report that has nothing to be kept is answered; one with a bid is refused as
        UNAVAILABLE after its leases were renewed, and has to come again.
        """
        with self._lock:
            self._refuse_when_fenced()
            decision = arbiter.report(self.books, self._context(), job, message)
            try:
                self._carry_out(decision)
                return decision.answer
            except Refusal as refusal:
                if refusal.code is not ProblemCode.UNAVAILABLE or self._fenced:
                    raise
                self._keep_alive(decision, message)
                return arbiter.instructions(self.books, self._context(), job)

    def _keep_alive(self, decision: Decision[Any], message: JobReport) -> None:
        if message.bid is not None or message.allowed_devices is not None:
            self._apply([c for c in decision.changes if isinstance(c, LeasePulse)], frozenset())
            raise Refusal(ProblemCode.UNAVAILABLE, "the broker cannot store a bid at this moment")
        self._apply([c for c in decision.changes if not c.durable], frozenset())

    def look(self, view: Callable[[Books, Context], A]) -> A:
        """What a view shows of the books as they are now."""
        with self._lock:
            return view(self.books, self._context())

    # --- the pipeline ----------------------------------------------------------------

    def _context(self) -> Context:
        rules = self._rules
        return Context(
            now=self.clock.now(),
            options=rules.lease,
            policy=rules.policy,
            fairness=rules.fairness,
            rng=self._rng,
            outlook=self._outlook,
            survives_policies=True,
        )

    def _refuse_when_fenced(self) -> None:
        if self._fenced:
            raise Refusal(ProblemCode.UNAVAILABLE, self._fenced)
        if self._stopping:
            raise Refusal(ProblemCode.UNAVAILABLE, "the broker is stopping")

    def _known(self, question: Question) -> Known | None:
        answer = self.books.answers.get(f"{question.account}/{question.key}")
        if answer is None:
            return None
        if answer.question_hash != question.hash():
            raise Refusal(
                ProblemCode.IDEMPOTENCY_MISMATCH,
                "this Idempotency-Key was used with another request: take a new key",
            )
        return Known(status=answer.status, body=answer.body)

    def _answer_record(
        self, question: Question | None, decision: Decision[Any], status: int
    ) -> tuple[Answer, ...]:
        if question is None:
            return ()
        return (
            Answer(
                account=question.account,
                idempotency_key=question.key,
                question_hash=question.hash(),
                status=status,
                body=decision.answer.to_json(),
                at=self.clock.now(),
            ),
        )

    def _carry_out(self, decision: Decision[Any], extra: Sequence[Change] = ()) -> None:
        changes = (*decision.changes, *extra)
        self._commit(changes)
        self._apply(changes, decision.touched)
        for failure in decision.failures:
            log.error("the policy failed: nobody moves, and it is asked again", exc_info=failure)
        for settlement in decision.settlements:
            self._settler.take(settlement)

    def _record_payments(self, auction: int, payments: Mapping[str, float]) -> None:
        self.perform(arbiter.settle_payments, auction, payments)

    def _keep_outlook(self, outlook: Outlook) -> None:
        self._outlook = outlook

    def _commit(self, changes: Sequence[Change]) -> None:
        if not any(change.durable for change in changes):
            return
        self._failpoint.reach("before_commit", changes)
        try:
            self._store.commit(changes)
        except StoreFenced as error:
            self._fenced = f"this broker has stopped deciding: {error}"
            log.error("%s", self._fenced)
            raise Refusal(ProblemCode.UNAVAILABLE, self._fenced) from error
        except (StoreUnavailable, StoreUnusable) as error:
            if not self._trouble:
                log.error("the store cannot be written: %s", error)
            self._trouble = f"the store cannot be written: {error}"
            raise Refusal(ProblemCode.UNAVAILABLE, "the broker cannot write its store") from error
        if self._trouble:
            log.info("the store can be written again")
        self._trouble = ""
        self._failpoint.reach("after_commit", changes)

    def _apply(self, changes: Sequence[Change], touched: frozenset[str]) -> None:
        self.books.apply(changes)
        topics = frozenset(map(instructions_topic, touched)) | _topics(changes)
        for listener in self._listeners:
            listener(topics)
        if topics:
            self._keeper.wake()
        if self.books.agenda.wake or not all(isinstance(change, _LATER) for change in changes):
            self._changed.notify_all()

    # --- time ------------------------------------------------------------------------

    def advance(self) -> float:
        """Do what is due now; returns the seconds until something is again."""
        with self._lock:
            return self._advance()

    def _drive(self) -> None:
        with self._lock:
            while not self._stopping and not self._fenced:
                try:
                    pause = self._advance()
                except Exception:
                    # The thread's outermost loop: a mistake of ours must not stop time for good.
                    log.exception("what is due could not be done; it is tried again")
                    pause = _RETRY_SECONDS
                self._changed.wait(pause)

    def _advance(self) -> float:
        """Do what is due; returns how long to wait until something is again, in seconds."""
        context = self._context()
        pause = 0.0
        if arbiter.next_due(self.books, context) <= context.now:
            try:
                self._carry_out(arbiter.advance(self.books, context))
            except Refusal:  # said by _commit; what is due stays due
                return _RETRY_SECONDS
            pause = _SHORTEST_PAUSE_SECONDS
        wait = arbiter.next_due(self.books, self._context()) - self.clock.now()
        return min(max(wait, pause), threading.TIMEOUT_MAX)

    def probe(self) -> str:
        """Find out whether decisions can be made now; returns why not, or nothing."""
        with self._lock:
            if self._trouble and not self._fenced:
                written = replace(self.books.broker, clock=self.clock.now())
                try:
                    self._commit((written,))
                    self._apply((written,), frozenset())
                except Refusal:
                    log.debug("the store still cannot be written")
            return self.trouble


def _topics(changes: Sequence[Change]) -> frozenset[str]:
    topics: set[str] = set()
    for change in changes:
        if isinstance(change, Job):
            topics |= {job_topic(change.id), CLUSTER}
        elif isinstance(change, JobPulse):
            topics.add(job_topic(change.job))
        elif not isinstance(change, (LeasePulse, *_ASIDE)):
            topics.add(CLUSTER)
        if isinstance(change, Holding) and change.state == "quarantined":
            topics.add(LEFT)
    return frozenset(topics)
