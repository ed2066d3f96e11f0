"""Slot locks: held by every descendant, never by nobody."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from selfsched.errors import Refused
from selfsched.launch.locks import DIRECTORY_VARIABLE, MachineLocks, lock_directory


@pytest.fixture
def locks(tmp_path: Path) -> MachineLocks:
    return MachineLocks(tmp_path)


def test_a_device_is_taken_once_and_free_after_its_descriptor_is_closed(locks: MachineLocks) -> None:
    first = locks.take("slot/0")
    assert first is not None
    assert locks.take("slot/0") is None
    assert not locks.is_free("slot/0")
    assert locks.is_free("slot/1")
    os.close(first)
    assert locks.is_free("slot/0")
    second = locks.take("slot/0")
    assert second is not None
    os.close(second)


def test_the_lock_file_is_open_to_every_user_and_its_descriptor_is_inherited(locks: MachineLocks) -> None:
    before = os.umask(0o077)
    try:
        descriptor = locks.take("GPU-1")
    finally:
        os.umask(before)
    assert descriptor is not None
    assert os.get_inheritable(descriptor)
    assert stat.S_IMODE(locks.path("GPU-1").stat().st_mode) == 0o666
    os.close(descriptor)


def test_it_stays_held_until_the_last_descendant_is_gone(locks: MachineLocks) -> None:
    descriptor = locks.take("slot0")
    assert descriptor is not None
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[descriptor])
    os.close(descriptor)
    try:
        assert not locks.is_free("slot0")
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert locks.is_free("slot0")


def test_it_follows_no_symbolic_link(locks: MachineLocks, tmp_path: Path) -> None:
    locks.path("slot0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="cannot be opened"):
        locks.take("slot0")
    with pytest.raises(Refused, match="cannot be opened"):
        locks.is_free("slot0")
    assert not (tmp_path / "elsewhere").exists()


def test_a_fifo_in_its_place_is_refused_and_does_not_hang(locks: MachineLocks) -> None:
    os.mkfifo(locks.path("slot0"))
    with pytest.raises(Refused, match="no plain file"):
        locks.take("slot0")


def test_the_directory_is_made_sticky_and_writable_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "locks"))
    assert stat.S_IMODE(lock_directory().stat().st_mode) == 0o1777


def test_a_file_where_the_directory_should_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locks").write_text("")
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "locks"))
    with pytest.raises(Refused, match="should be the directory"):
        lock_directory()


@pytest.mark.parametrize("name", ["", "x" * 300])
def test_a_name_that_fits_no_file_is_refused(locks: MachineLocks, name: str) -> None:
    with pytest.raises(Refused, match="cannot be the name"):
        locks.take(name)
