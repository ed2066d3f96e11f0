"""The supervisor's one loop: descriptors and what to do when they can be read."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class Reactor:
    """Calls what is registered for a descriptor when it is readable (or writable)."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._awakened, self._waker = os.pipe()
        for descriptor in (self._awakened, self._waker):
            os.set_blocking(descriptor, False)
        self.on_readable(self._awakened, self._drain)

    def on_readable(self, source: int | HasFileno, then: Callable[[], None]) -> None:
        """From now on call `then` whenever `source` can be read or has ended."""
        self._selector.register(source, selectors.EVENT_READ, then)

    def also_writable(self, source: int | HasFileno, wanted: bool) -> None:
        """Whether `source` is waited for to take more data as well."""
        key = self._selector.get_key(source)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        if key.events != events:
            self._selector.modify(source, events, key.data)

    def forget(self, source: int | HasFileno) -> None:
        """Stop watching; to be called before the descriptor is closed."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(source)

    def wake(self) -> None:
        """End a wait that is going on. From any thread or signal handler."""
        with suppress(BlockingIOError, OSError):
            os.write(self._waker, b".")

    def wait(self, seconds: float) -> None:
        """Wait at most so long, and call what has become ready."""
        for key, _ in self._selector.select(max(0.0, seconds)):
            # An earlier callback of this round may have removed it.
            if self._selector.get_map().get(key.fd) is not None:
                key.data()

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._awakened, 4096):
                pass

    def close(self) -> None:
        self._selector.close()
        os.close(self._awakened)
        os.close(self._waker)
