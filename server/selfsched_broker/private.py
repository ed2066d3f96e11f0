"""A broker of one user on this machine: nothing to set up, ends by itself.

Its socket lies in the user's runtime directory and a second one in the user's state directory,
with its books, so that a broker that was killed and is started again finds its leases. One for
each user: the books' own lock sees to that. `selfsched` looks for it, and starts it, at the same
places; they are named there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selfsched.private_broker import SOCKET_NAME, private_directory, runtime_directory, state_directory

IDLE_EXIT_SECONDS = 600.0


def private_arguments() -> dict[str, Any]:
    """The settings of a private broker, for `settings.load`.

    Raises:
        Refused: its books' directory cannot be made, or is not this user's alone.
    """
    return {
        "socket": runtime_directory() / SOCKET_NAME,
        "state_dir": private_directory(state_directory() / "broker"),
    }


def spare_socket() -> Path:
    """The second place, which is there as long as the books are."""
    return private_directory(state_directory()) / SOCKET_NAME
