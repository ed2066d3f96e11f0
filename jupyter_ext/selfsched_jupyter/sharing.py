"""Answers of the broker, shared by all panels of one Jupyter server.

Many tabs, notebooks and panels want the same few views. For each view there is at most one
question to the broker at a time, however many ask: whoever comes while it is under way waits
for its answer too. An answer is good for half a second more, unless something has changed in
between: a long poll that brought news, or an order that was given, makes everything older
count no longer, also an answer that is still on its way. So nobody is shown what was before
a change that somebody else has seen already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from selfsched_jupyter.allowed import BrokerCall
from selfsched_jupyter.answers import Answer, not_modified

FRESH_SECONDS = 0.5
FAILED_SECONDS = 1.0
"""A broker in trouble is not asked by each panel anew."""
SWEEP_SECONDS = 1.0
"""An answer is held at most so much longer than it is good."""
NEWS_SECONDS = 0.25
"""Between two news of one view at least so long."""
_AT_ONCE_SECONDS = 0.2
_PAUSE_SECONDS = 1.0
MOST_KEPT_BYTES = 32 * 1024 * 1024
"""Of all answers that are kept; the oldest go first."""
_MOST_KEPT = 500

View = tuple[str, tuple[tuple[str, str], ...]]
"""Path and parameters."""
Key = tuple[str, tuple[tuple[str, str], ...], str | None, int]
Ask = Callable[[BrokerCall, str | None], Awaitable[Answer]]


@dataclass
class _Flight:
    """A question that is under way, and how many wait for its answer."""

    task: asyncio.Task[Answer]
    waiting: int = 0


@dataclass
class SharedAnswers:
    """The views that are asked for. Belongs to one event loop."""

    ask: Ask
    _flights: dict[Key, _Flight] = field(default_factory=dict)
    _kept: dict[Key, tuple[Answer, float]] = field(default_factory=dict)
    """With the loop's time until which each is good."""
    _sweep: asyncio.TimerHandle | None = None
    """Lets go of answers that are no longer good; None: none is kept."""
    _told_at: dict[View, float] = field(default_factory=dict)
    """When each view last had news."""
    _age: int = 0
    """Rises with each change; part of the keys of what a change makes old."""

    def something_changed(self) -> None:
        """What was asked for until now counts no longer."""
        self._age += 1
        self._kept.clear()

    async def get(self, call: BrokerCall, etag: str | None) -> Answer:
        """The answer to a GET.

        Args:
            call: which; its `wait_seconds` is how long news may be waited for.
            etag: of what the asker has; None: nothing.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + call.wait_seconds
        if etag is None or call.wait_seconds <= 0:
            return (await self._look(replace(call, wait_seconds=0.0))).unless_known(etag)
        answer = self._fresh(call)
        if answer is not None and not (answer.is_news and answer.etag == etag):
            return answer
        answer = not_modified(etag)
        while answer.status == HTTPStatus.NOT_MODIFIED and (left := ends_at - loop.time()) > 0:
            answer = await self._news(call, etag, left)
        return answer

    def _fresh(self, call: BrokerCall) -> Answer | None:
        """What was answered a moment ago, if nothing has changed since."""
        kept = self._kept.get((call.path, call.parameters, None, self._age))
        good = kept is not None and asyncio.get_running_loop().time() < kept[1]
        return kept[0] if kept is not None and good else None

    async def _look(self, call: BrokerCall) -> Answer:
        """How things stand."""
        fresh = self._fresh(call)
        if fresh is not None:
            return fresh
        key = (call.path, call.parameters, None, self._age)
        return await self._join(key, lambda: self._asked(key, call))

    async def _asked(self, key: Key, call: BrokerCall) -> Answer:
        answer = await self.ask(call, None)
        self._keep(key, answer)
        return answer

    async def _news(self, call: BrokerCall, etag: str, left_seconds: float) -> Answer:
        """Wait for news at most so long."""
        key = (call.path, call.parameters, etag, 0)
        try:
            async with asyncio.timeout(left_seconds):
                return await self._join(key, lambda: self._poll(call, etag))
        except TimeoutError:
            return not_modified(etag)

    async def _poll(self, call: BrokerCall, etag: str) -> Answer:
        """One long poll of the broker, as long as it may be: others may wait with us."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        held = replace(call, wait_seconds=call.route.hold_seconds)
        answer = (await self.ask(held, etag)).unless_known(etag)
        if answer.status == HTTPStatus.NOT_MODIFIED:
            if loop.time() - began_at < _AT_ONCE_SECONDS:
                # It does not hold its answers back: do not ask it again at once.
                await asyncio.sleep(_PAUSE_SECONDS)
            return answer
        if answer.is_news:
            await self._pace((call.path, call.parameters))
            self.something_changed()
        self._keep((call.path, call.parameters, None, self._age), answer)
        return answer

    async def _pace(self, view: View) -> None:
        """A view that changes all the time is told four times a second: each panel asks again at once."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._told_at.get(view, float("-inf")) + NEWS_SECONDS - loop.time()))
        if len(self._told_at) >= _MOST_KEPT:
            self._told_at.clear()
        self._told_at[view] = loop.time()

    async def _join(self, key: Key, start: Callable[[], Awaitable[Answer]]) -> Answer:
        """Wait for a question that is under way, or begin it; the last who leaves ends it."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.ensure_future(_told(start)))
            flight.task.add_done_callback(lambda _: self._landed(key, flight))
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.task.done():
                flight.task.cancel()
                self._landed(key, flight)

    def _landed(self, key: Key, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    def _keep(self, key: Key, answer: Answer) -> None:
        loop = asyncio.get_running_loop()
        seconds = FRESH_SECONDS if answer.is_news else FAILED_SECONDS
        self._kept.pop(key, None)  # so that it comes last
        self._kept[key] = (answer, loop.time() + seconds)
        held_bytes = sum(len(kept.body) for kept, _ in self._kept.values())
        while held_bytes > MOST_KEPT_BYTES or len(self._kept) > _MOST_KEPT:
            oldest, _ = self._kept.pop(next(iter(self._kept)))
            held_bytes -= len(oldest.body)
        if self._sweep is None:
            self._sweep = loop.call_later(SWEEP_SECONDS, self._let_go)

    def _let_go(self) -> None:
        """Nobody may ever ask again: what is no longer good does not wait for that."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._kept = {key: kept for key, kept in self._kept.items() if now < kept[1]}
        self._sweep = loop.call_later(SWEEP_SECONDS, self._let_go) if self._kept else None

    def close(self) -> None:
        """End what is under way, and keep nothing."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._kept.clear()
        for flight in list(self._flights.values()):
            flight.task.cancel()


async def _told(start: Callable[[], Awaitable[Answer]]) -> Answer:
    return await start()
