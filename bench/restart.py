"""What a move to other devices costs: from the order to the first step on the new ones.

`python -m bench.restart [--json] [--moves N]` trains a small model under a real supervisor
and moves it between one device and two, with its ranks forked from the zygote and with cold
processes. Seconds, medians over the moves. The parts follow one another:

    cut      from the order to the step at whose end the ranks leave, checkpoint included
    exit     until the last process of the old segment is gone
    start    until rank 0 of the new one has made its callback (a cold one imports first)
    enter    until its `fit` is about to fetch the first batch: set-up, rendezvous, load
    step     until the first new step has ended
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from selfsched.core.events import FitStarted, Left, Progressed, RankStarted
from selfsched.elastic import channel
from selfsched.elastic.allocation import Allocation, Device, SegmentEnd
from selfsched.elastic.job import JobDescription
from selfsched.elastic.run_directory import RunDirectory
from selfsched.elastic.segment import boottime
from selfsched.elastic.supervisor import Supervisor
from selfsched.launch.local_devices import private_cpu_devices
from selfsched.launch.locks import MachineLocks
from selfsched.protocol import Outcome

PARTS = ("cut", "exit", "start", "enter", "step")
_SETTLE_SECONDS = 1.0
"""Between a segment's first step and the next order."""
_COLD_MOVES = 2


class Mover:
    """An allocation source that moves the job back and forth, and notes when what happened."""

    def __init__(self, moves: int) -> None:
        self.marks: list[dict[str, float]] = []
        self._moves = moves
        self._devices = private_cpu_devices(2)
        self._count = 1
        self._settled_at = float("inf")
        self._leaving = False

    def start(self, job: JobDescription, wake: Callable[[], None]) -> None:
        """Nothing to find."""

    def wanted(self, now: float) -> Allocation:
        if now >= self._settled_at:
            if len(self.marks) == self._moves:
                return Allocation(self._devices[: self._count], ends_because="measured")
            self._settled_at = float("inf")
            self._count = 3 - self._count
            self._leaving = True
            self.marks.append({"ordered": now})
        return Allocation(self._devices[: self._count])

    def handle(self, event: Any) -> None:
        now = boottime()
        if isinstance(event, Left):
            self._mark("cut", now)
        elif isinstance(event, RankStarted) and event.rank == 0:
            self._mark("start", now)
        elif isinstance(event, FitStarted):
            self._mark("enter", event.at)
        elif isinstance(event, Progressed) and not self._leaving and self._settled_at == float("inf"):
            self._settled_at = now + _SETTLE_SECONDS

    def _mark(self, name: str, at: float) -> None:
        if self.marks:
            self.marks[-1].setdefault(name, at)

    def segment_started(self, ordinal: int, devices: tuple[Device, ...]) -> None:
        self._leaving = False

    def segment_ended(self, end: SegmentEnd) -> None:
        self._mark("exit", boottime())

    def status_line(self) -> str | None:
        return None

    def news(self) -> tuple[str, ...]:
        """Nothing happens that a user should be told."""
        return ()

    def end(self, outcome: Outcome, reason: str) -> None:
        """Nothing is held."""


def measure(moves: int, *, without_zygote: bool) -> dict[str, float]:
    """Median seconds of each part and of the whole, over so many moves."""
    with tempfile.TemporaryDirectory() as folder:
        run, stamps = Path(folder) / "run", Path(folder) / "stamps"
        run.mkdir(mode=0o700)
        program = Path(__file__).with_name("_restart_program.py")
        job = JobDescription(
            run_directory=run,
            program="command",
            command=(sys.executable, str(program), str(stamps)),
            working_directory=Path(folder),
            max_devices=2,
            without_zygote=without_zygote,
        )
        source = Mover(moves)
        _supervise(job, source, Path(folder))
        steps = [float(line) for line in stamps.read_text().split()]
    return _medians([_parts(mark, steps) for mark in source.marks])


def _supervise(job: JobDescription, source: Mover, folder: Path) -> None:
    supervisor = Supervisor(job, source, locks=MachineLocks(folder))
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    connection = channel.connect(RunDirectory(job.run_directory).supervisor_socket)
    assert connection is not None
    with connection:
        while connection.recv(65536):
            pass
    thread.join()


def _parts(mark: dict[str, float], steps: list[float]) -> dict[str, float]:
    mark = {**mark, "step": next(at for at in steps if at > mark["enter"])}
    names = ("ordered", *PARTS)
    parts = {name: mark[name] - mark[before] for before, name in pairwise(names)}
    return {**parts, "whole": mark["step"] - mark["ordered"]}


def _medians(moves: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(move[name] for move in moves), 4) for name in moves[0]}


def main() -> None:
    """Measure both ways and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--moves", type=int, default=6, help="through the zygote; two of them cold")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    zygote = measure(arguments.moves, without_zygote=False)
    cold = measure(min(_COLD_MOVES, arguments.moves), without_zygote=True)
    if arguments.json:
        ways = {"zygote": zygote, "cold": cold}
        parts = {way: {name: row[name] for name in PARTS} for way, row in ways.items()}
        print(json.dumps({"zygote_s": zygote["whole"], "cold_s": cold["whole"], "parts": parts}))
        return
    print(f"{'seconds':10}" + "".join(f"{name:>9}" for name in (*PARTS, "whole")))
    for name, row in (("zygote", zygote), ("cold", cold)):
        print(f"{name:10}" + "".join(f"{row[part]:9.3f}" for part in (*PARTS, "whole")))


if __name__ == "__main__":
    main()
