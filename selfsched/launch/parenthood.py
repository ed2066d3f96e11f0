"""Ties between a process and its parent: die when it dies, and stay on one's cores.

Linux only (`prctl`); elsewhere `die_with_parent` does nothing and the supervisor's warden
is what remains.
"""

from __future__ import annotations

import ctypes
import multiprocessing.util
import os
import signal
import sys
from typing import ClassVar

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel SIGKILL this process when its parent's thread ends. Outlives `exec`.

    Ends the process at once when the parent is already gone.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(128 + signal.SIGKILL)


def tie_workers() -> None:
    """Tie every process that `multiprocessing` forks from here on (loader workers) to this one.

    Without it a killed rank's workers live on until they next look for their parent, up
    to five seconds, and hold the device's lock as long.
    """
    multiprocessing.util.register_after_fork(_Tie(os.getpid()), _Tie.fasten)


class _Tie:
    """Remembers who the parent was; `multiprocessing` keeps only a weak reference to it."""

    _kept: ClassVar[list[_Tie]] = []

    def __init__(self, parent_pid: int) -> None:
        self._parent_pid = parent_pid
        self._kept.append(self)

    def fasten(self) -> None:
        # A worker's own children are tied by the copy of this list that they inherit.
        die_with_parent(self._parent_pid)
        self._parent_pid = os.getpid()


def pin(cores: tuple[int, ...]) -> None:
    """Run on these cores alone; those that this process may not use are left out."""
    usable = set(cores) & os.sched_getaffinity(0)
    if usable:
        os.sched_setaffinity(0, usable)


def name_process(name: str) -> None:
    """The short name that `ps` and `top` show."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
