"""What this rank's process is to the launcher: its place, its voice, its ways out."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal, NoReturn

from selfsched import errors
from selfsched.core.events import Event, RankRefused, RankStarted, Warned
from selfsched.elastic import support
from selfsched.elastic.events import EventWriter
from selfsched.elastic.segment import ControlBlock, Order, SegmentSpec

OnLeave = Literal["exit", "raise"]
_RANK_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


class SelfschedWarning(UserWarning):
    """Something is degraded; the message begins with its name in docs/support.md."""


class RankProcess:
    """One rank of a segment. Made once a process; fits come and go within it.

    Args:
        spec: The segment.
        on_leave: What happens after a fit was left: "exit" ends the process with code 75,
            so that a script's code after `fit` does not run on half a training; "raise"
            raises `errors.Yielded` or `errors.Stopped` for a worker that catches it.
    """

    def __init__(self, spec: SegmentSpec, on_leave: OnLeave) -> None:
        self.spec = spec
        self.on_leave = on_leave
        self.rank = int(os.environ.get("RANK", "0"))
        self._environment = {name: os.environ[name] for name in _RANK_NAMES if name in os.environ}
        self._block = ControlBlock(spec.control_block) if spec.control_block.exists() else None
        self._warned: set[str] = set()
        self.writer = EventWriter(spec.events_socket)
        atexit.register(self.writer.flush)  # its thread ends with the process, said or not
        self.fits = 0
        """Fits begun so far: ordinals count from 1."""
        self.send(RankStarted(rank=self.rank, pid=os.getpid()))

    def restore_environment(self) -> None:
        """Lightning deletes WORLD_SIZE when a fit ends; the next Trainer needs it again."""
        os.environ.update(self._environment)

    def send(self, event: Event) -> None:
        """Queue an event for the supervisor."""
        self.writer.send(event)

    def orders(self) -> tuple[Order, float, float]:
        """(order, leave_by, lease_ends_at) as they stand; go on for ever without a block."""
        if self._block is None:
            return Order.GO_ON, float("inf"), float("inf")
        return self._block.read()

    def warn(self, code: str, found: str = "") -> None:
        """Say once that something is degraded. `code` is its row of the support table."""
        self.notice(code, support.message(code, found))

    def notice(self, code: str, text: str) -> None:
        """Say something once, under a name."""
        if code in self._warned:
            return
        self._warned.add(code)
        if self.rank == 0:
            self.send(Warned(code=code, message=text))
            warnings.warn(f"selfsched [{code}]: {text}", SelfschedWarning, stacklevel=3)

    def refuse(self, message: str) -> NoReturn:
        """Stop before training: one line, exit code 2."""
        self.send(RankRefused(rank=self.rank, message=message))
        self.writer.flush()
        if self.on_leave == "raise":
            raise errors.Unsupported(message)
        if self.rank == 0:
            print(f"selfsched: {message}", file=sys.stderr, flush=True)
        raise SystemExit(errors.EXIT_WRONG_USE)

    def leave(self, *, stopped: bool) -> NoReturn:
        """End after a fit was left with a checkpoint."""
        self.writer.flush()
        if self.on_leave == "raise":
            if stopped:
                raise errors.Stopped("the run was stopped; a checkpoint was written")
            raise errors.Yielded("the job left its devices; it goes on from its checkpoint")
        sys.stdout.flush()
        sys.stderr.flush()
        raise SystemExit(errors.EXIT_YIELDED)

    def close(self) -> None:
        """Let go of the socket and the control block."""
        self.writer.close()
        atexit.unregister(self.writer.flush)
        if self._block is not None:
            self._block.close()


class Termination:
    """SIGTERM means: checkpoint at the next step, then leave. The handler only sets a flag.

    Handlers that were there before are kept and called. One that raises (`sys.exit` in a
    handler is common) is heard after the checkpoint: the exception is kept until then.
    """

    def __init__(self) -> None:
        self.requested = False
        self.deferred: BaseException | None = None
        self._pid = os.getpid()
        self._earlier: Any = None
        self._installed = False

    def install(self) -> None:
        """Take SIGTERM; the handler found the first time is the one to call and to put back."""
        if threading.current_thread() is not threading.main_thread():
            return
        if not self._installed:
            self._earlier = signal.getsignal(signal.SIGTERM)
            self._installed = True
        signal.signal(signal.SIGTERM, self._handle)

    def remove(self) -> None:
        """Put the earlier handler back."""
        if self._installed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._earlier if self._earlier is not None else signal.SIG_DFL)
            self._installed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked data-loader worker: it has nothing to save
            self._as_before(number, frame)
            return
        self.requested = True
        try:
            if callable(self._earlier):
                self._earlier(number, frame)
        except BaseException as raised:  # noqa: BLE001  kept, and raised after the checkpoint
            self.deferred = raised

    def _as_before(self, number: int, frame: FrameType | None) -> None:
        earlier: Callable[[int, FrameType | None], Any] | signal.Handlers | None = self._earlier
        if callable(earlier):
            earlier(number, frame)
        elif earlier != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
