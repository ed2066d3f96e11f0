"""Real runs for tests: a client process, its supervisor, and who of them lives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfsched.launch.locks import MachineLocks

HERE = Path(__file__).parent
TINY_RANK = HERE / "tiny_rank.py"
_CLIENT = """
import json, sys
from pathlib import Path
from selfsched.elastic.run import RunOptions, run_command
from selfsched.errors import SelfschedError
options = json.loads(sys.argv[1])
options["runs_directory"] = Path(options["runs_directory"])
try:
    sys.exit(run_command(json.loads(sys.argv[2]), RunOptions(**options)))
except SelfschedError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def wait_for(condition: Callable[[], Any], *, what: str, seconds: float = 60.0) -> Any:
    """Wait until the condition holds; its value. Fails the test by name when it never does."""
    give_up_at = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < give_up_at, f"waited {seconds:g} s in vain for: {what}"
        time.sleep(0.01)
    return value


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


@dataclass
class Run:
    """A client process and the run's directory."""

    client: subprocess.Popen[str]
    runs: Path
    name: str

    @property
    def directory(self) -> Path:
        return self.runs / self.name

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The run's journal so far."""
        try:
            lines = (self.directory / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in events if kind is None or event["kind"] == kind]

    def wait_for_event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The first event of that kind in which these fields are at least so much."""

        def found() -> dict[str, Any] | None:
            assert self.client.poll() is None or self.matching(kind, fields), self.output()
            return next(iter(self.matching(kind, fields)), None)

        return wait_for(found, what=f"{kind} {fields} in {self.directory}")

    def matching(self, kind: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
        return [e for e in self.events(kind) if all(e[name] >= value for name, value in fields.items())]

    @property
    def supervisor_pid(self) -> int:
        return int(self.events("supervisor_started")[-1]["pid"])

    def rank_pids(self) -> list[int]:
        """Of the newest segment, by rank."""
        ranks: dict[int, int] = {}
        for event in self.events():
            if event["kind"] == "segment_began":
                ranks.clear()
            elif event["kind"] == "rank_started":
                ranks[event["rank"]] = event["pid"]
        return [ranks[rank] for rank in sorted(ranks)]

    def wait_for_ranks(self, count: int) -> list[int]:
        """The pids of the newest segment once so many ranks have reported."""
        wait_for(lambda: len(self.rank_pids()) >= count, what=f"{count} ranks in {self.directory}")
        return self.rank_pids()

    def all_pids(self) -> set[int]:
        """Every process that the journal knows of, and the tiny ranks' children."""
        pids = set()
        for event in self.events():
            pids |= {event[key] for key in ("pid", "warden_pid") if key in event}
        pids |= {int(path.read_text()) for path in self.directory.glob("child-*")}
        return pids

    def finish(self, seconds: float = 120.0) -> int:
        """Wait for the client; its exit code."""
        self._printed = self.client.communicate(timeout=seconds)
        return self.client.returncode

    def output(self) -> str:
        """What the client printed, standard error last; only after its end."""
        if not hasattr(self, "_printed"):
            self._printed = self.client.communicate(timeout=10)
        return "".join(self._printed)

    def assert_nothing_left(self) -> None:
        """No process of the run lives, and every device it had is free."""
        wait_for(lambda: not [pid for pid in self.all_pids() if is_alive(pid)], what="all processes gone",
                 seconds=20.0)
        locks = MachineLocks(Path(os.environ["SELFSCHED_LOCK_DIR"]))
        devices = {device for event in self.events("segment_began") for device in event["devices"]}
        wait_for(lambda: all(map(locks.is_free, devices)), what="all devices free", seconds=20.0)


class Runs:
    """Starts runs in one place, and ends what a failed test left."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._started: list[Run] = []

    def start(self, command: Sequence[str], *, name: str = "job", **options: Any) -> Run:
        """A client that runs the command, and is the leader of a session of its own."""
        given = {"name": name, "runs_directory": str(self._runs), **options}
        client = subprocess.Popen(
            [sys.executable, "-c", _CLIENT, json.dumps(given), json.dumps(list(command))],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )
        return self.of(client, name)

    def of(self, client: subprocess.Popen[str], name: str) -> Run:
        """The run of a client that a test started in another way, in the same place."""
        run = Run(client, self._runs, name)
        self._started.append(run)
        return run

    def tiny(self, state: Path, steps: int, behaviour: str = "", **options: Any) -> Run:
        """A run of torch-free ranks, started verbatim."""
        command = [sys.executable, str(TINY_RANK), str(state), str(steps), behaviour]
        return self.start(command, without_zygote=True, **options)

    def end_all(self) -> None:
        for run in self._started:
            run.client.kill()
            run.client.wait()
            for stream in (run.client.stdout, run.client.stderr):
                if stream is not None:
                    stream.close()
            for event in run.events("supervisor_started"):
                if is_alive(event["pid"]):
                    os.kill(event["pid"], 9)
            run.assert_nothing_left()


def fresh_runs(runs: Path) -> Iterator[Runs]:
    made = Runs(runs)
    yield made
    made.end_all()
