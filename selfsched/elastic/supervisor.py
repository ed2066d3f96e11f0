"""The supervisor of one run: a process of its own, in its own session, that outlives segments.

`python -m selfsched.elastic.supervisor RUN_DIR`, started by `attach.start_run`. It is the
parent of the zygote and of the ranks, holds the devices' locks, asks an `AllocationSource`
on which devices to run, and speaks with the user's process over a Unix socket.

Its one loop does three things: read whatever has arrived (`reactor`), compare what is
wanted with what is running (`_step`), and wait. Everything that could block, the broker
above all, is in threads of the source.

How a run ends::

    every rank ended by itself              finished   exit code 0
    Stop, or the client's socket closed     stopped    130 (checkpoint; a second Stop kills);
                                                       a detached run goes on without a client
    SIGTERM, the source's own end           yielded    75  (checkpoint; can be resumed)
    a rank refused                          refused    2
    a rank raised, or faults without end    failed     1, or the program's own code
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from selfsched import settings
from selfsched.core.events import Warned
from selfsched.elastic import channel
from selfsched.elastic.allocation import Allocation, AllocationSource, Device, SegmentEnd
from selfsched.elastic.fixed import FixedEnding
from selfsched.elastic.job import JobDescription
from selfsched.elastic.journal import Journal
from selfsched.elastic.manifest import newest_step
from selfsched.elastic.plan import planned_counts
from selfsched.elastic.program import program_of
from selfsched.elastic.progress_made import ProgressMade
from selfsched.elastic.rank_starter import RankStarter
from selfsched.elastic.reactor import Reactor
from selfsched.elastic.run_directory import RunDirectory, RunOutcome
from selfsched.elastic.running_segment import Listener, RunningSegment
from selfsched.elastic.segment import Order, SegmentSpec, boottime
from selfsched.elastic.sources import choose_source
from selfsched.elastic.user_link import UserLink
from selfsched.elastic.verdict import Verdict
from selfsched.elastic.voice import Voice
from selfsched.errors import (
    EXIT_FAILED,
    EXIT_FINE,
    EXIT_WRONG_USE,
    EXIT_YIELDED,
    NotAllowed,
    Refused,
    SelfschedError,
    Stopped,
)
from selfsched.launch.environment import threads_per_rank
from selfsched.launch.guard import Guard
from selfsched.launch.held import HeldDevices
from selfsched.launch.locks import DeviceLocks, MachineLocks
from selfsched.protocol import Outcome

__all__ = ["Allocation", "AllocationSource", "Device", "SegmentEnd", "Supervisor", "choose_source", "main"]

_POLL_SECONDS = 0.2
_ATTACH_SECONDS = 30.0
"""For the client to connect after it started us."""
_CLIENT_GONE_GRACE_SECONDS = 30.0
_TERMINATED_GRACE_SECONDS = 25.0
_NO_FIT_GRACE_SECONDS = 5.0
"""What a program in which no fit is under way may take to end, once SIGTERM has told it to."""
_STOP_PATIENCE_SECONDS = 1.0
_SHORTEST_NOTICE_SECONDS = 2.0
"""How long a Stop lets a validation go on before it is owed to the next segment."""
_MOST_PORT_RETRIES = 5
_FIRST_ANSWER_SECONDS = 3.0
"""Even a job that will not wait must hear the first answer of its source."""

EndReason = Literal["yielded", "planned", "finished", "stopped", "failed", "never_started"]


class Supervisor:
    """Runs one job to its end on whatever devices its source gives it."""

    def __init__(
        self, job: JobDescription, source: AllocationSource, *, locks: DeviceLocks
    ) -> None:
        self._job = job
        self._source = source
        self._planned = planned_counts(job.plan)
        self._directory = RunDirectory(job.run_directory)
        self._reactor = Reactor()
        self._journal = Journal(self._directory)
        self._starter = RankStarter(job, program_of(job), self._reactor, self._journal)
        self._guard = Guard()
        self._held = HeldDevices(locks)
        self._events_server = channel.listen(self._directory.events_socket)
        self._reactor.on_readable(self._events_server, self._accept_ranks)
        self._user = UserLink(
            self._reactor, channel.listen(self._directory.supervisor_socket),
            asked=self._asked, lost=self._user_lost,
        )
        self._source_started = False
        self._voice = Voice(self._journal, self._user)
        self._segment: RunningSegment | None = None
        self._segments = 0
        self._fixed_ending: FixedEnding | None = None
        self._port_retries = 0
        self._hinted = False
        self._warned: set[str] = set()
        self._made = ProgressMade(newest_step(self._directory.path))
        self._is_cut_short = False
        """Whether the run was stopped where no fit was under way."""
        self._stops = 0
        self._terminated = False
        self._stop_outcome: RunOutcome | None = None
        self._ended: RunOutcome | None = None
        self._waiting_since = boottime()

    # --- the loop ------------------------------------------------------------------------

    def run(self) -> RunOutcome:
        """Run until the job's end; then nothing of it is left but this process."""
        try:
            if self._wait_for_user():
                self._start()
                while self._ended is None:
                    self._step(boottime())
                    self._wait()
        finally:
            self._clean_up()
        assert self._ended is not None
        return self._finish(self._ended)

    def _wait_for_user(self) -> bool:
        give_up_at = boottime() + _ATTACH_SECONDS
        while not self._user.is_attached and boottime() < give_up_at and not self._terminated:
            self._reactor.wait(_POLL_SECONDS)
        if not self._user.is_attached and (self._terminated or not self._job.detached):
            self._ended = RunOutcome("stopped", Stopped.exit_code, "nobody attached to the run")
        return self._ended is None

    def _start(self) -> None:
        self._voice.note(
            "supervisor_started", pid=os.getpid(), warden_pid=self._guard.pid, unix=time.time()
        )
        self._starter.warm_up()
        try:
            self._source.start(self._job, self._reactor.wake)
            self._source_started = True
        except SelfschedError as error:
            self._ended = _never_began(error)

    def _wait(self) -> None:
        deadline = self._segment.next_deadline if self._segment else float("inf")
        self._reactor.wait(min(_POLL_SECONDS, max(0.0, deadline - boottime())))
        self._guard.set_sessions(self._segment.session_ids if self._segment else ())
        if self._terminated:
            self._terminated = False
            self.stop(resumable=True, within_seconds=_TERMINATED_GRACE_SECONDS)

    def _step(self, now: float) -> None:
        """Compare what is wanted with what is running."""
        for words in self._source.news():
            self._voice.say(words)
        wanted = self._source.wanted(now)
        if self._segment is None:
            self._idle_step(wanted, now)
        elif self._segment.is_over:
            self._close_segment(self._segment)
            self._reactor.wake()  # the next one begins at once
        else:
            self._running_step(self._segment, wanted, now)

    def _idle_step(self, wanted: Allocation, now: float) -> None:
        if self._stop_outcome is not None:
            self._ended = self._stop_outcome
        elif wanted.ends_because is not None:
            self._ended = _ended_by_source(wanted, self._made.step)
        elif wanted.devices and self._held.take(wanted.devices):
            self._start_segment(wanted)
        else:
            if not wanted.devices:
                self._held.keep_only(())  # a device that is not wanted any more is somebody else's
            self._show_waiting(wanted, now)

    def _running_step(self, segment: RunningSegment, wanted: Allocation, now: float) -> None:
        segment.extend(wanted.lease_ends_at)
        if wanted.ends_because is not None and self._stop_outcome is None:
            self._stop_outcome = _ended_by_source(wanted, self._made.step)
            self._order_to_leave(segment, wanted, now)
        elif _ids(wanted.devices) != _ids(segment.devices) and segment.order is Order.GO_ON:
            self._order_to_leave(segment, wanted, now)
        if self._fixed_ending is not None:
            self._end_fixed(segment, self._fixed_ending, now)
        if now >= min(segment.lease_ends_at, segment.killed_at):
            segment.kill()
        segment.tick(now)
        self._voice.show(self._source.status_line() or "")

    def _order_to_leave(self, segment: RunningSegment, wanted: Allocation, now: float) -> None:
        self._voice.note("ordered_to_leave", reason=wanted.reason, leave_by=wanted.leave_by)
        segment.leave(Order.YIELD, leave_by=wanted.leave_by)
        # An order that came too late still deserves one checkpoint; the lease's end bounds it.
        segment.killed_at = min(segment.killed_at, max(wanted.leave_by, now + _SHORTEST_NOTICE_SECONDS))
        if self._job.fixed:
            self._fixed_ending = FixedEnding(wanted.leave_by)

    def _end_fixed(self, segment: RunningSegment, ending: FixedEnding, now: float) -> None:
        warning, terminate = ending.due(now)
        if warning is not None:
            self._voice.say(warning)
        if terminate:
            segment.signal(signal.SIGTERM)

    # --- segments ------------------------------------------------------------------------

    def _start_segment(self, wanted: Allocation) -> None:
        ordinal, self._segments = self._segments, self._segments + 1
        spec = self._spec(ordinal, wanted)
        listener = Listener(self._hear, self._voice.output)
        segment = RunningSegment(spec, wanted.devices, self._reactor, listener)
        segment.extend(wanted.lease_ends_at)
        self._segment = segment
        self._made.segment_started()
        devices = tuple(device.id for device in wanted.devices)
        self._voice.tell(
            channel.SegmentBegan(ordinal=ordinal, devices=devices, reason=wanted.reason, at=boottime())
        )
        self._source.segment_started(ordinal, wanted.devices)
        try:
            self._starter.start(segment, self._held.descriptors)
        except OSError as error:
            self._voice.say(f"a rank could not be started: {error}")
            segment.kill()

    def _spec(self, ordinal: int, wanted: Allocation) -> SegmentSpec:
        job = self._job
        return SegmentSpec(
            run_directory=job.run_directory, ordinal=ordinal, world_size=len(wanted.devices),
            job_seed=job.job_seed, min_devices=min((job.min_devices, *self._planned)),
            max_devices=max((job.max_devices, *self._planned)), planned_devices=self._planned,
            batch_devices=job.batch_devices, validation=job.validation, cut_at=wanted.cut_at,
            threads=threads_per_rank(wanted.devices),
            accelerator="gpu" if wanted.devices[0].kind == "gpu" else "cpu",
            events_socket=self._directory.events_socket,
            control_block=job.run_directory / f"control-{ordinal}", resume=True,
        )

    def _close_segment(self, segment: RunningSegment) -> None:
        self._accept_ranks()
        verdict = segment.close()
        self._segment = None
        self._guard.set_sessions(())
        self._voice.end_output()
        reason = self._conclude(segment, verdict)
        self._hint(segment, verdict)
        going_on = self._ended is None and self._stop_outcome is None
        end = SegmentEnd(
            segment.spec.ordinal, segment.devices, left=self._let_go(segment, going_on=going_on),
            reason=reason, words=verdict.words, fit=self._made.fit, step=self._made.step,
            checkpoint_step=self._made.checkpoint_step,
        )
        self._source.segment_ended(end)
        self._waiting_since = boottime()
        self._voice.tell(
            channel.SegmentEnded(
                ordinal=end.ordinal, reason=reason, words=end.words, step=end.step, at=boottime()
            )
        )

    def _let_go(self, segment: RunningSegment, *, going_on: bool) -> tuple[Device, ...]:
        """Unlock what is not wanted any more; the devices of the segment that were."""
        still_wanted = _ids(self._source.wanted(boottime()).devices) if going_on else frozenset()
        self._held.keep_only(tuple(device for device in segment.devices if device.id in still_wanted))
        return tuple(device for device in segment.devices if not self._held.holds(device))

    def _conclude(self, segment: RunningSegment, verdict: Verdict) -> EndReason:
        """What follows from a segment's end."""
        step = self._made.step
        told_to_end = self._is_cut_short or (self._job.fixed and segment.order is not Order.GO_ON)
        match verdict.kind:
            case "finished" if not told_to_end:
                self._ended = RunOutcome("finished", EXIT_FINE, step=step)
                return "finished"
            case "refused":
                self._ended = RunOutcome("refused", EXIT_WRONG_USE, verdict.words)
                return "failed"
            case "failed" if verdict.out_of_memory and self._wants_others(segment):
                self._voice.say(
                    f"{verdict.words}; it did fit on more devices and waits for these, to go on from "
                    f"{self._made.resume_point}"
                )
                return "failed"
            case "failed" if not told_to_end:
                self._ended = RunOutcome("failed", verdict.exit_code, verdict.words, verdict.traceback, step)
                return "failed"
            case "port_taken" if self._port_retries < _MOST_PORT_RETRIES:
                self._port_retries += 1
                return "failed"
        if segment.order is not Order.GO_ON:
            # Also where the deadline came first: what was done since the last checkpoint is lost.
            return self._left_as_told()
        if verdict.kind == "left" and self._made.left(verdict.left):
            planned = verdict.left is not None and verdict.left.reason == "planned"
            return "planned" if planned else "yielded"
        return self._after_fault(verdict)

    def _wants_others(self, segment: RunningSegment) -> bool:
        """Whether the source has drawn its consequence from how the segment ended."""
        wanted = self._source.wanted(boottime())
        return wanted.ends_because is None and _ids(wanted.devices) != _ids(segment.devices)

    def _hint(self, segment: RunningSegment, verdict: Verdict) -> None:
        """A program that nothing can move ran well, or was told to move: say it once."""
        hint = self._made.nothing_moved(len(segment.devices))
        was_told = segment.order is not Order.GO_ON
        if hint is not None and not self._job.fixed and (was_told or verdict.kind == "finished"):
            if not self._hinted:
                self._voice.say(hint)
            self._hinted = True

    def _left_as_told(self) -> EndReason:
        if self._job.fixed and self._stop_outcome is None:
            self._ended = RunOutcome("yielded", EXIT_YIELDED, "its time on the devices was over")
        return "stopped" if self._stop_outcome is not None else "yielded"

    def _after_fault(self, verdict: Verdict) -> EndReason:
        words = verdict.words or "the ranks left again and again without a step in between"
        if self._job.fixed:
            self._ended = RunOutcome("failed", EXIT_FAILED, words, verdict.traceback)
        elif self._made.may_retry():
            self._voice.say(f"{words}; going on from {self._made.resume_point}")
        else:
            message = f"{words}; given up after {self._made.fruitless} tries without progress"
            self._ended = RunOutcome("failed", EXIT_FAILED, message, verdict.traceback, self._made.step)
        return "failed"

    # --- hearing the ranks, telling the user ---------------------------------------------

    def _accept_ranks(self) -> None:
        """Take in all that have knocked; who has ended meanwhile may still have left its word."""
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._events_server.accept()
                if self._segment is None:
                    connection.close()
                else:
                    self._segment.accept(connection)

    def _hear(self, event: Any) -> None:
        self._made.saw(event)
        self._voice.event(event)
        if isinstance(event, Warned) and not event.is_printed and event.code not in self._warned:
            self._warned.add(event.code)
            self._voice.say(event.message)
        self._source.handle(event)

    def _show_waiting(self, wanted: Allocation, now: float) -> None:
        patience = self._job.wait_seconds
        if patience is not None:
            patience = max(patience, _FIRST_ANSWER_SECONDS)
        if patience is not None and self._segments == 0 and now - self._waiting_since >= patience:
            reason = wanted.reason or "no devices are free"
            self._ended = RunOutcome("yielded", EXIT_YIELDED, f"no devices in {patience:g} s: {reason}")
        elif self._held.busy is not None and wanted.devices:
            busy = f"waiting for {self._held.busy}, which another process of this machine holds"
            self._voice.show(busy, waiting=True)
        else:
            self._voice.show(wanted.reason, waiting=True)

    # --- stopping ------------------------------------------------------------------------

    def _asked(self, message: Any) -> None:
        if isinstance(message, channel.StopRequested):
            self.stop(resumable=message.resumable, within_seconds=message.within_seconds)

    def _user_lost(self) -> None:
        if self._job.detached:
            self._voice.note("user_left")
        elif self._ended is None and self._stop_outcome is None:
            message = "the user's process is gone; stopped there"
            self.stop(within_seconds=_CLIENT_GONE_GRACE_SECONDS, message=message)

    def stop(
        self, *, resumable: bool = False, within_seconds: float | None = None, message: str = ""
    ) -> None:
        """Checkpoint, then end the run. The second time: end it at once."""
        self._stops += 1
        self._voice.note("stop_asked", times=self._stops)
        outcome: Literal["yielded", "stopped"] = "yielded" if resumable else "stopped"
        code = EXIT_YIELDED if resumable else Stopped.exit_code
        self._stop_outcome = RunOutcome(outcome, code, message, step=self._made.step)
        segment = self._segment
        if segment is None:
            return
        if self._stops > 1:
            segment.kill()
            return
        now = boottime()
        # Ranks that a step or a save keeps busy are waited for, up to the grace if there is one.
        segment.leave(Order.STOP, leave_by=now + (within_seconds or _STOP_PATIENCE_SECONDS))
        if within_seconds is not None:
            segment.killed_at = min(segment.killed_at, now + within_seconds)
        if self._job.fixed:
            segment.signal(signal.SIGTERM)
        elif not self._made.is_fitting:  # there is no step to wait for, and nothing to save
            segment.killed_at = min(segment.killed_at, now + _NO_FIT_GRACE_SECONDS)
            segment.signal(signal.SIGTERM)
            self._is_cut_short = True

    def terminate(self) -> None:
        """SIGTERM came: checkpoint and leave within its grace. Safe in a signal handler."""
        self._terminated = True
        self._reactor.wake()

    def _clean_up(self) -> None:
        """Whatever happened: no process and no device is left."""
        if self._segment is not None:
            while not self._segment.is_over:
                self._segment.kill()
                self._reactor.wait(_POLL_SECONDS)
            self._segment.close()
        self._starter.close()
        self._held.keep_only(())
        outcome = self._ended or RunOutcome("failed", EXIT_FAILED, "the supervisor failed")
        if self._source_started:
            self._source.end(_broker_outcome(outcome), outcome.message or outcome.outcome)

    def _finish(self, outcome: RunOutcome) -> RunOutcome:
        kept = self._made.checkpoint_step or newest_step(self._directory.path)
        step = self._made.step if outcome.outcome == "finished" else kept or 0
        outcome = RunOutcome(**{**vars(outcome), "step": step})
        try:
            self._directory.write_outcome(outcome)
        except OSError as error:  # its user is told all the same
            self._voice.say(f"how the run ended could not be written down: {error}")
        self._user.send(channel.RunEnded(**vars(outcome)))
        self._user.close()
        self._guard.close()
        self._journal.close()
        self._reactor.forget(self._events_server)
        self._events_server.close()
        self._reactor.close()
        self._directory.remove_sockets()
        return outcome


def _ids(devices: tuple[Device, ...]) -> frozenset[str]:
    return frozenset(device.id for device in devices)


def _ended_by_source(wanted: Allocation, step: int) -> RunOutcome:
    reason = wanted.ends_because or ""
    if wanted.outcome is Outcome.FAILED:
        return RunOutcome("failed", EXIT_FAILED, reason, step=step)
    return RunOutcome("yielded", EXIT_YIELDED, reason, step=step)


def _never_began(error: SelfschedError) -> RunOutcome:
    wrong_use = isinstance(error, Refused | NotAllowed)
    return RunOutcome("refused" if wrong_use else "failed", error.exit_code, str(error))


def _broker_outcome(outcome: RunOutcome) -> Outcome:
    match outcome.outcome:
        case "finished":
            return Outcome.FINISHED
        case "stopped" | "yielded":
            return Outcome.CANCELLED
        case _:
            return Outcome.FAILED


def main(arguments: list[str]) -> int:
    """Supervise the run described in a directory; the exit code of its end."""
    os.umask(0o077)
    job = JobDescription.read(Path(arguments[0]))
    try:
        locks = MachineLocks(settings.load(unknown="ignore").lock_dir)
        supervisor = Supervisor(job, choose_source(job), locks=locks)
    except SelfschedError as error:
        RunDirectory(job.run_directory).write_outcome(_never_began(error))
        return error.exit_code
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: supervisor.terminate())
    try:
        return supervisor.run().exit_code
    except Exception:  # noqa: BLE001 - the outermost frame of a process: say it in its log
        traceback.print_exc()
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
