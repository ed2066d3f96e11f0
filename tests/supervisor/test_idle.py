"""A supervisor between segments: what it holds while it waits. No rank is started here."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from supervisor.runs import wait_for

from selfsched.elastic import channel
from selfsched.elastic.allocation import Allocation, Device
from selfsched.elastic.job import JobDescription
from selfsched.elastic.run_directory import RunDirectory
from selfsched.elastic.supervisor import Supervisor
from selfsched.launch.locks import MachineLocks

OURS, THEIRS = (
    Device(id=f"test-{name}", node="here", index=index, kind="cpu", model="cpu", cores=(0,))
    for index, name in enumerate(("ours", "theirs"))
)


class ScriptedSource:
    """Wants what it is told to, one allocation after another, and sees which lock is held meanwhile."""

    def __init__(self, locks: MachineLocks, *wanted: Allocation) -> None:
        self._locks = locks
        self._wanted = list(wanted)
        self.ours_was_free: list[bool] = []
        self.to_tell: tuple[str, ...] = ()

    def start(self, job: JobDescription, wake: Any) -> None:
        self._wake = wake

    def wanted(self, now: float) -> Allocation:
        self.ours_was_free.append(self._locks.is_free(OURS.id))
        self._wake()
        return self._wanted.pop(0)

    def status_line(self) -> str | None:
        return None

    def news(self) -> tuple[str, ...]:
        told, self.to_tell = self.to_tell, ()
        return told

    def handle(self, event: Any) -> None: ...

    def segment_started(self, ordinal: int, devices: tuple[Device, ...]) -> None: ...

    def segment_ended(self, end: Any) -> None: ...

    def end(self, outcome: Any, reason: str) -> None: ...


def run_to_its_end(tmp_path: Path, source: ScriptedSource, locks: MachineLocks) -> RunDirectory:
    """Run a supervisor whose source ends it before anything is started."""
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    job = JobDescription(run_directory=run, program="command", command=("true",), working_directory=tmp_path)
    supervisor = Supervisor(job, source, locks=locks)
    running = threading.Thread(target=supervisor.run)
    running.start()
    client = wait_for(lambda: channel.connect(RunDirectory(run).supervisor_socket), what="the supervisor")
    running.join(30)
    client.close()
    return RunDirectory(run)


def machine_locks(tmp_path: Path) -> MachineLocks:
    (tmp_path / "locks").mkdir()
    return MachineLocks(tmp_path / "locks")


def test_what_the_source_has_to_tell_is_said_once_and_kept_in_the_journal(tmp_path: Path) -> None:
    locks = machine_locks(tmp_path)
    waits = [Allocation(reason="waiting")] * 3
    source = ScriptedSource(locks, *waits, Allocation(ends_because="over"))
    source.to_tell = ("the broker's figures were refused",)
    run = run_to_its_end(tmp_path, source, locks)
    assert (run.path / "events.jsonl").read_text().count("the broker's figures were refused") == 1


def test_a_device_that_is_not_wanted_any_more_is_let_go_while_it_waits(tmp_path: Path) -> None:
    locks = machine_locks(tmp_path)
    theirs = locks.take(THEIRS.id)
    assert theirs is not None
    source = ScriptedSource(
        locks, Allocation((OURS, THEIRS)), Allocation(reason="for somebody else"),
        Allocation(ends_because="over"),
    )
    run_to_its_end(tmp_path, source, locks)
    assert source.ours_was_free == [True, False, True], "taken, kept only while it was wanted"
