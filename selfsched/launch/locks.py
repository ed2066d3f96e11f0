"""Machine-wide slot locks: one file per device, held by whoever computes on it.

A device's lock is an advisory `flock` on an open file *description*. Every process that
inherits the descriptor holds it too, so it stays taken as long as any descendant of its
taker lives, whoever was killed in between, and is free the moment the last one is gone.
Taking it needs no privilege and shows across users, which makes it the proof that a CPU
slot is empty, and keeps two private brokers from leasing one device.

It binds those who take part: a program that never asks is not stopped by it. And a process
that is started by `exec` without the descriptor no longer holds it; whoever proves a slot
empty also looks for live processes of the lease's session.

The directory is `/run/lock/selfsched` where that exists or can be made, else a sticky one
under the system's temporary directory; `SELFSCHED_LOCK_DIR` overrides both.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from selfsched.errors import Refused

DIRECTORY_VARIABLE = "SELFSCHED_LOCK_DIR"
_RUN_LOCK = Path("/run/lock/selfsched")
_STICKY = 0o1777
_PROBE_SECONDS = 0.05
"""Longer than another process's `is_free` can hold a lock that it only tries."""


class DeviceLocks(Protocol):
    """How the supervisor claims the devices of a segment on this machine."""

    def take(self, device_id: str) -> int | None:
        """An inheritable descriptor that holds the device, or None while another holds it."""

    def is_free(self, device_id: str) -> bool:
        """Whether nobody holds the device at this moment."""


class MachineLocks:
    """The locks of this machine. Callable from any thread; holds no state but its directory."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory

    @property
    def directory(self) -> Path:
        """Where the lock files are; made on first use."""
        if self._directory is None:
            self._directory = lock_directory()
        return self._directory

    def take(self, device_id: str) -> int | None:
        """Hold the device until the descriptor is closed in every process that has it.

        Returns:
            An inheritable descriptor, or None while somebody else holds the device.

        Raises:
            Refused: the lock file is no plain file, or may not be opened.
        """
        path = self.path(device_id)
        give_up_at = time.monotonic() + _PROBE_SECONDS
        while True:
            descriptor = _open(path)
            if _try_lock(descriptor):
                if _is_still(path, descriptor):
                    os.set_inheritable(descriptor, True)
                    return descriptor
            elif time.monotonic() >= give_up_at:
                os.close(descriptor)
                return None
            os.close(descriptor)
            # A probe of `is_free` holds the lock for microseconds; a holder for much longer.
            time.sleep(0.002)

    def is_free(self, device_id: str) -> bool:
        """Whether nobody holds the device at this moment.

        Raises:
            Refused: the lock file is no plain file, or may not be opened.
        """
        path = self.path(device_id)
        if not path.exists() and not path.is_symlink():
            return True
        descriptor = _open(path)
        try:
            return _try_lock(descriptor)
        finally:
            os.close(descriptor)

    def path(self, device_id: str) -> Path:
        """The lock file of a device."""
        name = quote(device_id, safe="")
        if not name or len(name) > 200:
            raise Refused(f"{device_id[:60]!r} cannot be the name of a device: 1 to 200 characters")
        return self.directory / f"{name}.lock"


def take(device_id: str) -> int | None:
    """`MachineLocks().take` in this machine's directory."""
    return MachineLocks().take(device_id)


def is_free(device_id: str) -> bool:
    """`MachineLocks().is_free` in this machine's directory."""
    return MachineLocks().is_free(device_id)


def lock_directory() -> Path:
    """The machine's lock directory, made when it is missing.

    Raises:
        Refused: no directory can be made, or the one found is not shared by all users.
    """
    named = os.environ.get(DIRECTORY_VARIABLE)
    if named:
        return _shared_directory(Path(named), must_be_sticky=False)
    try:
        return _shared_directory(_RUN_LOCK)
    except OSError:
        return _shared_directory(Path(tempfile.gettempdir()) / "selfsched-locks")


def _shared_directory(path: Path, *, must_be_sticky: bool = True) -> Path:
    try:
        path.mkdir(parents=False)
        path.chmod(_STICKY)  # mkdir's mode is cut by the umask
    except FileExistsError:
        pass
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise Refused(f"{path} should be the directory of the device locks, but is none: remove it")
    if must_be_sticky and not found.st_mode & stat.S_ISVTX:
        raise Refused(f"{path} must have mode 1777, so that no user removes another's lock: chmod it")
    return path


def _open(path: Path) -> int:
    """Open the lock file, made for everybody when it is missing; never through a link."""
    # O_NONBLOCK: somebody's FIFO of that name must not hang us. Reading is enough for flock,
    # and opening an existing file with O_CREAT is refused in sticky directories of others.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            descriptor = os.open(path, flags)
            break
        except FileNotFoundError:
            _make(path)
        except OSError as error:
            raise Refused(f"the device lock {path} cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused(f"the device lock {path} is no plain file: remove it")
    return descriptor


def _make(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return
    except OSError as error:
        raise Refused(f"the device lock {path} cannot be made: {error.strerror}") from error
    os.fchmod(descriptor, 0o666)  # the umask cut it
    os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the locked file is the one that stands at the path: its owner may remove it."""
    ours = os.fstat(descriptor)
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
