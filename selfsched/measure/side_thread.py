"""A thread that does, in order, what the training thread should not wait for.

The model of a job takes milliseconds once a second. On the training thread that is time of a
step; beside it, it runs while the training thread waits for a device, for data, or computes
outside of Python, and costs at worst what it would have cost there.

The thread begins with its first piece of work. A fault in one ends it and is raised on the
training thread, at the next `put` or `wait`.

Loaders fork their workers from the training thread. A fork in the middle of a piece of work
would copy locks that nobody releases in the child; so a fork waits until the piece is done.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable

LONGEST_QUEUE = 64
"""Pieces of work that may wait; the next one waits for them: nothing is dropped, or grows."""
PATIENCE_SECONDS = 60.0
FORK_PATIENCE_SECONDS = 5.0

_started: weakref.WeakSet[SideThread] = weakref.WeakSet()


class SideThread:
    """Work in order on another thread. All methods are for one thread, the training's.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._busy = False
        self._fault: Exception | None = None

    def put(self, work: Callable[[], object]) -> None:
        """Have `work` done after all that was put before.

        Raises:
            Exception: what an earlier piece of work raised.
        """
        if len(self._work) >= LONGEST_QUEUE:
            self.wait()
        self._raise()
        with self._changed:
            self._work.append(work)
            self._changed.notify_all()
        if self._thread is None:
            _ask_before_forks()
            _started.add(self)
            self._ended = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._ended,), name=self._name, daemon=True
            )
            self._thread.start()

    def wait(self) -> None:
        """Return when all is done that was put.

        Raises:
            TimeoutError: it does not get done.
            Exception: what a piece of work raised.
        """
        if threading.current_thread() is self._thread:
            return
        with self._changed:
            if not self._changed.wait_for(self._is_idle, PATIENCE_SECONDS):
                raise TimeoutError(f"what was begun beside the training took over {PATIENCE_SECONDS:.0f} s")
        self._raise()

    def settle(self) -> None:
        """Return when nothing is being done, or after some seconds. For any thread."""
        if threading.current_thread() is not self._thread:
            with self._changed:
                self._changed.wait_for(self._is_idle, FORK_PATIENCE_SECONDS)

    def close(self) -> None:
        """Do no more; what waits is left undone, and what is being done is not waited for.

        A later `put` begins anew.
        """
        with self._changed:
            self._ended.set()
            self._work.clear()
            self._busy = False
            self._thread, self._fault = None, None
            self._changed.notify_all()

    def __reduce__(self) -> tuple[type[SideThread], tuple[str]]:
        """A copy, in another process too, has nothing to do yet."""
        return SideThread, (self._name,)

    # --- inside ----------------------------------------------------------------------

    def _is_idle(self) -> bool:
        return not self._work and not self._busy

    def _raise(self) -> None:
        fault, self._fault = self._fault, None
        if fault is not None:
            self._thread = None
            raise fault

    def _run(self, ended: threading.Event) -> None:
        while (work := self._next(ended)) is not None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  the thread's outermost boundary: raised at the next call
                with self._changed:
                    if not ended.is_set():
                        self._fault, self._busy = error, False
                        self._work.clear()
                        self._changed.notify_all()
                return

    def _next(self, ended: threading.Event) -> Callable[[], object] | None:
        with self._changed:
            if not ended.is_set():
                self._busy = False
                self._changed.notify_all()
            self._changed.wait_for(lambda: bool(self._work) or ended.is_set())
            if ended.is_set():
                return None
            self._busy = True
            return self._work.popleft()


@functools.cache
def _ask_before_forks() -> None:
    """Once in a process: what is registered cannot be taken back."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_settle_all)


def _settle_all() -> None:
    for side in list(_started):
        side.settle()
