"""The way up: events to the supervisor, written by a thread, never waited for.

A step that had to wait for a full socket would be a step the broker can slow down. So
`send` puts the event in a queue and returns; a thread writes. What can be spared (step
timings, progress) is dropped when the queue is full, and counted; the rest is kept.
No supervisor, no socket: the writer is silent.
"""

from __future__ import annotations

import collections
import os
import socket
import threading
from pathlib import Path

from selfsched.core.events import Event, Progressed, StepsTimed, event_to_line

_SPARE_LIMIT = 256
_CONNECT_TIMEOUT_SECONDS = 2.0


class EventWriter:
    """Sends events to `socket_path` in the order they were given; thread-safe.

    Args:
        socket_path: The supervisor's Unix stream socket. If nobody listens there, every
            event is dropped without a word.
    """

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path
        self._pid = os.getpid()
        self._queue: collections.deque[Event] = collections.deque()
        self._changed = threading.Condition()
        self._spare = 0
        self._busy = False
        self._closing = False
        self._broken = False
        self.dropped = 0
        """Events dropped because the queue was full; sparable ones only."""
        self._thread = threading.Thread(target=self._run, name="selfsched-events", daemon=True)
        self._thread.start()

    def send(self, event: Event) -> bool:
        """Queue one event; False if it was dropped. Never raises, never blocks for long."""
        if os.getpid() != self._pid:  # a forked data-loader worker has no thread, no say
            return False
        sparable = isinstance(event, StepsTimed | Progressed)
        with self._changed:
            if self._broken or self._closing:
                return False
            if sparable and self._spare >= _SPARE_LIMIT:
                self.dropped += len(event.timings) if isinstance(event, StepsTimed) else 1
                return False
            self._spare += sparable
            self._queue.append(event)
            self._changed.notify_all()
        return True

    def flush(self, timeout_seconds: float = 2.0) -> bool:
        """Wait until all that was sent is written; False if time ran out or nobody listens."""
        if os.getpid() != self._pid:
            return False
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._broken or not (self._queue or self._busy), timeout_seconds
            )
            return done and not self._broken

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Flush, then end the thread."""
        self.flush(timeout_seconds)
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_CONNECT_TIMEOUT_SECONDS)
            connection.connect(str(self._path))
            connection.settimeout(None)
            while (event := self._next()) is not None:
                connection.sendall(event_to_line(event))
        except OSError:
            pass  # nobody listens, or no longer: training goes on without being watched
        finally:
            connection.close()
            with self._changed:
                self._broken = True
                self._queue.clear()
                self._changed.notify_all()

    def _next(self) -> Event | None:
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._queue or self._closing)
            if not self._queue:
                return None
            event = self._queue.popleft()
            self._spare -= isinstance(event, StepsTimed | Progressed)
            self._busy = True
            return event
