"""Real brokers and real jobs for tests: each in directories of its own, ended by their pids."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfsched.client import BrokerClient
from selfsched.protocol import DeviceState, JobView
from selfsched.settings import BrokerAddress

PACED_RANK = Path(__file__).with_name("paced_rank.py")
PATIENCE_SECONDS = 60.0


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait for a condition; its value."""
    give_up_at = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"waited {seconds:g} s in vain for: {what}"
        time.sleep(0.02)
    return found


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


@dataclass
class Step:
    """One line that a paced rank wrote."""

    began_at: float
    ended_at: float
    segment: int
    rank: int
    devices: int
    step: int


@dataclass
class LabJob:
    """A job under `selfsched run`."""

    name: str
    root: Path
    client: subprocess.Popen[str]
    _printed: str | None = None

    @property
    def directory(self) -> Path:
        return self.root / "runs" / self.name

    def steps(self) -> list[Step]:
        path = self.root / f"{self.name}.state.steps"
        if not path.exists():
            return []
        lines = [line.split() for line in path.read_text().splitlines()]
        return [Step(float(a), float(b), *map(int, rest)) for a, b, *rest in lines if len(rest) == 4]

    def devices(self) -> int:
        """Of the newest segment that made a step; 0 before the first."""
        steps = self.steps()
        return max(steps, key=lambda step: step.began_at).devices if steps else 0

    def events(self, kind: str) -> list[dict[str, Any]]:
        path = self.directory / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in events if event["kind"] == kind]

    @property
    def supervisor_pid(self) -> int:
        return int(self.events("supervisor_started")[-1]["pid"])

    def history(self) -> dict[str, Any]:
        return json.loads((self.directory / "history.json").read_text())  # type: ignore[no-any-return]

    def finish(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for its end; the exit code."""
        self._printed = self.client.communicate(timeout=seconds)[0]
        return self.client.returncode

    def terminate(self) -> None:
        """SIGTERM: a checkpoint, then its end as resumable."""
        self.client.send_signal(signal.SIGTERM)
        code = self.finish()
        assert code == 75, self.output

    @property
    def output(self) -> str:
        assert self._printed is not None
        return self._printed


@dataclass
class LabHouse:
    """A user's machine: directories, jobs and brokers on it."""

    root: Path
    settings: dict[str, str] = field(default_factory=dict)
    jobs: list[LabJob] = field(default_factory=list)
    brokers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.locks = self.root / "locks"

    @property
    def environment(self) -> dict[str, str]:
        root = self.root
        kept = {name: value for name, value in os.environ.items() if "SELFSCHED" not in name}
        own = {
            "XDG_RUNTIME_DIR": str(root / "run"), "XDG_STATE_HOME": str(root / "state"),
            "XDG_CONFIG_HOME": str(root / "config"), "SELFSCHED_LOCK_DIR": str(self.locks),
            "SELFSCHED_RUNS_DIR": str(root / "runs"), "SELFSCHED_LAB_SOCKET": str(root / "lab.sock"),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        brokers = {f"SELFSCHED_BROKER_{name.upper()}": value for name, value in self.settings.items()}
        return kept | own | brokers

    def run(self, name: str, *, steps: int, step_seconds: float = 0.02, devices: str = "1-2",
            options: tuple[str, ...] = (),
            environment: Mapping[str, str] | None = None) -> LabJob:  # fmt: skip
        """Start a paced job under `selfsched run`."""
        state = self.root / f"{name}.state"
        rank = [sys.executable, str(PACED_RANK), str(state), str(steps), str(step_seconds)]
        given = ["--devices", devices, "--name", name, *options, "--"]
        client = subprocess.Popen(
            [sys.executable, "-m", "selfsched", "run", *given, *rank],
            env=self.environment | dict(environment or {}), cwd=self.root,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        job = LabJob(name, self.root, client)
        self.jobs.append(job)
        return job

    # --- what brokers say

    @property
    def lab_socket(self) -> Path:
        return self.root / "lab.sock"

    @property
    def private_socket(self) -> Path:
        return self.root / "run" / "selfsched" / "broker.sock"

    def shown(self, socket: Path) -> dict[str, JobView]:
        """The jobs by name, as the broker at this socket shows them."""
        with BrokerClient(BrokerAddress(url="http://broker", socket=socket)) as client:
            return {view.name: view for view in client.jobs()}

    def devices_in(self, socket: Path, state: DeviceState) -> list[str]:
        """Ids of the devices in this state."""
        with BrokerClient(BrokerAddress(url="http://broker", socket=socket)) as client:
            return [device.id for device in client.cluster().devices if device.state is state]

    # --- brokers

    def start_lab(self) -> int:
        """The lab's broker, at the lab's socket; its pid."""
        options = ["--socket", str(self.lab_socket), "--state-dir", str(self.root / "books")]
        with open(self.root / "lab.log", "ab") as log:
            broker = subprocess.Popen(
                [sys.executable, "-m", "selfsched_broker", "serve", *options],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.brokers.append(broker)
        ready_file = self.root / "books" / "broker.json"
        until(lambda: self._told(ready_file) == broker.pid, "the lab's broker listens")
        return broker.pid

    def private_pid(self) -> int | None:
        """The user's own broker, while it lives."""
        pid = self._told(self.root / "state" / "selfsched" / "broker" / "broker.json")
        return pid if pid is not None and is_alive(pid) else None

    def _told(self, ready_file: Path) -> int | None:
        try:
            return int(json.loads(ready_file.read_text())["pid"])
        except (OSError, ValueError):
            return None

    def kill(self, pid: int) -> None:
        """SIGKILL, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        for broker in self.brokers:
            if broker.pid == pid:
                broker.wait(10)
        until(lambda: not is_alive(pid), f"process {pid} is gone")

    def close(self) -> None:
        """End whatever a test left."""
        for job in self.jobs:
            job.client.kill()
            job.client.wait()
            if job.client.stdout is not None:
                job.client.stdout.close()
            for started in job.events("supervisor_started"):
                with suppress(ProcessLookupError):
                    os.kill(started["pid"], signal.SIGCONT)
                self.kill(started["pid"])
        for pid in [broker.pid for broker in self.brokers] + [self.private_pid()]:
            if pid is not None:
                self.kill(pid)
        shutil.rmtree(self.root, ignore_errors=True)


def fresh_house(**settings: str) -> Iterator[LabHouse]:
    """A machine with short times for its brokers."""
    # Short paths: a socket's name has 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="ss-"))
    for name in ("run", "state", "locks", "runs"):
        (root / name).mkdir(mode=0o700)
    quick = {
        "slots": "2", "term_seconds": "4", "repay_min_seconds": "0.5", "repay_factor": "0",
        "min_auction_seconds": "0.5",
    }  # fmt: skip
    house = LabHouse(root, quick | settings)
    yield house
    house.close()


def overlap(*jobs: LabJob) -> list[tuple[Step, Step]]:
    """Steps of different jobs at the same time that together used more than two devices."""
    found = []
    first, second = ([step for step in job.steps() if step.rank == 0] for job in jobs)
    for one in first:
        for other in second:
            together = one.began_at < other.ended_at and other.began_at < one.ended_at
            if together and one.devices + other.devices > 2:
                found.append((one, other))
    return found
