"""What the supervisor says: to its user's process as it happens, to the run's journal for later."""

from __future__ import annotations

from typing import Any

from selfsched.elastic import channel
from selfsched.elastic.decoding import OutputDecoder, Stream
from selfsched.elastic.journal import Journal
from selfsched.elastic.segment import boottime
from selfsched.elastic.user_link import UserLink


class Voice:
    """One method for each kind of thing there is to say."""

    def __init__(self, journal: Journal, user: UserLink) -> None:
        self._journal = journal
        self._user = user
        self._decoder = OutputDecoder()
        self._status = ""

    def event(self, event: Any) -> None:
        """A rank's event."""
        self._journal.event(event)
        self._user.send(channel.EventSeen(event=event))

    def output(self, stream: str, data: bytes) -> None:
        """Rank 0 printed."""
        self._journal.output(data)
        self._decoder.feed(stream, data, self._pass_text)

    def end_output(self) -> None:
        """A segment is over: nothing completes a character that was cut."""
        self._decoder.flush(self._pass_text)

    def _pass_text(self, stream: Stream, text: str) -> None:
        self._user.send(channel.OutputSeen(stream=stream, text=text))

    def tell(self, message: channel.Message) -> None:
        """Something that belongs to the run's history."""
        self._journal.message(message)
        self._user.send(message)

    def say(self, text: str) -> None:
        """A line for the user."""
        self.tell(channel.Said(text=text, at=boottime()))

    def note(self, kind: str, **fields: str | float | None) -> None:
        """For the journal alone, with the instant."""
        self._journal.say(kind, **fields, at=boottime())

    def show(self, text: str, *, waiting: bool = False) -> None:
        """What stands beside the bar; told when it changes."""
        if text != self._status:
            self._status = text
            self.tell(channel.StatusSeen(text=text, waiting=waiting))
