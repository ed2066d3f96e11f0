"""Where a broker listens: sockets bound, and the file that tells others where.

The socket for administrators always exists, in the state directory (0700): only the broker's
own user and root reach it, so the commands of `selfsched-broker` need no token.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import ssl
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from selfsched.errors import Refused
from selfsched_broker.settings import DEFAULT_PORT, BrokerSettings

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


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Bound sockets."""

    tcp: socket.socket | None
    unix: tuple[socket.socket, ...]
    paths: tuple[Path, ...]
    addresses: Addresses

    def close(self) -> None:
        """Remove the socket files."""
        for path in self.paths:
            path.unlink(missing_ok=True)


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
    paths = [admin_path]
    unix = [bind_unix(admin_path, mode=0o600)]
    if settings.socket is not None:
        paths.append(settings.socket)
        unix.append(bind_unix(settings.socket, mode=0o666))
    if tcp is not None:
        _begin(settings, tcp)
    shown = str(settings.socket) if settings.socket else None
    addresses = Addresses(
        pid=os.getpid(),
        address=_url(settings, tcp) if tcp else f"unix:{shown}",
        socket=shown,
        admin_socket=str(admin_path),
    )
    return Listening(tcp=tcp, unix=tuple(unix), paths=tuple(paths), addresses=addresses)


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
