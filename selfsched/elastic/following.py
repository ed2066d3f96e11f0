"""A run as its directory tells of it: what happened so far, then what happens, up to its end.

Nothing is asked of the supervisor, so this is the same for a run that goes on, one that is over and
one that was killed, and for any number of those who look. Its lock says whether it lives;
`events.jsonl` has what it told its user, with instants; `output.log` what rank 0 printed, both of
its streams in one; `outcome.json` how it ended. Only the supervisor writes there.
"""

from __future__ import annotations

import codecs
import json
import signal
import time
from contextlib import closing, suppress
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from selfsched.core.events import CheckpointSaved, Event
from selfsched.elastic import channel
from selfsched.elastic.attach import View, hearing, left_words
from selfsched.elastic.channel import LineReader
from selfsched.elastic.job import JobDescription
from selfsched.elastic.manifest import newest_step
from selfsched.elastic.run_directory import RunDirectory, RunOutcome
from selfsched.elastic.segment import boottime
from selfsched.elastic.tail import Tail
from selfsched.errors import EXIT_FAILED, Detached

SHOWN_OUTPUT_BYTES = 64 * 1024
"""Of what was printed before one began to look."""
_LOOK_SECONDS = 0.25
_BEGAN = b'{"kind": "supervisor_started"'

_TOLD: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        Event | channel.SegmentBegan | channel.SegmentEnded | channel.StatusSeen | channel.Said,
        Field(discriminator="kind"),
    ]
)
_OWN = (channel.SegmentBegan, channel.SegmentEnded, channel.StatusSeen, channel.Said)


class RunClock:
    """CLOCK_BOOTTIME at the message that is being shown: what is caught up with did not happen now."""

    def __init__(self) -> None:
        self._shown_at: float | None = None
        self.unix_minus_boottime = time.time() - boottime()
        """Of the boot in which the run was last alive."""

    def __call__(self) -> float:
        return boottime() if self._shown_at is None else self._shown_at

    def is_at(self, instant: float | None) -> None:
        """From now on it is this instant; None: the present."""
        self._shown_at = instant

    def began(self, line: bytes) -> None:
        """A life of the run began, at an instant of its boot and a time of the world."""
        with suppress(ValueError, KeyError, TypeError):
            told = json.loads(line)
            self.unix_minus_boottime = float(told["unix"]) - float(told["at"])
            self._shown_at = float(told["at"])


class FollowedRun:
    """A run that somebody looks at.

    Args:
        job: the run.
    """

    def __init__(self, job: JobDescription) -> None:
        self.clock = RunClock()
        self._job = job
        self._directory = directory = RunDirectory(job.run_directory)
        self._events = Tail(directory.path / "events.jsonl")
        self._output = Tail(directory.path / "output.log")
        self._lines = LineReader()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._past = self._last_life()
        self._checkpoint_step = 0
        self._is_left = False

    def follow(self, view: View) -> RunOutcome:
        """Show what happened and what happens, until the run is over.

        Returns:
            How it ended; as failed, with what to do, where it was killed and could not leave word.

        Raises:
            Detached: an interrupt (Ctrl-C, a notebook's Stop); the run goes on.
        """
        files = closing(self._events), closing(self._output)
        with hearing({signal.SIGINT: self._leave}), closing(view), files[0], files[1]:
            self._show_past(view)
            while True:
                is_over = not self._directory.is_held  # looked at first: what is read then is all
                self._show_new(view)
                if is_over:
                    return self._end(view)
                self.clock.is_at(None)
                if self._is_left:
                    raise Detached(left_words(self._job))
                view.refresh()
                time.sleep(_LOOK_SECONDS)

    def _leave(self) -> None:
        self._is_left = True

    def _last_life(self) -> list[bytes]:
        """What was told so far, since the supervisor was started last."""
        lines: list[bytes] = []
        while data := self._events.read():
            for line in self._lines.feed(data):
                if line.startswith(_BEGAN):
                    lines.clear()
                    self.clock.began(line)
                lines.append(line)
        return lines

    def _show_past(self, view: View) -> None:
        for line in self._past:
            self._show_line(view, line)
        self._past = []
        if self._output.skip_to_last(SHOWN_OUTPUT_BYTES):
            whole = self._directory.path / "output.log"
            words = f"what was printed before is in {whole}\n"
            view.show(channel.OutputSeen(stream="stdout", text=words))

    def _show_new(self, view: View) -> None:
        while data := self._events.read():
            for line in self._lines.feed(data):
                self._show_line(view, line)
        while data := self._output.read():
            if text := self._decoder.decode(data):
                view.show(channel.OutputSeen(stream="stdout", text=text))

    def _show_line(self, view: View, line: bytes) -> None:
        try:
            told = _TOLD.validate_json(line)
        except ValidationError:
            return  # the supervisor's own notes, a line that a full disk cut, what another version writes
        instant = getattr(told, "at", None)
        if instant:
            self.clock.is_at(instant)
        if isinstance(told, CheckpointSaved):
            self._checkpoint_step = told.step
        view.show(told if isinstance(told, _OWN) else channel.EventSeen(event=told))

    def _end(self, view: View) -> RunOutcome:
        outcome = self._directory.read_outcome() or self._killed()
        view.show(channel.RunEnded(**vars(outcome)))
        return outcome

    def _killed(self) -> RunOutcome:
        name = self._directory.path.name
        step = newest_step(self._directory.path) or self._checkpoint_step
        kept = f"step {step}" if step else "its beginning: no checkpoint was made"
        again = (
            f"selfsched.attach({name!r}, resume=True) goes on"
            if self._directory.payload.exists()
            else "the same run started again under its name goes on"
        )
        words = (
            f"the run {name} ended without a word: its supervisor was killed, or the machine went down; "
            f"{again} from {kept}"
        )
        return RunOutcome("failed", EXIT_FAILED, words, step=step)
