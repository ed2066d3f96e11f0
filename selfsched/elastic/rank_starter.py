"""How the ranks of a segment come to life: forks of the zygote, or cold processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from selfsched.elastic.job import JobDescription
from selfsched.elastic.journal import Journal
from selfsched.elastic.program import Program, requests_for
from selfsched.elastic.reactor import Reactor
from selfsched.elastic.running_segment import Launcher, RunningSegment
from selfsched.elastic.segment import boottime
from selfsched.launch.cold import ColdLauncher
from selfsched.launch.environment import device_environment, free_port, rank_environment, threads_per_rank
from selfsched.launch.forked import ZygoteLauncher

_MOST_ZYGOTES = 3


class RankStarter:
    """Owns the zygote; starts each segment's ranks in the way their program allows."""

    def __init__(self, job: JobDescription, program: Program, reactor: Reactor, journal: Journal) -> None:
        self._job = job
        self._program = program
        self._reactor = reactor
        self._journal = journal
        self._cold = ColdLauncher(reactor)
        self._zygote: ZygoteLauncher | None = None
        self._zygotes = 0
        self._closed = False

    def warm_up(self) -> None:
        """Begin to boot the zygote, if the program can use one."""
        if self._program.can_fork and not self._job.without_zygote:
            self._zygotes += 1
            self._zygote = ZygoteLauncher(self._reactor, self._job.package, lost=self._lost)
            self._journal.say("zygote_started", pid=self._zygote.pid, at=boottime())

    def start(self, segment: RunningSegment, locks: Sequence[int]) -> None:
        """Start the segment's ranks; each holds the given lock descriptors.

        Raises:
            OSError: a process could not be started.
        """
        requests = requests_for(self._job, self._program, segment.devices, self._environments(segment))
        segment.start(requests, self._launcher(), locks)

    def _environments(self, segment: RunningSegment) -> list[Mapping[str, str | None]]:
        devices = segment.devices
        if self._job.fixed:
            return [device_environment(devices, threads=threads_per_rank(devices[:1]) * len(devices))]
        path = segment.spec.run_directory / f"segment-{segment.spec.ordinal}.json"
        segment.spec.write(path)
        port = free_port()
        return [rank_environment(rank, devices, port=port, segment=path) for rank in range(len(devices))]

    def _launcher(self) -> Launcher:
        """The zygote, waited for while it boots; cold processes where there is none."""
        while self._zygote is not None and self._zygote.state == "booting":
            self._reactor.wait(0.2)
        if self._zygote is not None and self._zygote.state == "ready":
            return self._zygote
        return self._cold

    def _lost(self, zygote: ZygoteLauncher) -> None:
        self._zygote = None
        self._journal.say("zygote_ended", pid=zygote.pid, state=zygote.state, why=zygote.why, at=boottime())
        if zygote.state == "gone" and self._zygotes < _MOST_ZYGOTES and not self._closed:
            self.warm_up()

    def close(self) -> None:
        """End the zygote."""
        self._closed = True
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
