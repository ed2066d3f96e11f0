"""Processes by their session: how everything that a rank started is found and ended.

Each rank leads a session of its own, so its loader workers and whatever a `bash -c` put in
between share that session's number. A process that made a session of its own is not found
here; the slot lock that it inherited still shows it.

Standard library only: the warden imports it in a bare interpreter.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress


def members(sessions: Iterable[int]) -> list[int]:
    """Process ids of the live members (zombies excepted) of any of these sessions."""
    wanted = set(sessions)
    if not wanted:
        return []
    return [pid for pid in _process_ids() if _session_of(pid) in wanted]


def kill(sessions: Iterable[int], *, within_seconds: float = 2.0) -> list[int]:
    """SIGKILL every member of these sessions, again until none is left.

    Returns:
        Those still alive after `within_seconds`: processes stuck in the kernel, or of
        another user.
    """
    wanted = set(sessions)
    give_up_at = time.monotonic() + within_seconds
    while alive := members(wanted):
        for pid in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= give_up_at:
            return members(wanted)
        time.sleep(0.005)
    return []


def _process_ids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _session_of(pid: int) -> int | None:
    """Session of a live process; None for a zombie or one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in brackets may hold anything, brackets included.
            state, _parent, _group, session = file.read().rpartition(b")")[2].split()[:4]
    except OSError:
        return None
    return None if state in (b"Z", b"X") else int(session)
