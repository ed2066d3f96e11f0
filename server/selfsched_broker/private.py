"""A broker of one user on this machine: nothing to set up, ends by itself.

Its socket lies in the user's runtime directory, its books in the user's state directory, so
that a broker that was killed and is started again finds its leases. One for each user: the
books' own lock sees to that. `selfsched` looks for it, and starts it, at the same places.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfsched.errors import Refused

IDLE_EXIT_SECONDS = 600.0
SOCKET_NAME = "broker.sock"


def private_arguments(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings of a private broker, for `settings.load`.

    Raises:
        Refused: its directories cannot be made, or are not this user's alone.
    """
    env = os.environ if environment is None else environment
    runtime = env.get("XDG_RUNTIME_DIR")
    sockets = (
        Path(runtime) / "selfsched" if runtime else Path(tempfile.gettempdir()) / f"selfsched-{os.getuid()}"
    )
    state = env.get("XDG_STATE_HOME")
    base = Path(state) if state else Path.home() / ".local" / "state"
    return {
        "socket": private_directory(sockets) / SOCKET_NAME,
        "state_dir": private_directory(base / "selfsched" / "broker"),
    }


def private_directory(path: Path) -> Path:
    """Make a directory that only its user can enter, or see that it is one.

    Raises:
        Refused: it cannot be made, is a link, or belongs to somebody else.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise Refused(f"the directory {path} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise Refused(f"{path} is not a directory of yours: remove it")
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)
    return path
