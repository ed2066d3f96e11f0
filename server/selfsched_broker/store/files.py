"""The file of an SQLite store: private, local, whole, and one broker's at a time."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from selfsched_broker.store.contract import StoreUnusable

_NETWORK_FILE_SYSTEMS = frozenset(
    ("nfs", "nfs4", "lustre", "cifs", "smb3", "smbfs", "gpfs", "beegfs", "ceph", "glusterfs", "afs",
     "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "ncpfs", "orangefs", "9p")
)  # fmt: skip


def prepare_directory(path: Path) -> None:
    """Make the state directory, or see that it is private.

    Raises:
        StoreUnusable: others may read it, it is not ours, it lies on the network, or cannot be made.
    """
    directory = path.parent
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnusable(f"the state directory {directory} cannot be made: {error.strerror}") from error
    _check_private(directory, 0o700)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise StoreUnusable(f"the state directory {directory} cannot be written: chmod u+wx {directory}")
    kind = file_system_of(directory)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise StoreUnusable(
            f"{directory} lies on a network file system ({kind}), where SQLite's locks do not hold: "
            "choose a local directory, or a PostgreSQL store"
        )


def prepare_file(path: Path) -> bool:
    """Make the database's file with mode 0600, or see that it is private.

    Returns:
        Whether it was made now.

    Raises:
        StoreUnusable: others may read it, or it is empty (cut off: SQLite would begin anew).
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        return True
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreUnusable(f"{path} cannot be made: {error.strerror}") from error
    for part in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        if part.exists():
            _check_private(part, 0o600)
    if path.stat().st_size == 0 and not path.with_name(path.name + "-wal").exists():
        raise StoreUnusable(
            f"{path} is empty: restore a backup over it, or remove it to begin with empty books"
        )
    return False


def _check_private(path: Path, mode: int) -> None:
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise StoreUnusable(f"{path} belongs to another user (uid {found.st_uid}): start the broker as it")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise StoreUnusable(f"{path} can be read by others: chmod {mode:o} {path}")


def file_system_of(path: Path, mounts: Path = Path("/proc/mounts")) -> str | None:
    """Kind of the file system that holds a path; None where it cannot be told."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    real = path.resolve()
    best, kind = Path("/"), None
    for line in lines:
        _, point, found, *_ = line.split()
        point_path = Path(point.replace("\\040", " "))
        if real.is_relative_to(point_path) and len(point_path.parts) >= len(best.parts):
            best, kind = point_path, found
    return kind


class FileLock:
    """The right to be the one broker on this file; gone with the process that holds it."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        self._descriptor: int | None = None

    def take(self) -> None:
        """Take the lock and write our process id into it.

        Raises:
            StoreUnusable: another broker has it; the message names its process.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise StoreUnusable(
                f"another broker (process {holder}) has {self._path.with_suffix('')}: stop it first"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor

    def release(self) -> None:
        """Let go. The file stays: removing it would let two brokers lock two files."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
