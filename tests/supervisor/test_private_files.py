"""What can run code when it is read, or says what is run, is this user's alone, or is not read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from detached.made_up import MadeUpRun

import selfsched
from selfsched.elastic import private_files
from selfsched.elastic.job import JobDescription
from selfsched.elastic.payload import PYTHON_VERSION, Payload, read_payload, write_payload
from selfsched.elastic.private_files import open_private, writing_private
from selfsched.elastic.run_directory import open_run
from selfsched.errors import CheckpointUnusable, Refused


class Harmful:
    """Code of somebody else, which runs when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def as_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the files that were made are another user's."""
    monkeypatch.setattr(private_files.os, "geteuid", lambda: os.getuid() + 1)


def linked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.symlink_to(path.rename(path.with_name("elsewhere")))


def open_to_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o666)


def of_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_another(monkeypatch)


def a_pipe(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(linked, "is a symbolic link"), (open_to_others, "mode 0666"), (of_another_user, "belongs to uid"),
     (a_pipe, "is no plain file")],
)  # fmt: skip
def test_a_payload_that_others_could_have_written_is_refused_before_a_byte_of_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[..., None], words: str
) -> None:
    path = tmp_path / "payload.pkl"
    write_payload(Payload(module=Harmful(tmp_path / "ran")), path)
    spoil(path, monkeypatch)
    with pytest.raises(Refused, match=words):
        read_payload(path)
    assert not (tmp_path / "ran").exists()


def test_what_is_written_is_a_new_file_and_not_the_one_that_another_holds_open(tmp_path: Path) -> None:
    path = tmp_path / "payload.pkl"
    path.touch(0o666)
    with path.open("r+b") as held:
        write_payload(Payload(module=1), path)
        held.write(b"planted")
    assert read_payload(path).module == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["payload.pkl"]


def test_a_file_that_was_not_written_whole_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_text("before")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def half() -> None:
        with writing_private(path) as file:
            file.write(b"half")
            raise full

    with pytest.raises(Refused, match="kept cannot be written: No space left"):
        half()
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["kept"]


def test_a_file_that_is_not_there_is_no_refusal(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_private(tmp_path / "none")


def test_a_run_directory_that_others_may_write_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o777)
    with pytest.raises(Refused, match="mode 0777, so that others could have changed it or put files there"):
        open_run("mine", parent=tmp_path)
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o777


def test_one_that_others_may_only_read_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o755)
    directory, lock = open_run("mine", parent=tmp_path)
    os.close(lock)
    assert directory.path.stat().st_mode & 0o777 == 0o700


def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUpRun:
    monkeypatch.setenv("SELFSCHED_RUNS_DIR", str(tmp_path))
    run = MadeUpRun(tmp_path, python_version=PYTHON_VERSION)
    write_payload(Payload(module=Harmful(tmp_path / "ran")), run.directory.payload)
    return run


@pytest.mark.parametrize("spoilt", ["", "fits"])
def test_a_run_with_a_directory_that_others_may_write_is_not_attached_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    run = made_up(tmp_path, monkeypatch)
    run.end()
    (run.directory.path / spoilt).mkdir(exist_ok=True)
    (run.directory.path / spoilt).chmod(0o777)
    with pytest.raises(CheckpointUnusable, match="nothing is read from there"):
        selfsched.attach("night")
    assert not (tmp_path / "ran").exists()


def test_a_description_that_others_may_write_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_up(tmp_path, monkeypatch)
    run.end()
    (run.directory.path / "job.json").chmod(0o666)
    with pytest.raises(Refused, match="damaged, another user's, or of another version"):
        selfsched.attach("night")
    with pytest.raises(Refused, match="mode 0666"):
        JobDescription.read(run.directory.path)
