"""Requests that wait until something changes, without holding a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress


class Polls:
    """Waiting requests by topic. All but `tell` belong to the event loop's thread.

    Args:
        loop: the event loop that the requests run in.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._closed = False

    def tell(self, topics: frozenset[str]) -> None:
        """Wake whoever waits for one of the topics. Callable from any thread; returns at once."""
        with suppress(RuntimeError):  # the loop has closed: nobody waits any more
            self._loop.call_soon_threadsafe(self.wake, topics)

    def wake(self, topics: Iterable[str]) -> None:
        """Wake whoever waits for one of the topics."""
        for topic in topics:
            for event in self._waiting.get(topic, ()):
                event.set()

    @contextmanager
    def waiting(self, *topics: str) -> Iterator[asyncio.Event]:
        """An event that is set when one of the topics changes."""
        event = asyncio.Event()
        if self._closed:
            event.set()
        for topic in topics:
            self._waiting.setdefault(topic, set()).add(event)
        try:
            yield event
        finally:
            for topic in topics:
                self._leave(event, topic)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for an event at most so long; returns whether it came."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
        return event.is_set()

    @contextmanager
    def joining(self, event: asyncio.Event, topic: str) -> Iterator[None]:
        """Have an event set by one more topic."""
        self._waiting.setdefault(topic, set()).add(event)
        try:
            yield
        finally:
            self._leave(event, topic)

    def _leave(self, event: asyncio.Event, topic: str) -> None:
        waiting = self._waiting[topic]
        waiting.discard(event)
        if not waiting:
            del self._waiting[topic]

    def topics(self) -> frozenset[str]:
        """What requests wait for now. Callable from any thread."""
        return frozenset(tuple(self._waiting))

    @property
    def closed(self) -> bool:
        """Whether the broker is about to end: nobody should wait again."""
        return self._closed

    def close(self) -> None:
        """Wake everybody: the broker ends."""
        self._closed = True
        self.wake(tuple(self._waiting))
