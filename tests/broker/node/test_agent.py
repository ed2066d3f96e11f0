"""CPU slots, processes and the agent, on this very machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from selfsched.errors import Refused
from selfsched.launch.locks import MachineLocks
from selfsched.protocol import NodeInstructions, ProcessOnNode, WatchedProcess
from selfsched_broker.node.agent import Agent, local_agent
from selfsched_broker.node.processes import Processes
from selfsched_broker.node.slots import CpuSlots


@pytest.fixture
def locks(tmp_path: Path) -> MachineLocks:
    return MachineLocks(tmp_path)


def test_there_is_a_slot_for_each_cpu_that_may_be_used(locks: MachineLocks) -> None:
    slots = CpuSlots("host", locks=locks).read()
    assert [slot.id for slot in slots] == [f"host/cpu{n}" for n in range(len(os.sched_getaffinity(0)))]
    assert sorted(core for slot in slots for core in slot.cores) == sorted(os.sched_getaffinity(0))
    assert {slot.state for slot in slots} == {"empty"}


@pytest.mark.parametrize(
    ("count", "cores", "parts"),
    [
        (2, (0, 1, 2, 3, 4), [(0, 1), (2, 3, 4)]),
        (3, (5, 7), [(5,), (7,), (5,)]),
        (1, (0, 1), [(0, 1)]),
    ],
)
def test_cores_are_divided_among_the_slots(
    locks: MachineLocks, count: int, cores: tuple[int, ...], parts: list[tuple[int, ...]]
) -> None:
    assert [slot.cores for slot in CpuSlots("host", count, cores=cores, locks=locks).read()] == parts


def test_no_slots_at_all_are_refused(locks: MachineLocks) -> None:
    with pytest.raises(Refused, match="at least one slot, not 0"):
        CpuSlots("host", 0, locks=locks)


def test_u3_a_slot_is_occupied_while_any_process_holds_its_lock(locks: MachineLocks) -> None:
    slots = CpuSlots("host", 2, locks=locks)
    held = locks.take("host/cpu1")
    assert held is not None
    assert [slot.state for slot in slots.read()] == ["empty", "occupied"]
    os.close(held)
    assert [slot.state for slot in slots.read()] == ["empty", "empty"]


def test_a_lock_that_cannot_be_read_makes_the_slot_unknown(locks: MachineLocks) -> None:
    locks.path("host/cpu0").mkdir()
    (slot,) = CpuSlots("host", 1, locks=locks).read()
    assert slot.state == "unknown"
    assert "no plain file" in slot.detail


_SLEEPS = "import time; print('ready', flush=True); time.sleep(120)"
_LEAVES_A_CHILD = f"""
import os, subprocess, sys
quiet = dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
child = subprocess.Popen([sys.executable, "-c", {_SLEEPS!r}], **quiet)
child.stdout.readline()
print(os.getpid(), child.pid, flush=True)
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a session of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", _SLEEPS], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def _as_process(pid: int, session: int | None = None, started: int | None = None) -> ProcessOnNode:
    stat = Processes().stat(pid)
    assert stat is not None
    return ProcessOnNode(
        node="host", pid=pid, session=session or stat.session, started=started or stat.started
    )


def test_a_living_process_is_not_gone_and_a_zombie_is(sleeper: subprocess.Popen[bytes]) -> None:
    watched = _as_process(sleeper.pid)
    assert Processes().is_gone(watched) is False
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    stat = Processes().stat(sleeper.pid)
    assert stat is not None
    assert not stat.alive, "killed, and not yet waited for"
    assert Processes().is_gone(watched) is not False


def test_a_reused_pid_is_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    other = _as_process(sleeper.pid, session=1, started=7)
    assert Processes().is_gone(other) is not False


@pytest.mark.slow
def test_d20_an_orphan_in_the_jobs_session_is_found() -> None:
    leader = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _LEAVES_A_CHILD],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        check=True,
    )
    pid, orphan = map(int, leader.stdout.split())
    try:
        watched = ProcessOnNode(node="host", pid=pid, session=pid, started=1)
        assert Processes().is_gone(watched) is False
        shared = ProcessOnNode(node="host", pid=pid, session=pid + 1, started=1)
        assert Processes().is_gone(shared) is not False, "of a session that it did not lead nothing is said"
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_where_proc_hides_others_nothing_is_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mounts").write_text(f"proc {tmp_path} proc rw,hidepid=invisible 0 0\n")
    process = ProcessOnNode(node="host", pid=1, session=2, started=1)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert Processes(tmp_path).is_gone(process) is None
    (tmp_path / "mounts").write_text(f"proc {tmp_path} proc rw,hidepid=0 0 0\n")
    assert Processes(tmp_path).is_gone(process) is True
    (tmp_path / "mounts").unlink()
    assert Processes(tmp_path).is_gone(process) is None
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert Processes(tmp_path).is_gone(process) is True


def test_an_agents_reports_are_numbered_and_later_starts_are_higher(locks: MachineLocks) -> None:
    agent = Agent("host", [CpuSlots("host", 1, locks=locks)])
    first, second = agent.report(), agent.report()
    assert (first.sequence, second.sequence) == (1, 2)
    assert first.incarnation == second.incarnation > 0
    assert second.devices[0].since_seconds >= first.devices[0].since_seconds == 0.0


def test_an_agent_says_when_a_watched_lease_has_no_process_left(
    locks: MachineLocks, sleeper: subprocess.Popen[bytes]
) -> None:
    agent = Agent("host", [CpuSlots("host", 1, locks=locks)])
    watched = WatchedProcess(lease="lease-1", process=_as_process(sleeper.pid))
    agent.follow(
        NodeInstructions(
            next_report_seconds=1.0, watched_leases=("lease-1", "lease-2"), watched=(watched,)
        )
    )
    assert agent.report().ended_leases == ("lease-2",)
    sleeper.kill()
    sleeper.wait()
    if not Processes().are_hidden():
        assert agent.report().ended_leases == ("lease-1", "lease-2")


def test_a_machine_without_gpus_offers_cpu_slots() -> None:
    agent = local_agent("host", slots=3)
    assert agent.name == "host"
    assert [device.id for device in agent.report().devices] == ["host/cpu0", "host/cpu1", "host/cpu2"]


def test_a_program_s_name_is_told_without_its_arguments_and_control_characters(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "comm").write_bytes(b"py\x1b[1mthon\xff\n")
    assert Processes(tmp_path).command_of(7) == "py[1mthon\ufffd"
    assert Processes(tmp_path).command_of(8) == ""


def test_what_a_process_descends_from_is_told_to_a_bound(tmp_path: Path) -> None:
    for pid in range(1, 40):
        (tmp_path / str(pid)).mkdir()
        fields = f"S {pid - 1} 1 1 " + "0 " * 15 + "5"
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) {fields}")
    processes = Processes(tmp_path)
    deep, shallow = processes.stat(39), processes.stat(4)
    assert deep is not None
    assert shallow is not None
    assert processes.parents_of(deep) == tuple(range(38, 22, -1))
    assert processes.parents_of(shallow) == (3, 2)
