"""Where a broker listens: sockets bound, and the file that tells others where.

The socket for administrators always exists, in the state directory (0700): only the broker's
own user and root reach it, so the commands of `selfsched-broker` need no token.

A private broker has a second place in its state directory, since its first, in the user's
runtime directory, goes away with the user's last login; either is enough to begin.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import ssl
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from selfsched.errors import Refused
from selfsched.private_broker import private_directory, runtime_directory, state_directory
from selfsched_broker.settings import DEFAULT_PORT, BrokerSettings

log = logging.getLogger(__name__)
ADMIN_SOCKET = "admin.sock"
READY_FILE = "broker.json"
_LONGEST_SOCKET_PATH = 107
_BACKLOG = 1024


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where a running broker listens; the contents of the ready file."""

    pid: int
    address: str
    """The one to tell people: `http://...`, `https://...` or `unix:...`."""
    socket: str | None = None
    admin_socket: str


@dataclass(kw_only=True)
class Door:
    """A Unix socket of ours at a path, which somebody else may remove."""

    path: Path
    mode: int
    private: bool = False
    """Its directory is this user's alone, and made where it is missing."""
    said: str = ""
    """The trouble with it that the log has."""
    _mark: tuple[int, int] | None = None

    def open(self) -> socket.socket:
        """Bind it and begin to listen.

        Raises:
            Refused: it cannot be made, or somebody else listens there.
        """
        if self.private:
            private_directory(self.path.parent)
        bound = bind_unix(self.path, mode=self.mode)
        self._mark = _file_number(self.path)
        return bound

    def is_open(self) -> bool:
        """Whether what is at the path is the socket that we bound last."""
        return self._mark is not None and _file_number(self.path) == self._mark

    def close(self) -> None:
        """Remove the file, if it is ours."""
        if self.is_open():
            self.path.unlink(missing_ok=True)


def _file_number(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Bound sockets."""

    tcp: socket.socket | None
    unix: tuple[socket.socket, ...]
    admin: Door
    public: tuple[Door, ...]
    addresses: Addresses

    def is_reachable(self) -> bool:
        """Whether anybody but an administrator can reach us."""
        return self.tcp is not None or any(door.is_open() for door in self.public)

    def reopen(self) -> list[socket.socket]:
        """Listen again where our socket's file is gone; the new sockets. What cannot be done is said once."""
        found = []
        for door in (self.admin, *self.public):
            if door.is_open():
                continue
            try:
                found.append(door.open())
            except Refused as error:
                _say_once(door, str(error))
            else:
                _say_once(door, "")
                log.info("the broker listens at %s again", door.path)
        return found

    def close(self) -> None:
        """Remove the socket files."""
        for door in (self.admin, *self.public):
            door.close()


def _say_once(door: Door, trouble: str) -> None:
    if trouble and trouble != door.said:
        log.warning("nobody can reach the broker at %s: %s", door.path, trouble)
    door.said = trouble


def reserve_port(settings: BrokerSettings) -> socket.socket | None:
    """Bind the TCP port, before anything is made on disk; nobody is answered there yet.

    Returns:
        The socket for `listen`; None where no TCP port is wanted.

    Raises:
        Refused: the port is in use or not ours, or its certificate cannot be used.
    """
    _check_tls(settings)
    return bind_tcp(settings) if settings.listens_on_tcp else None


def listen(settings: BrokerSettings, tcp: socket.socket | None) -> Listening:
    """Bind everything else, and begin to listen.

    Args:
        settings: as read.
        tcp: what `reserve_port` gave.

    Raises:
        Refused: an address is in use or not ours.
    """
    admin_path = short_socket_path(settings.state_dir / ADMIN_SOCKET)
    admin, public = Door(path=admin_path, mode=0o600), _public_doors(settings)
    unix = [admin.open(), *_open_any(public)]
    if tcp is not None:
        _begin(settings, tcp)
    shown = next((str(door.path) for door in public if door.is_open()), None)
    addresses = Addresses(
        pid=os.getpid(),
        address=_url(settings, tcp) if tcp else f"unix:{shown}",
        socket=shown,
        admin_socket=str(admin_path),
    )
    return Listening(tcp=tcp, unix=tuple(unix), admin=admin, public=public, addresses=addresses)


def _public_doors(settings: BrokerSettings) -> tuple[Door, ...]:
    places = [place for place in (settings.socket, settings.spare_socket) if place is not None]
    # Only of our own directories: another, such as /tmp, is not ours to make private.
    own = () if settings.spare_socket is None else (runtime_directory(), state_directory())
    return tuple(Door(path=place, mode=0o666, private=place.parent in own) for place in places)


def _open_any(doors: tuple[Door, ...]) -> list[socket.socket]:
    """All that can be opened. Fails where there are some, and none can."""
    found, troubles = [], []
    for door in doors:
        try:
            found.append(door.open())
        except Refused as error:
            troubles.append(error)
            _say_once(door, str(error))
    if troubles and not found:
        raise troubles[0]
    return found


def _check_tls(settings: BrokerSettings) -> None:
    if settings.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:  # ssl's own errors are among them
        raise Refused(f"the certificate {settings.tls_cert} and its key cannot be used: {error}") from error


def bind_tcp(settings: BrokerSettings) -> socket.socket:
    """The TCP socket, bound and not yet listening.

    Raises:
        Refused: the port is in use or not ours.
    """
    host, port = _host_and_port(settings)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio sends each answer at once (TCP_NODELAY): else body and head, two
    # writes, cost every caller the 40 ms of a delayed acknowledgement.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _no_port(settings, error) from error
    return bound


def _begin(settings: BrokerSettings, bound: socket.socket) -> None:
    try:
        bound.listen(_BACKLOG)
    except OSError as error:  # two that start at once can both bind; the second is told here
        raise _no_port(settings, error) from error


def _host_and_port(settings: BrokerSettings) -> tuple[str, int]:
    return settings.host or "127.0.0.1", DEFAULT_PORT if settings.port is None else settings.port


def _no_port(settings: BrokerSettings, error: OSError) -> Refused:
    host, port = _host_and_port(settings)
    words = f"cannot listen on {host} port {port}: {error.strerror or error}"
    if error.errno == errno.EADDRINUSE:
        running = read_ready_file(settings.state_dir / READY_FILE)
        if running is not None and running.address.endswith(f":{port}"):
            words += f"; the broker of this state directory (process {running.pid}) listens there"
        words += "; choose another with --port (0: any that is free)"
    return Refused(words)


def bind_unix(path: Path, *, mode: int) -> socket.socket:
    """A Unix socket in place of one that nobody listens at any more.

    Raises:
        Refused: somebody listens there, or the path is something else.
    """
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
        raise Refused(
            f"the socket path {path} is longer than {_LONGEST_SOCKET_PATH} bytes: choose a shorter one"
        )
    _remove_dead(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~mode)
    try:
        bound.bind(str(path))
    except OSError as error:
        bound.close()
        raise Refused(f"cannot listen at {path}: {error.strerror or error}") from error
    finally:
        os.umask(before)
    bound.listen(_BACKLOG)
    return bound


def _remove_dead(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise Refused(f"cannot listen at {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise Refused(f"{path} exists and is no socket: choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno not in (errno.ECONNREFUSED, errno.ENOENT):
                raise Refused(f"cannot tell who listens at {path}: {error.strerror or error}") from error
            path.unlink(missing_ok=True)
            return
    raise Refused(f"somebody listens at {path} already: stop it, or choose another path")


def short_socket_path(path: Path) -> Path:
    """The path, or one in a private temporary directory where it is too long for a socket."""
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        return path
    return Path(tempfile.mkdtemp(prefix="selfsched-")) / path.name


def _url(settings: BrokerSettings, tcp: socket.socket) -> str:
    scheme = "https" if settings.tls_cert else "http"
    host = settings.host or "127.0.0.1"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{tcp.getsockname()[1]}"


def write_ready_file(path: Path, addresses: Addresses) -> None:
    """Tell others, all at once, where the broker listens."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(addresses), file)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def read_ready_file(path: Path) -> Addresses | None:
    """Where a broker said that it listens; None where none has, or the file is not whole."""
    try:
        return Addresses(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
