"""Reading a `BoundedLog` that another process writes: from its beginning or its end, over its turns.

The writer renames a full `NAME` to `NAME.1` and begins anew. A reader keeps the file it was in open,
reads it to its end and goes on in the next one: nothing is lost as long as it looks once while
a whole file is being written.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_MOST_BYTES = 1024 * 1024


class Tail:
    """What a log holds, and then what is appended to it.

    Args:
        path: of the newer of its two files; neither need exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: list[int] = []
        """Descriptors, older first; the first is being read."""
        self._left = -1
        """Inode of the file that was read to its end last."""

    def skip_to_last(self, count: int) -> bool:
        """Begin so many bytes before the end; whether that leaves anything out."""
        self._open()
        for at in range(len(self._files) - 1, -1, -1):
            size = os.fstat(self._files[at]).st_size
            if size >= count:
                for older in self._files[:at]:
                    os.close(older)
                del self._files[:at]
                os.lseek(self._files[0], size - count, os.SEEK_SET)
                return at > 0 or size > count
            count -= size
        return False

    def read(self) -> bytes:
        """Some of what was not read yet; empty: there is nothing new."""
        while self._files or self._open():
            data = os.read(self._files[0], _MOST_BYTES)
            if not data and self._is_put_aside():
                # Nothing is appended to it any more: what came before it was put aside is the rest.
                data = os.read(self._files[0], _MOST_BYTES)
                if not data:
                    self._left = os.fstat(self._files[0]).st_ino
                    os.close(self._files.pop(0))
                    continue
            return data
        return b""

    def _is_put_aside(self) -> bool:
        if len(self._files) > 1:
            return True
        try:
            return self._path.stat().st_ino != os.fstat(self._files[0]).st_ino
        except OSError:
            return False  # between the renaming and the new file

    def _open(self) -> bool:
        # The newer one first: if it is put aside in between, it is then found twice and not missed.
        for path in (self._path, self._path.with_name(self._path.name + ".1")):
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                inode = os.fstat(descriptor).st_ino
                if inode == self._left or inode in [os.fstat(file).st_ino for file in self._files]:
                    os.close(descriptor)
                else:
                    self._files.insert(0, descriptor)
        return bool(self._files)

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self._files:
            os.close(descriptor)
        self._files.clear()
