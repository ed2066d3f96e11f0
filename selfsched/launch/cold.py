"""Ranks as fresh processes: for any command, and where there is no zygote."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from selfsched.elastic.reactor import Reactor
from selfsched.launch import shim
from selfsched.launch.rank import RankProcess, RankRequest


class ColdLauncher:
    """Starts each rank by `exec`, in a session of its own, tied to this process."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor

    def start(
        self,
        request: RankRequest,
        *,
        outputs: tuple[int, int],
        locks: Sequence[int],
        ended: Callable[[RankProcess], None],
    ) -> RankProcess:
        """Start the rank; `ended` is called once, from the loop, when its process is gone.

        Args:
            outputs: Descriptors for its standard output and standard error.
            locks: Descriptors of device locks that it and all its descendants hold.
        """
        cores = ",".join(map(str, request.cores))
        process = subprocess.Popen(
            [sys.executable, "-I", shim.__file__, str(os.getpid()), cores, *request.cold_command()],
            stdin=subprocess.DEVNULL, stdout=outputs[0], stderr=outputs[1],
            cwd=request.working_directory, env=request.cold_environment(),
            start_new_session=True, pass_fds=tuple(locks),
        )
        rank = RankProcess(request.rank, process.pid, is_cold=True)
        watch_process(self._reactor, process, lambda status: _finish(rank, status, ended))
        return rank


def _finish(rank: RankProcess, status: int, ended: Callable[[RankProcess], None]) -> None:
    rank.status = status
    ended(rank)


def watch_process(
    reactor: Reactor, process: subprocess.Popen[bytes], ended: Callable[[int], None]
) -> Callable[[], None]:
    """Call `ended` with the status of a child once it is gone, and reap it.

    Returns:
        What stops the watching.
    """
    descriptor = os.pidfd_open(process.pid)

    def forget() -> None:
        reactor.forget(descriptor)
        os.close(descriptor)

    def reap() -> None:
        forget()
        ended(process.wait())

    reactor.on_readable(descriptor, reap)
    return forget


def start_warden() -> subprocess.Popen[bytes]:
    """The process that ends the ranks' sessions should this one be killed."""
    script = Path(shim.__file__).with_name("warden.py")
    return subprocess.Popen(
        [sys.executable, "-I", str(script)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
