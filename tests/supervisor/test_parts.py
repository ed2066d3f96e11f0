"""The supervisor's pure and small parts: progress, endings, the wire, the run's directory."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from selfsched.core.events import CheckpointSaved, FitStarted, Left, Progressed
from selfsched.elastic import attach, channel, private_files
from selfsched.elastic.attach import AttachedRun
from selfsched.elastic.channel import Channel, LineReader
from selfsched.elastic.decoding import OutputDecoder
from selfsched.elastic.fixed import FixedEnding
from selfsched.elastic.job import JobDescription
from selfsched.elastic.payload import Payload, read_payload, write_payload
from selfsched.elastic.progress_made import ProgressMade
from selfsched.elastic.progress_text import ProgressText
from selfsched.elastic.run import RunOptions, run_command
from selfsched.elastic.run_directory import BoundedLog, RunDirectory, RunOutcome, open_run
from selfsched.errors import Refused, SelfschedError


def begun(step: int, fit: int = 1, planned: int | None = 90) -> FitStarted:
    return FitStarted(
        fit=fit, package="p", global_batch=8, reference_devices=1, step=step, planned_steps=planned
    )


def at(step: int, **metrics: float) -> Progressed:
    return Progressed(fit=1, step=step, epoch=0, samples=0, metrics=metrics)


# --- progress made -----------------------------------------------------------------------


def test_faults_without_progress_end_the_run_and_progress_begins_the_count_anew() -> None:
    made = ProgressMade()
    made.saw(at(10))
    assert made.may_retry()
    assert made.may_retry(), "the second fault at step 10"
    made.saw(at(11))
    assert made.may_retry(), "it got further"
    assert made.may_retry()
    assert not made.may_retry(), "three at step 11"


def test_a_run_goes_on_from_its_newest_checkpoint_and_says_so() -> None:
    made = ProgressMade()
    assert made.resume_point == "the start"
    made.saw(CheckpointSaved(fit=1, step=7, path=Path("c"), size_bytes=1, seconds=0.1))
    assert made.resume_point == "the checkpoint at step 7"
    made.saw(begun(0, fit=2))
    assert made.resume_point == "the start of fit 2"


def test_leaving_again_where_one_came_in_is_no_progress() -> None:
    made = ProgressMade()
    made.saw(begun(7))
    made.segment_started()
    assert not made.left(Left(rank=0, step=7, reason="ordered"))
    assert made.left(Left(rank=0, step=8, reason="ordered"))


# --- a fixed program's end ---------------------------------------------------------------


def test_a_fixed_program_is_warned_twice_and_terminated_once() -> None:
    ending = FixedEnding(leave_by=1000.0)
    assert ending.due(300.0) == (None, False)
    warning, terminate = ending.due(400.0)
    assert warning is not None
    assert "ends in 600 s" in warning
    assert not terminate
    assert ending.due(500.0) == (None, False)
    assert ending.due(941.0)[0] is not None
    assert ending.due(984.0) == (None, False)
    assert ending.due(985.0) == (None, True)
    assert ending.due(990.0) == (None, False)


# --- progress text -----------------------------------------------------------------------


def test_one_line_says_where_the_run_stands_over_all_segments() -> None:
    text = ProgressText()
    assert text.line() == ""
    text.take(channel.SegmentBegan(ordinal=0, devices=("a", "b"), reason="", at=0.0))
    text.take(channel.EventSeen(event=begun(0)))
    text.take(channel.EventSeen(event=at(45, loss=0.412345, accuracy=0.9)))
    text.take(channel.StatusSeen(text="finish 14:05"))
    bar = "[##########..........] 50%"
    assert text.line() == f"{bar}  step 45/90  2 devices  loss 0.4123  accuracy 0.9  finish 14:05"
    text.take(channel.SegmentEnded(ordinal=0, reason="yielded", words="", step=45, at=0.0))
    text.take(channel.StatusSeen(text="for alice", waiting=True))
    assert text.line() == f"{bar}  step 45/90  waiting  loss 0.4123  accuracy 0.9  for alice"


def test_an_unknown_end_is_not_made_up() -> None:
    text = ProgressText()
    text.take(channel.EventSeen(event=begun(5, planned=None)))
    assert text.line() == "step 5"


# --- the wire ----------------------------------------------------------------------------


def pair() -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours), Channel(theirs)


def test_messages_arrive_whole_and_in_order() -> None:
    ours, theirs = pair()
    ours.send(channel.Said(text="a\nb"))
    ours.send(channel.EventSeen(event=begun(3)))
    assert theirs.receive() == [channel.Said(text="a\nb"), channel.EventSeen(event=begun(3))]
    ours.close()
    assert theirs.receive() == []
    assert not theirs.is_open
    theirs.close()


def test_a_client_that_does_not_read_loses_output_but_no_word() -> None:
    ours, theirs = pair()
    block = "x" * 100_000
    for _ in range(100):
        ours.send(channel.OutputSeen(stream="stdout", text=block))
    ours.send(channel.RunEnded(outcome="finished", exit_code=0))
    got: list[Any] = []
    while ours.has_backlog:
        got += theirs.receive()
        ours.flush()
    got += theirs.receive()
    assert len(got) < 100
    assert got[-1] == channel.RunEnded(outcome="finished", exit_code=0)
    ours.close()
    theirs.close()


def test_a_line_beyond_all_measure_is_dropped_and_the_next_one_read() -> None:
    reader = LineReader(longest_line_bytes=10)
    assert reader.feed(b"x" * 20) == []
    assert reader.feed(b"xxx\nshort\nha") == [b"short"]
    assert reader.feed(b"lf\n") == [b"half"]


def test_output_is_cut_nowhere_inside_a_character() -> None:
    decoder, heard = OutputDecoder(), []
    for piece in ("né".encode()[:2], "né".encode()[2:], b"\xff"):
        decoder.feed("stdout", piece, lambda stream, text: heard.append(text))
    decoder.feed("stderr", "é".encode()[:1], lambda stream, text: heard.append(text))
    decoder.flush(lambda stream, text: heard.append(text))
    assert heard == ["n", "é", "\ufffd", "\ufffd"]


# --- the run's directory -----------------------------------------------------------------


def test_an_unfinished_run_is_found_by_its_name_and_a_finished_one_begins_anew(tmp_path: Path) -> None:
    directory, lock = open_run("mine", parent=tmp_path)
    assert directory.path.stat().st_mode & 0o777 == 0o700
    (directory.path / "kept").write_text("")
    with pytest.raises(Refused, match="running already"):
        open_run("mine", parent=tmp_path)
    os.close(lock)
    directory, lock = open_run("mine", parent=tmp_path)
    assert (directory.path / "kept").exists()
    directory.write_outcome(RunOutcome("finished", 0))
    os.close(lock)
    directory, lock = open_run("mine", parent=tmp_path)
    assert not (directory.path / "kept").exists()
    assert directory.read_outcome() is None
    os.close(lock)


@pytest.mark.parametrize("name", ["", "../up", "a/b", "-x", "x" * 65, "<b>", "a\n"])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match="is no name for a job"):
        open_run(name, parent=tmp_path)


@pytest.mark.parametrize("failing", ["write", "start"])
def test_a_start_that_failed_leaves_the_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    directory, lock = open_run("mine", parent=tmp_path)
    job = JobDescription(run_directory=directory.path, program="command", working_directory=tmp_path)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    where = (attach, "_start_supervisor") if failing == "start" else (private_files.tempfile, "mkstemp")
    monkeypatch.setattr(*where, Mock(side_effect=full))
    with pytest.raises(SelfschedError, match="No space left on device"):
        AttachedRun(job, lock)
    _, lock = open_run("mine", parent=tmp_path)
    os.close(lock)


def test_options_that_are_found_wrong_late_leave_the_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "cwd", Mock(side_effect=FileNotFoundError("the directory was removed")))
    with pytest.raises(Refused, match="the working directory is gone"):
        run_command([sys.executable], RunOptions(name="mine", runs_directory=tmp_path, plan="1@0"))
    monkeypatch.undo()
    _, lock = open_run("mine", parent=tmp_path)
    os.close(lock)


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="is not a directory of yours"):
        open_run("mine", parent=tmp_path)


def test_old_unnamed_runs_are_removed_but_no_live_one(tmp_path: Path) -> None:
    first, lock = open_run(None, parent=tmp_path)
    for _ in range(25):
        os.close(open_run(None, parent=tmp_path)[1])
    assert len(list(tmp_path.iterdir())) <= 21
    assert first.path.exists()
    os.close(lock)


def test_sockets_fit_in_their_108_bytes_however_deep_the_run_lies(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    directory = RunDirectory(deep)
    server = channel.listen(directory.supervisor_socket)
    assert RunDirectory(deep).supervisor_socket == directory.supervisor_socket
    connection = channel.connect(RunDirectory(deep).supervisor_socket)
    assert connection is not None
    connection.close()
    server.close()
    short = directory.supervisor_socket.parent
    assert short.stat().st_mode & 0o777 == 0o700
    directory.remove_sockets()
    assert not short.exists()


def test_a_log_is_bounded(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log", limit_bytes=1000)
    for number in range(1000):
        log.write(f"line {number}\n".encode())
    assert log.tail().endswith("line 999\n")
    log.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2000


# --- the payload -------------------------------------------------------------------------


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


def test_a_payload_comes_back_private_to_its_user(tmp_path: Path) -> None:
    path = tmp_path / "payload.pkl"
    write_payload(Payload(module=Holder(3), trainer_arguments={"max_epochs": 2}), path)
    assert path.stat().st_mode & 0o777 == 0o600
    payload = read_payload(path)
    assert payload.module.value == 3
    assert payload.trainer_arguments == {"max_epochs": 2}


def test_what_cannot_travel_is_named_down_to_the_attribute(tmp_path: Path) -> None:
    inner = Holder({"guards": [threading.Lock()]})
    with pytest.raises(Refused, match=r"module\.value\.value\['guards'\]\[0\] \(a _thread\.lock\)"):
        write_payload(Payload(module=Holder(inner)), tmp_path / "payload.pkl")
    payload = Payload(module=None, trainer_arguments={"callbacks": [Holder(threading.Lock())]})
    with pytest.raises(Refused, match=r"Trainer\(callbacks=\.\.\.\)\[0\]\.value"):
        write_payload(payload, tmp_path / "payload.pkl")


def test_an_earlier_trainer_in_the_data_module_stays_here(tmp_path: Path) -> None:
    data = Holder(1)
    data.trainer = threading.Lock()  # type: ignore[attr-defined]
    write_payload(Payload(module=None, datamodule=data), tmp_path / "payload.pkl")
    assert data.trainer is not None  # type: ignore[attr-defined]
    assert read_payload(tmp_path / "payload.pkl").datamodule.trainer is None
