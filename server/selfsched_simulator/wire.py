"""The way to the broker: every message to its service goes through here, and can be overheard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from selfsched.errors import SelfschedError
from selfsched_broker.core import arbiter
from selfsched_broker.core.arbiter import Refusal
from selfsched_broker.core.books import Books
from selfsched_broker.service import Service


class PolicyFailed(SelfschedError):
    """The policy raised, or broke its contract: the result would be of another policy."""


@dataclass(frozen=True, slots=True)
class Said:
    """A message to the broker and its answer, for those who want to say it again."""

    at_seconds: float
    call: str
    """An entry of the arbiter, `report` or `advance`."""
    arguments: tuple[Any, ...]
    answer: Any
    """What the broker answered; the problem code where it refused."""


def perform(service: Service, call: str, arguments: tuple[Any, ...]) -> Any:
    """Say something to a service by the name of the call (see `Said`)."""
    if call == "advance":
        return service.advance()
    if call == "report":
        return service.report(*arguments)
    return service.perform(getattr(arbiter, call), *arguments)


class Wire:
    """Says things to a service, and looks at what its policy does.

    Args:
        service: the broker.
        policy: what its policy is called, for the messages.
        clock: the time of the simulation, in seconds.
        listener: told of every message, in order.
    """

    def __init__(
        self,
        service: Service,
        policy: str,
        clock: Callable[[], float],
        listener: Callable[[Said], None] | None,
    ) -> None:
        self._policy = policy
        self._service = service
        self._clock = clock
        self._listener = listener
        self._audits_seen = 1
        self._due: float | None = None

    @property
    def books(self) -> Books:
        """The broker's books."""
        return self._service.books

    def say(self, call: str, *arguments: Any) -> Any:
        """Say something; returns the answer.

        Raises:
            Refusal: the broker's no.
            PolicyFailed: in an auction that this led to.
        """
        self._due = None
        try:
            answer = perform(self._service, call, arguments)
        except Refusal as refusal:
            self._tell(call, arguments, refusal.code)
            raise
        self._tell(call, arguments, answer)
        if call == "advance":
            self._look_at_policy()
        return answer

    def next_due(self) -> float:
        """When the broker decides next; asked again only when something was said."""
        if self._due is None:
            self._due = self._service.look(arbiter.next_due)
        return self._due

    def instructions(self, job: str) -> Any:
        """The broker's whole word to a job."""
        return self._service.look(lambda books, ctx: arbiter.instructions(books, ctx, job))

    def _tell(self, call: str, arguments: tuple[Any, ...], answer: Any) -> None:
        if self._listener is not None:
            self._listener(Said(self._clock(), call, arguments, answer))

    def _look_at_policy(self) -> None:
        books = self.books
        if books.agenda.failure:
            raise PolicyFailed(f"the policy {self._policy} failed: {books.agenda.failure}")
        for number in range(self._audits_seen, books.broker.next_audit):
            audit = books.audits.get(str(number))
            if audit is not None and audit.action == "ruling_refused":
                raise PolicyFailed(
                    f"the policy {self._policy} broke its contract: {audit.subject}: {audit.detail}"
                )
        self._audits_seen = books.broker.next_audit
