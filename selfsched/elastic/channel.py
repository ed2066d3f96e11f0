"""The wire between a run's client and its supervisor: JSON lines over a Unix socket.

Up goes what the user asks for (`StopRequested`), down what there is to show. Losing the
socket is a message too: to the supervisor that its user is gone, to the client that the
supervisor was killed.
"""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from selfsched.core.events import Event
from selfsched.core.lines import to_line

_LONGEST_LINE_BYTES = 8 * 1024 * 1024
_BACKLOG_BYTES = 4 * 1024 * 1024


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class StopRequested(_Frozen):
    """Client -> supervisor: checkpoint and end. The second one kills."""

    kind: Literal["stop_requested"] = "stop_requested"
    within_seconds: float | None = None
    """Be gone by then (a SIGTERM's grace); None: at the end of the step."""
    resumable: bool = False
    """End as `yielded` (exit code 75) and not as stopped by the user."""


class OutputSeen(_Frozen):
    """Rank 0 printed."""

    kind: Literal["output_seen"] = "output_seen"
    stream: Literal["stdout", "stderr"]
    text: str


class EventSeen(_Frozen):
    """A rank's event, passed on."""

    kind: Literal["event_seen"] = "event_seen"
    event: Event


class SegmentBegan(_Frozen):
    """A segment's processes are being started."""

    kind: Literal["segment_began"] = "segment_began"
    ordinal: int
    devices: tuple[str, ...]
    reason: str
    at: float


class SegmentEnded(_Frozen):
    """A segment's processes are gone."""

    kind: Literal["segment_ended"] = "segment_ended"
    ordinal: int
    reason: str
    words: str
    step: int
    at: float


class StatusSeen(_Frozen):
    """What stands beside the progress bar: waiting for what, predicted finish."""

    kind: Literal["status_seen"] = "status_seen"
    text: str
    waiting: bool = False


class Said(_Frozen):
    """Something to tell the user once."""

    kind: Literal["said"] = "said"
    text: str
    at: float | None = None
    """CLOCK_BOOTTIME; None: now."""


class RunEnded(_Frozen):
    """The last message: no process of the run is left but the supervisor itself."""

    kind: Literal["run_ended"] = "run_ended"
    outcome: Literal["finished", "failed", "refused", "yielded", "stopped"]
    exit_code: int
    message: str = ""
    traceback: str = ""
    step: int = 0


Message = (
    StopRequested | OutputSeen | EventSeen | SegmentBegan | SegmentEnded | StatusSeen | Said | RunEnded
)
_MESSAGE: TypeAdapter[Any] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])


class LineReader:
    """Whole lines out of a socket's pieces; a line beyond all measure is dropped."""

    def __init__(self, longest_line_bytes: int = _LONGEST_LINE_BYTES) -> None:
        self._rest = bytearray()
        self._longest_line_bytes = longest_line_bytes
        self._too_long = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes."""
        self._rest += data
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        whole = [bytes(line) for line in lines]
        if whole and self._too_long:
            del whole[0]
            self._too_long = False
        if len(self._rest) > self._longest_line_bytes:
            self._rest.clear()
            self._too_long = True
        return [line for line in whole if line]


class Channel:
    """One end of the wire. Not thread-safe; the socket does not block.

    What the other end does not read is kept up to a bound, then output of the ranks is
    left out (and counted), never anything else.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._reader = LineReader()
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._left_out_bytes = 0
        self.is_open = True

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_backlog(self) -> bool:
        """Whether `flush` has something to do once the socket is writable."""
        return bool(self._backlog)

    def send(self, message: Message) -> None:
        """Send, or keep for `flush` when the other end is slow."""
        if not self.is_open:
            return
        if self._backlog_bytes > _BACKLOG_BYTES and isinstance(message, OutputSeen):
            self._left_out_bytes += len(message.text)
            return
        if self._left_out_bytes and self._backlog_bytes < _BACKLOG_BYTES // 2:
            note = f"\n[selfsched: {self._left_out_bytes} bytes of output left out; see output.log]\n"
            self._left_out_bytes = 0
            self._append(OutputSeen(stream="stderr", text=note))
        self._append(message)
        self.flush()

    def _append(self, message: Message) -> None:
        line = to_line(message)
        self._backlog.append(line)
        self._backlog_bytes += len(line)

    def flush(self) -> None:
        """Write as much of the backlog as the socket takes."""
        while self._backlog and self.is_open:
            line = self._backlog[0]
            try:
                written = self._socket.send(line)
            except BlockingIOError:
                return
            except OSError:
                self.close()
                return
            self._backlog_bytes -= written
            if written == len(line):
                self._backlog.popleft()
            else:
                self._backlog[0] = line[written:]

    def receive(self) -> list[Any]:
        """What has arrived; `is_open` is False once the other end is gone."""
        messages: list[Any] = []
        while self.is_open:
            try:
                data = self._socket.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.close()
                break
            messages += [_MESSAGE.validate_json(line) for line in self._reader.feed(data)]
        return messages

    def close(self) -> None:
        """Close the socket; what is not sent yet is lost."""
        self.is_open = False
        self._backlog.clear()
        self._backlog_bytes = 0
        self._socket.close()


def listen(path: Path) -> socket.socket:
    """A listening Unix socket of this user alone."""
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind(str(path))
        path.chmod(0o600)  # the directory is 0700 already
        server.listen(64)
    except OSError:
        server.close()
        raise
    server.setblocking(False)
    return server


def connect(path: Path) -> socket.socket | None:
    """A connection to the socket at `path`; None while nobody listens there."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(FileNotFoundError, ConnectionRefusedError):
        client.connect(str(path))
        return client
    client.close()
    return None
