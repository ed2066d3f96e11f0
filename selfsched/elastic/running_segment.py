"""One segment while it runs: its ranks' processes, their events, their output, their end.

It performs and records; what its end means is `verdict.judge`'s, what comes next is the
supervisor's.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import ValidationError

from selfsched.core.events import FitStarted, Left, RankRaised, RankRefused
from selfsched.elastic.allocation import Device
from selfsched.elastic.channel import LineReader
from selfsched.elastic.reactor import Reactor
from selfsched.elastic.run_directory import BoundedLog, RunDirectory
from selfsched.elastic.segment import ControlBlock, Order, SegmentSpec, boottime, event_from_line
from selfsched.elastic.verdict import RankEnd, Verdict, judge
from selfsched.launch import sessions
from selfsched.launch.environment import memory_kills
from selfsched.launch.rank import RankProcess, RankRequest

_OTHERS_MAY_SPEAK_SECONDS = 1.5
"""After a rank failed: for the others to say what they saw, before they are ended."""
_TEARDOWN_SECONDS = 10.0
"""After a rank said that it raised: to end by itself."""
_STRAGGLER_SECONDS = 30.0
"""After a rank left with a checkpoint: for the others to leave too."""
_RANK_LOG_BYTES = 2 * 1024 * 1024


class Launcher(Protocol):
    """`launch.cold.ColdLauncher` or `launch.forked.ZygoteLauncher`."""

    def start(
        self,
        request: RankRequest,
        *,
        outputs: tuple[int, int],
        locks: Sequence[int],
        ended: Callable[[RankProcess], None],
    ) -> RankProcess: ...


@dataclass(frozen=True)
class Listener:
    """Where a segment's ranks are heard."""

    event: Callable[[Any], None]
    output: Callable[[str, bytes], None]
    """Stream (`stdout`, `stderr`) and bytes of rank 0."""


class RunningSegment:
    """The ranks of one segment, from their start to the last process's end."""

    def __init__(
        self, spec: SegmentSpec, devices: tuple[Device, ...], reactor: Reactor, listener: Listener
    ) -> None:
        self.spec = spec
        self.devices = devices
        self.order = Order.GO_ON
        self.leave_by = float("inf")
        self.lease_ends_at = float("inf")
        self.killed_at = float("inf")
        """When ranks that were told to leave and are still there are ended."""
        self.started_at = boottime()
        self._reactor = reactor
        self._listener = listener
        self._directory = RunDirectory(spec.run_directory)
        self._ranks: list[RankProcess] = []
        self._connections: dict[socket.socket, LineReader] = {}
        self._pipes: dict[int, tuple[int, str]] = {}
        self._logs: dict[int, BoundedLog] = {}
        self._left: dict[int, Left] = {}
        self._raised: dict[int, RankRaised] = {}
        self._refused: dict[int, RankRefused] = {}
        self._prints_errors = False
        self._kill_at = float("inf")
        self._memory_kills = memory_kills()
        self._control = ControlBlock(spec.control_block, create=True)

    # --- starting ------------------------------------------------------------------------

    def start(self, requests: Sequence[RankRequest], launcher: Launcher, locks: Sequence[int]) -> None:
        """Start one process for each request.

        Raises:
            OSError: a process could not be started; those that were are to be killed.
        """
        self._prints_errors = requests[0].program != "payload"
        for request in requests:
            self._start(request, launcher, locks)

    def _start(self, request: RankRequest, launcher: Launcher, locks: Sequence[int]) -> None:
        read_out, write_out = os.pipe()
        read_err, write_err = os.pipe()
        try:
            rank = launcher.start(request, outputs=(write_out, write_err), locks=locks, ended=self._ended)
        except OSError:
            os.close(read_out)
            os.close(read_err)
            raise
        finally:
            os.close(write_out)
            os.close(write_err)
        self._ranks.append(rank)
        for descriptor, stream in ((read_out, "stdout"), (read_err, "stderr")):
            os.set_blocking(descriptor, False)
            self._pipes[descriptor] = (request.rank, stream)
            self._reactor.on_readable(descriptor, lambda source=descriptor: self._read_pipe(source))  # type: ignore[misc]

    @property
    def session_ids(self) -> list[int]:
        """Sessions of the ranks: everything that they started is in one of them."""
        return [rank.pid for rank in self._ranks if rank.pid is not None]

    # --- hearing -------------------------------------------------------------------------

    def accept(self, connection: socket.socket) -> None:
        """A rank has connected to the events socket."""
        connection.setblocking(False)
        self._connections[connection] = LineReader()
        self._reactor.on_readable(connection, lambda: self._read_events(connection))

    def _read_events(self, connection: socket.socket) -> None:
        while connection in self._connections:
            try:
                data = connection.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._reactor.forget(connection)
                del self._connections[connection]
                connection.close()
                return
            for line in self._connections[connection].feed(data):
                with suppress(ValidationError):  # a rank of another version: not worth the run
                    self._take(event_from_line(line))

    def _take(self, event: Any) -> None:
        if isinstance(event, Left):
            self._left.setdefault(event.rank, event)
            self._kill_within(_STRAGGLER_SECONDS)
        elif isinstance(event, RankRaised):
            # The first report of a rank is the cause; what its teardown then raises is not.
            self._raised.setdefault(event.rank, event)
            if len(self._raised) < self.spec.world_size:
                self._kill_within(_TEARDOWN_SECONDS)  # the others may wait for it for ever
            else:
                self._kill_at = float("inf")  # none waits; a program that goes on has caught it
        elif isinstance(event, RankRefused):
            self._refused.setdefault(event.rank, event)
            self._kill_within(_TEARDOWN_SECONDS)
        elif isinstance(event, FitStarted):
            self._left.clear()
            self._forget_caught(event.fit)
        self._listener.event(event)

    def _forget_caught(self, fit: int) -> None:
        """Another fit begins: what came out of an earlier one was caught by the program.

        Each rank has a socket of its own: one may have raised in this fit, or before it, and be
        heard before rank 0 is, which says that it began.
        """
        for rank, raised in list(self._raised.items()):
            if raised.fit is not None and raised.fit < fit:
                del self._raised[rank]

    def _read_pipe(self, descriptor: int) -> None:
        rank, stream = self._pipes[descriptor]
        try:
            data = os.read(descriptor, 65536)
        except BlockingIOError:
            return
        if not data:
            self._reactor.forget(descriptor)
            os.close(descriptor)
            del self._pipes[descriptor]
            return
        if rank == 0:
            self._listener.output(stream, data)
        else:
            self._log_of(rank).write(data)

    def _log_of(self, rank: int) -> BoundedLog:
        if rank not in self._logs:
            path = self._directory.path / f"rank-{rank}.log"
            self._logs[rank] = BoundedLog(path, limit_bytes=_RANK_LOG_BYTES)
        return self._logs[rank]

    # --- ordering and ending -------------------------------------------------------------

    def leave(self, order: Order, *, leave_by: float) -> None:
        """Order the ranks to checkpoint and leave; a later order can only be more urgent.

        Whether ranks that are still there by then are ended is the caller's to decide.
        """
        self.order = max(self.order, order)
        self.leave_by = min(self.leave_by, leave_by)
        self._control.order(self.order, leave_by=self.leave_by)

    def extend(self, lease_ends_at: float) -> None:
        """Tell the ranks until when their devices may be used."""
        if lease_ends_at != self.lease_ends_at:
            self.lease_ends_at = lease_ends_at
            self._control.extend(lease_ends_at)

    def tick(self, now: float) -> None:
        """End what is overdue."""
        if now >= self._kill_at:
            self.kill()

    @property
    def next_deadline(self) -> float:
        """When `tick` has something to do; CLOCK_BOOTTIME seconds."""
        return self._kill_at

    def kill(self) -> None:
        """SIGKILL every process of every rank that still lives."""
        self._kill_at = float("inf")
        for rank in self._ranks:
            if rank.status is not None:
                continue
            rank.was_ended_by_us = True
            if rank.pid is None:  # the zygote has not told us yet whom it forked
                self._kill_within(0.05)
            else:
                with suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGKILL)
        sessions.kill(self.session_ids)

    def signal(self, number: int) -> None:
        """Send a signal to every rank's process group."""
        for rank in self._ranks:
            if rank.status is None and rank.pid is not None:
                with suppress(ProcessLookupError):
                    os.killpg(rank.pid, number)

    def _kill_within(self, seconds: float) -> None:
        self._kill_at = min(self._kill_at, boottime() + seconds)

    def _ended(self, rank: RankProcess) -> None:
        assert rank.status is not None
        if rank.pid is not None and rank.status != 0:
            # Its loader workers wait for a parent that is gone.
            sessions.kill([rank.pid])
        if rank.status not in (0, 75):
            self._kill_within(_OTHERS_MAY_SPEAK_SECONDS)
        elif rank.status == 75:
            self._kill_within(_STRAGGLER_SECONDS)

    @property
    def is_over(self) -> bool:
        """Whether every rank's process is gone."""
        return all(rank.status is not None for rank in self._ranks)

    def close(self) -> Verdict:
        """Once it is over: end what the ranks left behind, hear the rest, judge."""
        sessions.kill(self.session_ids)
        for connection in list(self._connections):
            self._read_events(connection)
        for connection in list(self._connections):  # held open by a process in another session
            self._reactor.forget(connection)
            connection.close()
        for descriptor in list(self._pipes):
            self._drain(descriptor)
        self._control.close()
        for path in (self.spec.control_block, self._directory.path / f"segment-{self.spec.ordinal}.json"):
            path.unlink(missing_ok=True)
        verdict = judge(
            [self._end_of(rank) for rank in sorted(self._ranks, key=lambda rank: rank.rank)],
            memory_ran_out=memory_kills() > self._memory_kills,
        )
        for log in self._logs.values():
            log.close()
        return verdict

    def _drain(self, descriptor: int) -> None:
        while descriptor in self._pipes:
            before = self._pipes[descriptor]
            try:
                data = os.read(descriptor, 65536)
            except BlockingIOError:
                data = b""
            if not data:
                self._reactor.forget(descriptor)
                os.close(descriptor)
                del self._pipes[descriptor]
            elif before[0] == 0:
                self._listener.output(before[1], data)
            else:
                self._log_of(before[0]).write(data)

    def _end_of(self, rank: RankProcess) -> RankEnd:
        number = rank.rank
        log = self._logs.get(number)
        return RankEnd(
            number, rank.status or 0, rank.was_ended_by_us, self._left.get(number),
            self._raised.get(number), self._refused.get(number), log.tail() if log else "",
            # An interpreter of the program's own has printed it; what rank 0 prints is shown.
            is_shown=rank.is_cold and number == 0 and self._prints_errors,
        )
