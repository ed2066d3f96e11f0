"""Files that are this user's alone: only such are trusted, and only such are written.

Some files of a run can run code when they are read (pickles), or name what is run. What others could
have changed is refused in words and never mended in silence: a `chmod` afterwards does not tell who wrote
what lies there, and takes no descriptor from who holds one. So a file is judged by what was opened, not by
its name, and is written anew under another name, then renamed.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from selfsched.errors import Refused

_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def fault_of(status: os.stat_result) -> str | None:
    """Why what has this status may be another's work; None: only its owner, this user, could write it."""
    if status.st_uid != os.geteuid():
        return f"belongs to uid {status.st_uid}, not to {os.geteuid()}"
    if status.st_mode & _OF_OTHERS:
        return f"has mode {stat.S_IMODE(status.st_mode):04o}, so that others could have changed it"
    return None


def fault_of_directory(path: Path) -> str | None:
    """As `fault_of`, for a directory that is no symbolic link.

    Raises:
        OSError: it is not there.
    """
    status = path.lstat()
    return fault_of(status) if stat.S_ISDIR(status.st_mode) else "is no directory"


def fault_of_file(path: Path) -> str | None:
    """As `fault_of`, for a plain file that is no symbolic link.

    Raises:
        OSError: it is not there.
    """
    status = path.lstat()
    return fault_of(status) if stat.S_ISREG(status.st_mode) else "is no plain file"


def make_private(directory: Path) -> None:
    """Make a directory, 0700, with what is missing above it, whatever umask the program has set."""
    if not directory.exists():
        make_private(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def open_private(path: Path) -> BinaryIO:
    """Open a plain file to read that no one else could have written.

    Raises:
        FileNotFoundError: there is none.
        Refused: it is a link, no plain file, another user's, or others may write to it.
    """
    try:
        # Not blocking: a pipe of that name would wait for who never writes.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        linked = "is a symbolic link" if path.is_symlink() else f"cannot be read: {error.strerror}"
        raise Refused(f"{path} {linked}") from error
    status = os.fstat(descriptor)
    fault = fault_of(status) if stat.S_ISREG(status.st_mode) else "is no plain file"
    if fault is not None:
        os.close(descriptor)
        raise Refused(f"{path} {fault}: it is not read; remove it if it is not yours")
    return os.fdopen(descriptor, "rb")


@contextmanager
def writing_private(path: Path) -> Iterator[BinaryIO]:
    """Write a new file, 0600, that takes the place of `path` when it is whole; else nothing is changed.

    Raises:
        Refused: the disk is full, or the directory cannot be written to.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    except OSError as error:
        raise _not_written(path, error) from error
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        temporary.replace(path)
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _not_written(path: Path, error: OSError) -> Refused:
    return Refused(f"{path} cannot be written: {error.strerror or error}")
