"""The user's end of a run: start its supervisor, show what it says, ask it to stop.

The user's process is never forked, and loads nothing for this but the standard library and
pydantic: whatever threads, GPUs or process groups it has are its own business.

A detached run needs no user: an interrupt leaves it, and it goes on. It is found again by
`found_runs` and followed by `following`, from what stands in its directory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from types import FrameType
from typing import Any, Protocol

from selfsched.elastic import channel
from selfsched.elastic.channel import Channel
from selfsched.elastic.job import JobDescription
from selfsched.elastic.manifest import newest_step
from selfsched.elastic.reactor import Reactor
from selfsched.elastic.run_directory import RunDirectory, RunOutcome
from selfsched.errors import EXIT_FAILED, Detached, SelfschedError
from selfsched.settings import absolute_paths

_CONNECT_SECONDS = 30.0
_LAST_BREATH_SECONDS = 10.0
_TERMINATION_GRACE_SECONDS = 25.0


class View(Protocol):
    """What shows a run to its user: a terminal or a notebook's cell."""

    def show(self, message: Any) -> None:
        """One message of `channel` from the supervisor."""

    def refresh(self) -> None:
        """Called a few times a second, whatever comes."""

    def stopping(self, times: int) -> None:
        """The user asked to stop, for the so-manieth time."""

    def close(self) -> None:
        """The run is over."""


class AttachedRun:
    """A run whose supervisor this process started, and is the user of."""

    def __init__(self, job: JobDescription, lock: int) -> None:
        """Start the supervisor; `lock` (of the run's directory) goes over to it.

        Raises:
            SelfschedError: it could not be started, or refused at once. The lock is given back.
        """
        self._job = job
        self._directory = RunDirectory(job.run_directory)
        self._is_left = False
        self._stops = 0
        self._pending_stops: list[channel.StopRequested] = []
        try:
            self._reactor = Reactor()
            job.write()
            self._process = _start_supervisor(self._directory, lock)
        except OSError as error:
            raise SelfschedError(f"the run's supervisor cannot be started: {error}") from error
        finally:
            os.close(lock)
        try:
            self._channel = self._connect()
        except BaseException:  # an interrupt above all: nothing has been started yet
            self._process.kill()
            self._process.wait()
            raise

    @property
    def supervisor_pid(self) -> int:
        return self._process.pid

    def _connect(self) -> Channel | None:
        give_up_at = time.monotonic() + _CONNECT_SECONDS
        while time.monotonic() < give_up_at:
            connection = channel.connect(self._directory.supervisor_socket)
            if connection is not None:
                return Channel(connection)
            if self._process.poll() is not None:
                return None  # its outcome says why
            time.sleep(0.01)
        log = self._directory.path / "supervisor.log"
        raise SelfschedError(f"the run's supervisor did not answer within {_CONNECT_SECONDS:g} s; see {log}")

    def follow(self, view: View) -> RunOutcome:
        """Show the run until it is over.

        An interrupt (Ctrl-C, a notebook's Stop) asks it to checkpoint and end; the second
        one ends it at once. In the main thread SIGTERM means the same as `selfsched run`'s:
        checkpoint and leave within the grace, to be resumed. A detached run is left by an
        interrupt, and SIGTERM means to this process what it meant before.

        Raises:
            Detached: the run was left, and goes on.
        """
        ended: list[RunOutcome] = []
        is_over = False
        try:
            with self._interruptible(), closing(view):
                self._listen(view, ended)
            is_over = bool(ended) or not self._is_left
        finally:
            if is_over or not self._job.detached:
                self._process.wait()
            else:  # it ends some day: no zombie is left of it then
                threading.Thread(target=self._process.wait, name="selfsched-reaper", daemon=True).start()
            self._reactor.close()
        if not is_over:
            raise Detached(left_words(self._job))
        return ended[0] if ended else self._outcome_left_behind()

    def _listen(self, view: View, ended: list[RunOutcome]) -> None:
        link = self._channel
        if link is None:
            return

        def read() -> None:
            for message in link.receive():
                view.show(message)
                if isinstance(message, channel.RunEnded):
                    fields = message.model_dump(exclude={"kind"})
                    ended.append(RunOutcome(**fields))

        descriptor = link.fileno()
        self._reactor.on_readable(descriptor, read)
        try:
            while link.is_open and not ended and not self._is_left:
                self._reactor.wait(0.25)
                while self._pending_stops:
                    view.stopping(self._stops)
                    link.send(self._pending_stops.pop(0))
                view.refresh()
        finally:
            self._reactor.forget(descriptor)
            link.close()

    def stop(self, *, resumable: bool = False, within_seconds: float | None = None) -> None:
        """Ask for a checkpoint and the end; the second time for the end at once.

        From any thread or signal handler while `follow` runs.
        """
        self._stops += 1
        self._pending_stops.append(
            channel.StopRequested(resumable=resumable, within_seconds=within_seconds)
        )
        self._reactor.wake()

    def _leave(self) -> None:
        self._is_left = True
        self._reactor.wake()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        if self._job.detached:
            with hearing({signal.SIGINT: self._leave}):
                yield
            return

        def terminated() -> None:
            self.stop(resumable=True, within_seconds=_TERMINATION_GRACE_SECONDS)

        with hearing({signal.SIGINT: self.stop, signal.SIGTERM: terminated}):
            yield

    def _outcome_left_behind(self) -> RunOutcome:
        """The supervisor is gone without a last message: what it wrote, or what killed it."""
        left = self._directory.read_outcome()
        if left is not None:
            return left
        status = self._process.wait()
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        log = self._directory.path / "supervisor.log"
        again = "Start the same run again to go on"
        if self._job.detached and self._job.program == "payload":
            again = f"selfsched.attach({self._job.run_directory.name!r}, resume=True) goes on"
        message = (
            f"the run's supervisor died ({how}); its ranks ended with it. {again} from its newest "
            f"checkpoint; {log} may say more"
        )
        step = newest_step(self._directory.path) or 0
        return RunOutcome("failed", EXIT_FAILED, message, step=step)


def detached_words(job: JobDescription) -> str:
    """What is said when a detached run is started."""
    name, again = job.run_directory.name, _attach_words(job)
    return f"the run {name} outlives this process; Ctrl-C leaves it, {again} follows it again"


def left_words(job: JobDescription) -> str:
    """What is said to who leaves a run that goes on: how to see it again, how to end it."""
    name = job.run_directory.name
    again = f"{_attach_words(job)} follows it again"
    if job.program == "payload":
        again += " and brings its module back"
    return f"the run {name} goes on without this process; {again}, `selfsched stop {name}` ends it"


def _attach_words(job: JobDescription) -> str:
    name = job.run_directory.name
    return f"selfsched.attach({name!r})" if job.program == "payload" else f"`selfsched attach {name}`"


@contextmanager
def hearing(signals: Mapping[int, Callable[[], None]]) -> Iterator[None]:
    """Call these when these signals come; only the main thread hears any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(number: int, frame: FrameType | None) -> None:
        signals[number]()

    before = [(number, signal.signal(number, heard)) for number in signals]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _start_supervisor(directory: RunDirectory, lock: int) -> subprocess.Popen[bytes]:
    log = os.open(directory.path / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "selfsched.elastic.supervisor", str(directory.path)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory.path,
            env={**os.environ, **absolute_paths(os.environ)},
            start_new_session=True, pass_fds=[lock],
        )
    finally:
        os.close(log)
