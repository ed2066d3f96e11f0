"""The run's own directory: private, bounded, and the place where a run is found again.

::

    RUN/                    0700, of this user
      job.json              what is run (`job.JobDescription`)
      payload.pkl           module, data and trainer arguments, for `selfsched.Trainer`; stays when a
                            detached run has ended, so that its module can be built again
      cell.py               the script of a notebook's `%%selfsched run`
      events.jsonl[.1]      events of ranks and segments, bounded
      output.log[.1]        what rank 0 printed, bounded
      rank-N.log[.1]        what the other ranks printed, bounded
      supervisor.log        its own troubles
      outcome.json          how the run ended; missing while it runs or when it was killed
      lock                  flock of the live supervisor
      ...                   restart checkpoints (`elastic.checkpoints`), result.pt

Sockets live in `RUN/` too, or in a short private directory where its path is too long for
a socket's name (108 bytes).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from selfsched.elastic.private_files import fault_of_directory
from selfsched.errors import Refused

_LONGEST_SOCKET_PATH = 100
"""Of 108 bytes with the final zero; some room for the file's own name."""
_LOCK_TRIES, _LOCK_PAUSE_SECONDS = 3, 0.01
"""Who looks whether a run is alive holds its lock, shared, for a moment."""
_KEPT_UNNAMED_RUNS = 20
_KEPT_PAYLOADS = 5
"""Of unnamed detached runs that ended: data sets in memory are part of them."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended, as left in its directory and told to its client."""

    outcome: Literal["finished", "failed", "refused", "yielded", "stopped"]
    exit_code: int
    message: str = ""
    """One line for the user; empty when there is nothing to say."""
    traceback: str = ""
    """Of the user's code that raised, if it did."""
    step: int = 0
    """Global step reached; where it did not finish that of the newest checkpoint, 0: none."""


class RunDirectory:
    """One run's directory and the paths in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sockets: Path | None = None

    @property
    def payload(self) -> Path:
        return self.path / "payload.pkl"

    @property
    def cell(self) -> Path:
        """The script of a notebook's `%%selfsched run`; segments to come read it too."""
        return self.path / "cell.py"

    @property
    def result(self) -> Path:
        """What a payload's fit hands back: weights, callback states, metrics."""
        return self.path / "result.pt"

    @property
    def supervisor_socket(self) -> Path:
        return self._socket_directory() / "supervisor"

    @property
    def events_socket(self) -> Path:
        return self._socket_directory() / "events"

    def _socket_directory(self) -> Path:
        if self._sockets is None:
            self._sockets = self._find_socket_directory()
        return self._sockets

    def _find_socket_directory(self) -> Path:
        if len(os.fsencode(self.path / "supervisor")) <= _LONGEST_SOCKET_PATH:
            return self.path
        pointer = self.path / "sockets"
        with suppress(FileNotFoundError):
            return _private(Path(pointer.read_text()))
        made = Path(tempfile.mkdtemp(prefix="selfsched-"))
        if len(os.fsencode(made / "supervisor")) > _LONGEST_SOCKET_PATH:
            made.rmdir()
            made = Path(tempfile.mkdtemp(prefix="selfsched-", dir="/tmp"))
        pointer.write_text(str(made))
        return made

    def remove_sockets(self) -> None:
        """Remove the sockets and, where they had one, their short directory."""
        for path in (self.supervisor_socket, self.events_socket):
            path.unlink(missing_ok=True)
        if self._socket_directory() != self.path:
            shutil.rmtree(self._socket_directory(), ignore_errors=True)
            (self.path / "sockets").unlink(missing_ok=True)
        self._sockets = None

    def lock(self) -> int | None:
        """Hold the run: a descriptor for the supervisor, or None while one is alive."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOCK_PAUSE_SECONDS)
            else:
                return descriptor
        os.close(descriptor)
        return None

    @property
    def is_held(self) -> bool:
        """Whether a supervisor is alive: it holds the lock as long as it lives."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)  # which gives our own hold back too
        return False

    def live_supervisor_socket(self) -> Path | None:
        """Where a supervisor that is alive listens; None: there is none. Makes nothing."""
        pointer = self.path / "sockets"
        with suppress(OSError):
            path = Path(pointer.read_text()) if pointer.exists() else self.path
            return path / "supervisor" if self.is_held and (path / "supervisor").exists() else None
        return None

    def write_outcome(self, outcome: RunOutcome) -> None:
        """Leave word of how the run ended; atomic."""
        temporary = self.path / ".outcome.json"
        temporary.write_text(json.dumps(asdict(outcome)))
        temporary.replace(self.path / "outcome.json")

    def read_outcome(self) -> RunOutcome | None:
        """How the run ended; None while it runs, or when it was killed."""
        try:
            return RunOutcome(**json.loads((self.path / "outcome.json").read_text()))
        except (FileNotFoundError, ValueError, TypeError):  # the last two: of another version, or damaged
            return None

    def clear(self) -> None:
        """Forget an earlier run of the same name; the lock is kept."""
        for entry in self.path.iterdir():
            if entry.name == "lock":
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


def runs_parent() -> Path:
    """Where this user's runs are kept unless the setting `runs_dir` says otherwise."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "selfsched" / "runs"


def open_run(name: str | None, *, parent: Path | None = None) -> tuple[RunDirectory, int]:
    """Make the directory of a new run, or find that of an unfinished one of the same name.

    Returns:
        The directory, and the descriptor that holds its lock; it is to be inherited by the
        supervisor. Restart checkpoints in it are of this job.

    Raises:
        Refused: a bad name, a run of that name is alive, or the directory is not private.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise Refused(
            f"{name[:80]!r} is no name for a job: letters, digits, '.', '_' and '-', at most 64, "
            "the first a letter or digit"
        )
    runs = parent or runs_parent()
    try:
        runs.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Refused(f"the runs' directory {runs} cannot be made: {error.strerror}") from error
    if name is None:
        _prune(runs)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        path = Path(tempfile.mkdtemp(prefix=f"_run-{stamp}-", dir=runs))
    else:
        path = runs / name
        path.mkdir(exist_ok=True, mode=0o700)
    return _hold(RunDirectory(_private(path.absolute())), name)


def reopen_run(path: Path) -> tuple[RunDirectory, int]:
    """Hold the directory of an unfinished run once more, to go on in it."""
    return _hold(RunDirectory(_private(path)), path.name)


@contextmanager
def released_on_failure(lock: int) -> Iterator[None]:
    """What fails before a supervisor has a run's lock leaves the run free. An interrupt is such too."""
    try:
        yield
    except BaseException:
        os.close(lock)
        raise


def _hold(directory: RunDirectory, name: str | None) -> tuple[RunDirectory, int]:
    descriptor = directory.lock()
    if descriptor is None:
        raise Refused(
            f"the job {name} is running already: wait for it, choose another --name, or follow it "
            f"(`selfsched attach {name}`; selfsched.attach({name!r}) in Python)"
        )
    with released_on_failure(descriptor):
        before = directory.read_outcome()
        if before is not None and before.outcome == "finished":
            directory.clear()
        (directory.path / "outcome.json").unlink(missing_ok=True)
    return directory, descriptor


def _private(path: Path) -> Path:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Refused(f"{path} is not a directory of yours: remove it or choose another --name")
    fault = fault_of_directory(path)
    if fault is not None:  # what lies there may be theirs, which no chmod mends
        raise Refused(f"{path} {fault} or put files there; remove it or choose another --name")
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def _prune(runs: Path) -> None:
    """Remove the oldest unnamed runs that ended; named ones are kept until run again."""
    unnamed = sorted(path for path in runs.glob("_run-*") if path.is_dir() and not path.is_symlink())
    with_payload = [directory for directory in map(RunDirectory, unnamed) if directory.payload.exists()]
    for directory in with_payload[:-_KEPT_PAYLOADS]:
        with suppress(OSError):
            if not directory.is_held:
                directory.payload.unlink(missing_ok=True)
    for path in unnamed[: -(_KEPT_UNNAMED_RUNS - 1)]:
        directory = RunDirectory(path)
        with suppress(OSError):
            descriptor = directory.lock()
            if descriptor is not None:
                os.close(descriptor)
                shutil.rmtree(path, ignore_errors=True)


class BoundedLog:
    """A file that never holds more than twice its limit: when full it becomes `NAME.1`."""

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._file = self._open()

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path, flags, 0o600)
        self._size_bytes = os.fstat(descriptor).st_size
        return descriptor

    def write(self, data: bytes) -> None:
        """Append. A full disk loses the lines, never the run."""
        if self._size_bytes + len(data) > self._limit_bytes:
            os.close(self._file)
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._open()
        with suppress(OSError):
            self._size_bytes += os.write(self._file, data)

    def tail(self, limit_bytes: int = 4000) -> str:
        """Its last bytes, as text."""
        with open(self._path, "rb") as file:
            file.seek(max(0, self._size_bytes - limit_bytes))
            return file.read().decode(errors="replace")

    def close(self) -> None:
        os.close(self._file)
