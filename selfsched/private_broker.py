"""Which broker a job asks, and the private one that is started where there is none.

In this order: the address that was set (`SELFSCHED_BROKER`), the lab's socket where something
answers at it, the user's own private broker on this machine. The last is started by the first
job that needs it, as a process in its own session, and ends by itself some time after its last
job. Two jobs that start at once start one: the looking and starting is done under a file lock.

If a private broker dies, any job that notices starts it again; it finds its books where they
were, so leases stand and no training stops. A lab's broker is its administrator's to start.

Its socket is at two places: in the user's runtime directory, and beside its books in the state
directory. The first is removed at a user's last logout (systemd-logind), while detached runs go
on; cron and `su` do not even name it. The second is there for them.
"""

from __future__ import annotations

import fcntl
import os
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from selfsched.client import BrokerClient
from selfsched.errors import BrokerError, BrokerUnreachable, InvalidSettings, NotAllowed, Refused
from selfsched.settings import BrokerAddress, Settings

START_SECONDS = 30.0
"""Within this a broker that was started listens."""
_REVIVE_EVERY_SECONDS = 5.0
_KNOCK_SECONDS = 2.0
SOCKET_NAME = "broker.sock"
JOIN_WORDS = "a private broker of yours on this machine; to join a lab's, set SELFSCHED_BROKER"


class BrokerAccess:
    """How a job reaches its broker. Callable from any thread.

    Args:
        client: the client of it.
        introduction: said once to the user: whose broker it is. Empty: nothing to say.
        start: starts it again where that is ours to do, and returns where it listens then (None: where
            it did); None: it is not.
    """

    def __init__(
        self,
        client: BrokerClient,
        *,
        introduction: str = "",
        start: Callable[[], BrokerAddress | None] | None = None,
    ) -> None:
        self._client = client
        self._earlier: list[BrokerClient] = []
        self.introduction = introduction
        self._start = start
        self._reviving = threading.Lock()
        self._revive_at = 0.0

    def client(self) -> BrokerClient:
        """The client as of now; it may be used by several threads at once."""
        return self._client

    def revive(self) -> None:
        """After a call that nobody answered: find the broker, or start it, if that is ours to do."""
        if self._start is None or not self._reviving.acquire(blocking=False):
            return
        try:
            if time.monotonic() >= self._revive_at:
                self._follow(self._start())
        except (BrokerError, Refused):
            # Said already by the failed call itself; tried again with the next one.
            self._revive_at = time.monotonic() + _REVIVE_EVERY_SECONDS
        finally:
            self._reviving.release()

    def _follow(self, address: BrokerAddress | None) -> None:
        if address is not None and address != self._client.address:
            self._earlier.append(self._client)  # calls of other threads may still be under way
            self._client = BrokerClient(address)

    def close(self) -> None:
        """Close the connections."""
        for client in (*self._earlier, self._client):
            client.close()


def find_broker(settings: Settings) -> BrokerAccess:
    """The broker of this user and machine, a private one started if need be.

    Raises:
        InvalidSettings: the CA file cannot be read.
        Refused: a private broker is needed and cannot be started.
    """
    if settings.broker is not None:
        return BrokerAccess(_client(settings.broker, settings))
    lab = BrokerAddress(url="http://broker", socket=settings.lab_socket)
    if settings.lab_socket.exists() and answers(lab):
        return BrokerAccess(_client(lab, settings), introduction="the lab's broker on this machine")
    private = PrivateBroker(lock_dir=settings.lock_dir)
    address = private.ensure()
    return BrokerAccess(_client(address, settings), introduction=JOIN_WORDS, start=private.ensure)


def _client(address: BrokerAddress, settings: Settings) -> BrokerClient:
    verify: ssl.SSLContext | bool = True
    if settings.ca_file is not None:
        try:
            verify = ssl.create_default_context(cafile=str(settings.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise InvalidSettings(f"the CA file {settings.ca_file} cannot be used: {error}") from error
    return BrokerClient(address, token=settings.token, verify=verify)


def answers(address: BrokerAddress) -> bool:
    """Whether a broker answers there (also one that does not accept us)."""
    with BrokerClient(address) as client:
        try:
            client.cluster()
        except NotAllowed:
            return True
        except BrokerError as error:
            return not isinstance(error, BrokerUnreachable)
    return True


class PrivateBroker:
    """This user's own broker on this machine.

    Args:
        runtime: directory of its socket; None: the user's runtime directory.
        state: directory of its log; None: the user's state directory.
        command: what is run to start it.
        lock_dir: of the machine's device locks, where it is not the usual one.
    """

    def __init__(
        self,
        runtime: Path | None = None,
        state: Path | None = None,
        *,
        command: tuple[str, ...] | None = None,
        lock_dir: Path | None = None,
    ) -> None:
        self._lock_dir = lock_dir
        self._runtime = runtime or runtime_directory()
        self._state = state or state_directory()
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> BrokerAddress:
        """Where somebody of ours listens; where nobody does, its first place."""
        places = (self._runtime / SOCKET_NAME, self._state / SOCKET_NAME)
        return BrokerAddress(
            url="http://broker", socket=next((place for place in places if _is_listened_at(place)), places[0])
        )

    def ensure(self) -> BrokerAddress:
        """Return when it answers; start it where it does not.

        Returns:
            Where it answers.

        Raises:
            Refused: it is not installed, or its directory cannot be made.
            BrokerUnreachable: it did not come up; the message has the end of its log.
        """
        with self._starting():
            address = self.address
            if answers(address):
                return address
            self._launch()
            return self._wait()

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Only one process of this user looks and starts at a time."""
        lock = private_directory(self._state) / "broker.starting"
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @property
    def log_path(self) -> Path:
        """Where what it says is kept."""
        return self._state / "broker.log"

    def _launch(self) -> None:
        with suppress(Refused):  # after a logout nobody but root can make it: then the other place has to do
            private_directory(self._runtime)
        command = self._command or serve_command()
        with open(self.log_path, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
            # close_fds matters: the locks of this job's devices are inheritable descriptors.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                start_new_session=True, close_fds=True, env=_environment(self._lock_dir),
            )  # fmt: skip

    def _wait(self) -> BrokerAddress:
        assert self._process is not None
        give_up_at = time.monotonic() + START_SECONDS
        while not answers(address := self.address):
            code = self._process.poll()
            if code is not None or time.monotonic() >= give_up_at:
                how = f"ended with exit code {code}" if code is not None else "does not listen"
                raise BrokerUnreachable(f"the private broker {how}; its log {self.log_path}:\n{self._tail()}")
            time.sleep(0.05)
        return address

    def _tail(self) -> str:
        return self.log_path.read_bytes()[-800:].decode(errors="replace").strip()


def _is_listened_at(place: Path) -> bool:
    """Whether a process listens there, in a directory that is this user's."""
    try:
        _check_ours(place.parent)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knocking:
            knocking.settimeout(_KNOCK_SECONDS)
            knocking.connect(str(place))
    except (BlockingIOError, TimeoutError):
        return True  # too busy to let us in
    except (OSError, Refused):
        return False
    return True


def serve_command() -> tuple[str, ...]:
    """What starts a private broker with this Python.

    Raises:
        Refused: what the broker needs is not installed.
    """
    missing = [name for name in ("fastapi", "uvicorn", "sqlalchemy") if find_spec(name) is None]
    if missing:
        raise Refused(
            f"no broker was found, and a private one needs {', '.join(missing)}: "
            "pip install 'selfsched[broker]', or set SELFSCHED_BROKER to the address of one"
        )
    return (sys.executable, "-m", "selfsched_broker", "serve", "--private")


def _environment(lock_dir: Path | None) -> dict[str, str]:
    """Ours, without what is meant for one segment, with the same device locks."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("_SELFSCHED_")}
    locks = {} if lock_dir is None else {"SELFSCHED_LOCK_DIR": str(lock_dir)}
    return locks | kept


def runtime_directory() -> Path:
    """Where this user's sockets are: `$XDG_RUNTIME_DIR/selfsched`, else a private temporary one."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "selfsched" if base else Path(tempfile.gettempdir()) / f"selfsched-{os.getuid()}"


def state_directory() -> Path:
    """Where this user's broker keeps its log: `$XDG_STATE_HOME/selfsched`."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "selfsched"


def private_directory(path: Path) -> Path:
    """Make a directory that only its user can enter, or check that it is one.

    Raises:
        Refused: it cannot be made, or it is another user's, or a link.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = _check_ours(path)
    except OSError as error:
        raise Refused(f"the directory {path} cannot be made: {error.strerror}") from error
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def _check_ours(path: Path) -> os.stat_result:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Refused(f"{path} is not a directory of yours: remove it")
    return found
