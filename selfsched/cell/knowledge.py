"""What a run knows of its own speed, for a picture.

Where a broker decides, the supervisor keeps the run's model and writes it down every few
seconds: it is read from there, so that a cell shows the same figures as every other view. Where
nobody does (a plan, this machine alone) the same model is fed here with the run's events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from selfsched.cell.charts import Predicted
from selfsched.core.bidding import Explanation
from selfsched.core.forecast import LoggedForecast
from selfsched.core.job_model import JobModel
from selfsched.elastic import channel
from selfsched.elastic.job import JobDescription
from selfsched.job_record import MODEL_FILE, UNKNOWN_HARDWARE, read_history, read_model

MOST_PREDICTED = 160


class RunKnowledge:
    """The model of a followed run, as it is known at the moment.

    Args:
        job: the run.
    """

    def __init__(self, job: JobDescription) -> None:
        self._directory = job.run_directory
        self._model: JobModel | None = None
        self._is_fed_here = job.plan is not None or job.without_broker
        self._read_stamp: tuple[int, int] | None = None
        if self._is_fed_here:
            self._model = JobModel(
                hardware=UNKNOWN_HARDWARE, min_devices=job.min_devices, max_devices=job.max_devices
            )

    def take(self, message: Any, now: float) -> None:
        """One message of `channel`, at CLOCK_BOOTTIME `now`."""
        if not self._is_fed_here or self._model is None:
            return
        if isinstance(message, channel.SegmentBegan):
            self._model.segment_started(len(message.devices), message.at)
        elif isinstance(message, channel.SegmentEnded):
            self._model.segment_ended(message.at)
        elif isinstance(message, channel.EventSeen):
            self._model.observe(message.event, now)

    def refresh(self, now: float) -> None:
        """Read what the supervisor has written since, or make a forecast here."""
        if not self._is_fed_here:
            self._model = self._read() or self._model
        elif self._model is not None and self._model.devices and not self._model.fit_finished:
            self._model.forecast(self._model.devices, now)  # which also notes it in the log

    def _read(self) -> JobModel | None:
        try:
            found = (self._directory / MODEL_FILE).stat()
        except OSError:
            return None  # nothing is known yet
        stamp = (found.st_ino, found.st_mtime_ns)
        if stamp == self._read_stamp:
            return None
        self._read_stamp = stamp
        return read_model(self._directory, read_history(self._directory))

    def explanation(self) -> Explanation | None:
        """Parts of a step, measured points, curve; None before the first step."""
        if self._model is None:
            return None
        told = self._model.explanation()
        return told if told.curve else None

    def predicted(self, began_at: float) -> tuple[Predicted, ...]:
        """The forecasts since `began_at`, thinned out, the newest always; seconds since then."""
        made = [entry for entry in self._entries() if entry.made_at >= began_at]
        stride = max(1, -(-len(made) // MOST_PREDICTED))
        kept = made[::-1][::stride][::-1]
        return tuple(_predicted(entry, began_at) for entry in kept)

    def newest(self) -> LoggedForecast | None:
        """The last forecast that was made; None: none so far."""
        entries = list(self._entries())
        return entries[-1] if entries else None

    def _entries(self) -> Iterator[LoggedForecast]:
        yield from self._model.log.entries if self._model is not None else ()


def _predicted(entry: LoggedForecast, began_at: float) -> Predicted:
    made = entry.made_at - began_at
    return Predicted(made, made + entry.p10_seconds, made + entry.p50_seconds, made + entry.p90_seconds)
