"""What a run leaves behind in its directory: its events and its output, both bounded."""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic import BaseModel

from selfsched.core.events import event_to_line
from selfsched.core.lines import to_line
from selfsched.elastic.run_directory import BoundedLog, RunDirectory

_EVENTS_BYTES = 16 * 1024 * 1024
_OUTPUT_BYTES = 8 * 1024 * 1024


class Journal:
    """Appends to `events.jsonl` and `output.log`."""

    def __init__(self, directory: RunDirectory) -> None:
        self._events = BoundedLog(directory.path / "events.jsonl", limit_bytes=_EVENTS_BYTES)
        self._output = BoundedLog(directory.path / "output.log", limit_bytes=_OUTPUT_BYTES)

    def event(self, event: Any) -> None:
        """An event of a rank."""
        self._events.write(event_to_line(event))

    def message(self, message: BaseModel) -> None:
        """Something told to the client that belongs to the run's history."""
        self._events.write(to_line(message))

    def say(self, kind: str, **fields: str | float | None) -> None:
        """Something of the supervisor's own."""
        finite = {name: None if value in (math.inf, -math.inf) else value for name, value in fields.items()}
        self._events.write(json.dumps({"kind": kind, **finite}).encode() + b"\n")

    def output(self, data: bytes) -> None:
        """What rank 0 printed."""
        self._output.write(data)

    def close(self) -> None:
        self._events.close()
        self._output.close()
