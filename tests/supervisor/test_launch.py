"""How ranks are started: environment, cores, sessions, the zygote's forks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor.runs import is_alive, wait_for

from selfsched.elastic.reactor import Reactor
from selfsched.elastic.segment import SEGMENT_VARIABLE
from selfsched.launch import sessions, shim
from selfsched.launch.cold import ColdLauncher
from selfsched.launch.environment import device_environment, rank_environment, threads_per_rank
from selfsched.launch.forked import ZygoteLauncher
from selfsched.launch.guard import Guard
from selfsched.launch.rank import RankProcess, RankRequest
from selfsched.protocol import LeasedDevice

CORE = min(os.sched_getaffinity(0))
SLOT = LeasedDevice(id="slot/0", node="n", index=0, model="cpu", kind="cpu", cores=(CORE,))
GPUS = tuple(LeasedDevice(id=f"GPU-{i}", node="n", index=i, model="h", kind="gpu") for i in range(2))


def test_a_rank_knows_who_it_is_and_sees_its_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    environment = rank_environment(1, GPUS, port=4242, segment=Path("/run/segment-0.json"))
    expected = {
        "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4242", "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1", SEGMENT_VARIABLE: "/run/segment-0.json",
        "SLURM_NTASKS": None, "KUBERNETES_PORT": None,
    }  # fmt: skip
    assert expected.items() <= environment.items()
    assert device_environment([SLOT], threads=1)["CUDA_VISIBLE_DEVICES"] == ""


def test_threads_are_the_slots_cores_unless_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    wide = SLOT.model_copy(update={"cores": (0, 1, 2, 3)})
    assert threads_per_rank([wide, wide]) == 4
    assert threads_per_rank([wide, SLOT]) == 1
    assert threads_per_rank([GPUS[0]] * 1000) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_per_rank([wide]) == 3


def test_the_shim_pins_and_then_is_the_command() -> None:
    show = "import os, json; print(json.dumps([os.getpid(), sorted(os.sched_getaffinity(0))]))"
    command = [sys.executable, "-I", shim.__file__, str(os.getpid()), str(CORE), sys.executable, "-c", show]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        output = process.communicate()[0]
    assert json.loads(output) == [process.pid, [CORE]]


def test_the_shim_ends_when_its_parent_is_gone_already() -> None:
    command = [sys.executable, "-I", shim.__file__, "1", "", "echo", "alive"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stdout == b""


def test_a_session_is_ended_with_all_its_members() -> None:
    words = "sleep 600 & sleep 600 & wait"
    with subprocess.Popen(["bash", "-c", words], start_new_session=True) as leader:
        wait_for(lambda: len(sessions.members([leader.pid])) == 3, what="three members")
        found = sessions.members([leader.pid])
        assert sessions.kill([leader.pid]) == []
    assert not any(map(is_alive, found))
    assert sessions.members([]) == []


def test_the_warden_ends_what_is_registered_when_its_supervisor_dies() -> None:
    registered = subprocess.Popen(["sleep", "600"], start_new_session=True)
    released = subprocess.Popen(["sleep", "600"], start_new_session=True)
    guard = Guard()
    guard.set_sessions([registered.pid, released.pid])
    guard.set_sessions([registered.pid])
    assert guard._warden.stdin is not None
    guard._warden.stdin.close()  # as the supervisor's death does
    assert registered.wait(timeout=30) == -signal.SIGKILL
    assert guard._warden.wait(timeout=30) == 0
    assert released.poll() is None
    released.kill()
    released.wait()


SHOW = """
import json, os, sys, threading
import torch
names = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
open_files = [os.readlink(name) for name in names if os.path.lexists(name)]
print(json.dumps({
    "arguments": sys.argv, "path": sys.path[0], "name": __name__, "directory": os.getcwd(),
    "variable": os.environ.get("GIVEN"), "unset": os.environ.get("TAKEN"),
    "cores": sorted(os.sched_getaffinity(0)),
    "threads": len(os.listdir("/proc/self/task")), "torch": torch.get_num_threads(),
    "session": os.getsid(0) == os.getpid(), "holds_lock": sys.argv[1] in open_files,
}))
sys.exit(5)
"""


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    made = Reactor()
    yield made
    made.close()


def run_rank(reactor: Reactor, launcher: Any, request: RankRequest, lock: int) -> tuple[int, str]:
    read, write = os.pipe()
    ended: list[RankProcess] = []
    launcher.start(request, outputs=(write, write), locks=[lock], ended=ended.append)
    os.close(write)
    while not ended:
        reactor.wait(0.1)
    with os.fdopen(read) as output:
        text = output.read()
    assert ended[0].status is not None
    return ended[0].status, text


@pytest.mark.slow
def test_a_fork_of_the_zygote_is_like_a_fresh_process(
    reactor: Reactor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAKEN", "away")
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "show.py").write_text(SHOW)
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(lock, True)
    zygote = ZygoteLauncher(reactor, "lightning.pytorch", lost=lambda lost: None)
    while zygote.state == "booting":
        reactor.wait(0.1)
    assert zygote.state == "ready", zygote.why
    shown = []
    for launcher in (zygote, ColdLauncher(reactor)):
        request = RankRequest(
            rank=0, program="script", arguments=("scripts/show.py", str(tmp_path / "lock"), "--lr"),
            environment={"GIVEN": "here", "TAKEN": None, "OMP_NUM_THREADS": "1"},
            working_directory=tmp_path, cores=(CORE,),
        )  # fmt: skip
        status, text = run_rank(reactor, launcher, request, lock)
        assert status == 5, text
        shown.append(json.loads(text))
    forked, cold = shown
    assert forked == cold
    assert forked["path"] == str(folder)
    assert forked["holds_lock"]
    assert forked["threads"] == 1
    zygote.close()
    os.close(lock)
