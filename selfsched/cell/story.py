"""What a run's messages tell, kept for a picture: bounded however long the run lasts. Pure.

Instants are CLOCK_BOOTTIME seconds of the machine, as in the messages; `now` is passed in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from selfsched.cell.charts import Span
from selfsched.core.bidding import devices_words
from selfsched.elastic import channel
from selfsched.elastic.progress_text import ProgressText

MOST_SPANS = 240
MOST_SAID = 60
TAIL_CHARACTERS = 4000
_LONGEST_SENTENCE = 400


class RunStory:
    """Follows a run by the messages of `elastic.channel`."""

    def __init__(self) -> None:
        self.text = ProgressText()
        self.began_at: float | None = None
        self.said: deque[tuple[float, str]] = deque(maxlen=MOST_SAID)
        """(instant, words), oldest first: why the run has what it has, and what else there was to say."""
        self.tail = ""
        """The newest of what rank 0 printed."""
        self.outcome: channel.RunEnded | None = None
        self._spans: list[Span] = []
        """In instants; the last one may be running."""
        self._is_running = False

    def take(self, message: Any, now: float) -> None:
        """One message of `channel`."""
        if self.began_at is None:
            told_at = getattr(message, "at", None)
            self.began_at = now if told_at is None else told_at
        self.text.take(message)
        if isinstance(message, channel.SegmentBegan):
            self._begin(message)
        elif isinstance(message, channel.SegmentEnded):
            self._end(message)
        elif isinstance(message, channel.Said):
            self._say(now if message.at is None else message.at, message.text)
        elif isinstance(message, channel.OutputSeen):
            self.tail = (self.tail + message.text)[-TAIL_CHARACTERS:]
        elif isinstance(message, channel.RunEnded):
            self.outcome = message

    def _begin(self, message: channel.SegmentBegan) -> None:
        step = self.text.step
        self._spans.append(Span(len(message.devices), message.at, message.at, step, step))
        self._is_running = True
        reason = f": {message.reason}" if message.reason else ""
        self._say(message.at, f"on {devices_words(len(message.devices))}{reason}")
        if len(self._spans) > MOST_SPANS:
            self._merge_shortest()

    def _end(self, message: channel.SegmentEnded) -> None:
        if self._is_running:
            last = self._spans[-1]
            step = max(last.first_step, message.step)
            self._spans[-1] = replace(last, end=max(last.begin, message.at), last_step=step)
            self._is_running = False
        if message.words:
            self._say(message.at, message.words)

    def _say(self, at: float, words: str) -> None:
        self.said.append((at, words[:_LONGEST_SENTENCE]))

    def _merge_shortest(self) -> None:
        """Two neighbours that together are the shortest become one; the newest two stay apart."""
        spans = self._spans
        at = min(range(len(spans) - 3), key=lambda i: spans[i + 1].end - spans[i].begin)
        one, other = spans[at], spans[at + 1]
        longer = one if one.end - one.begin >= other.end - other.begin else other
        spans[at : at + 2] = [
            Span(longer.devices, one.begin, other.end, one.first_step, max(one.last_step, other.last_step))
        ]

    def spans(self, now: float) -> tuple[Span, ...]:
        """The stretches so far, in seconds since the run began."""
        if self.began_at is None:
            return ()
        spans = list(self._spans)
        if self._is_running:
            spans[-1] = replace(spans[-1], end=max(spans[-1].begin, now), last_step=self.text.step)
        start = self.began_at
        return tuple(replace(span, begin=span.begin - start, end=span.end - start) for span in spans)

    def elapsed_seconds(self, now: float) -> float:
        """Since the run began."""
        return 0.0 if self.began_at is None else max(0.0, now - self.began_at)
