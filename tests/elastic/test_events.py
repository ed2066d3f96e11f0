"""The way up: in order, never in the way, and silent where nobody listens."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from selfsched.core.events import (
    CheckpointSaved,
    Left,
    Progressed,
    RankStarted,
    StepsTimed,
    StepTiming,
    event_from_line,
)
from selfsched.elastic import events
from selfsched.elastic.events import EventWriter


@contextmanager
def supervisor(path: Path, *, reading: threading.Event | None = None) -> Iterator[list[Any]]:
    """A supervisor that listens at `path` and reads when it is let."""
    heard: list[Any] = []
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def read() -> None:
        connection, _ = listener.accept()
        if reading is not None:
            reading.wait(10)
        with connection, connection.makefile("rb") as lines:
            heard.extend(event_from_line(line) for line in lines)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield heard
    finally:
        thread.join(10)
        listener.close()
    assert not thread.is_alive()


def timings(step: int) -> StepsTimed:
    return StepsTimed(timings=(StepTiming(step=step, seconds=0.1), StepTiming(step=step + 1, seconds=0.1)))


def test_events_arrive_in_the_order_they_were_sent(tmp_path: Path) -> None:
    sent = [RankStarted(rank=0, pid=1), timings(1), Left(rank=0, step=3, reason="ordered")]
    with supervisor(tmp_path / "events") as heard:
        writer = EventWriter(tmp_path / "events")
        assert all(writer.send(event) for event in sent)
        assert writer.flush()
        writer.close()
    assert heard == sent
    assert not writer.send(sent[0])


def test_where_nobody_listens_the_writer_is_silent(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "nobody")
    for step in range(1000):
        writer.send(Left(rank=0, step=step, reason="ordered"))
    assert not writer.flush()
    writer.close()


def test_what_can_be_spared_is_dropped_and_counted_what_cannot_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_SPARE_LIMIT", 3)
    held, go = threading.Event(), threading.Event()
    convert = events.event_to_line

    def slowly(event: Any) -> bytes:
        held.set()
        go.wait(10)
        return convert(event)

    monkeypatch.setattr(events, "event_to_line", slowly)
    with supervisor(tmp_path / "events") as heard:
        writer = EventWriter(tmp_path / "events")
        writer.send(RankStarted(rank=0, pid=1))  # the thread is busy with this one from now on
        assert held.wait(10)
        kept = [writer.send(timings(step)) for step in range(0, 20, 2)]
        saved = CheckpointSaved(fit=1, step=1, path=tmp_path, size_bytes=1, seconds=1.0)
        assert all(writer.send(saved) for _ in range(50))
        assert not writer.send(Progressed(fit=1, step=1, epoch=0, samples=1))
        assert kept == [True] * 3 + [False] * 7
        assert writer.dropped == 2 * 7 + 1
        go.set()
        writer.close(10)
    assert heard.count(saved) == 50
    assert len(heard) == 1 + 3 + 50


def test_a_supervisor_that_dies_does_not_disturb(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "events"))
    listener.listen()
    writer = EventWriter(tmp_path / "events")
    writer.send(RankStarted(rank=0, pid=1))
    connection, _ = listener.accept()
    connection.close()
    listener.close()
    for step in range(100):  # the first write after the death may still be accepted by the kernel
        writer.send(Left(rank=0, step=step, reason="ordered"))
        if not writer.flush():
            break
    assert not writer.send(Left(rank=0, step=0, reason="ordered"))


def test_a_forked_worker_says_nothing(tmp_path: Path) -> None:
    with supervisor(tmp_path / "events") as heard:
        writer = EventWriter(tmp_path / "events")
        writer.send(RankStarted(rank=0, pid=1))
        writer.flush()
        writer._pid = os.getpid() + 1  # as a fork sees it
        assert not writer.send(Left(rank=0, step=0, reason="ordered"))
        assert not writer.flush()
        writer.close()
        writer._pid = os.getpid()
        writer.close()
    assert heard == [RankStarted(rank=0, pid=1)]


_LAST_WORDS = """
import sys, time
from pathlib import Path
from selfsched.core.events import Left
from selfsched.elastic import events
from selfsched.elastic.process import RankProcess
from selfsched.elastic.segment import SegmentSpec
from selfsched.elastic.worker import _end

convert = events.event_to_line
def slowly(event):
    time.sleep(0.05)
    return convert(event)
events.event_to_line = slowly

where = Path(sys.argv[1])
spec = SegmentSpec(
    run_directory=where, ordinal=0, world_size=1,
    events_socket=where / "events", control_block=where / "control",
)
process = RankProcess(spec, "exit")
process.send(Left(rank=0, step=3, reason="ordered"))
if sys.argv[2] == "as the zygote's children end":
    _end(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["as an interpreter ends", "as the zygote's children end"])
def test_what_was_said_last_is_heard_though_the_process_ends_at_once(tmp_path: Path, way: str) -> None:
    with supervisor(tmp_path / "events") as heard:
        subprocess.run([sys.executable, "-c", _LAST_WORDS, str(tmp_path), way], check=True, timeout=60)
    assert [event.kind for event in heard] == ["rank_started", "left"]
