"""What open panels of JupyterLab cost: `python -m bench.panels [--json] [--quick]`.

A broker process, fifty accounts, of which sixteen have a job that reports every five seconds,
and fifty panels that show jobs and cluster, as the front end asks for them. Three times: no
panel at all; all panels of one account at one Jupyter server, whose extension shares the
questions; and one of each account at a server of its own, as under JupyterHub (their polls
alone, sent as the extension would). Shares are of one core. `news_ms`: from an order until the
last panel at the one server has what came of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from selfsched.protocol import DeviceReport, JobReport, JobState, NodeReport, RegisterJob

PANELS = 50
_JOBS = 16
_DEVICES = 8
_REPORT_SECONDS = 5.0
_START_SECONDS = 40.0
_SETTLE_SECONDS = 2.0
_JOBS_HOLD_SECONDS, _CLUSTER_HOLD_SECONDS = 5.0, 20.0
"""As in the extension's list of calls."""
_ORDERS = 5
_BETWEEN_ORDERS_SECONDS = 0.5
"""A person's: the extension tells a view's news at most four times a second."""
_TOKEN = "of-this-bench"


@dataclass(frozen=True)
class Panels:
    """The result; shares of one core in percent."""

    panels: int
    broker_alone_percent: float
    one_server_percent: float
    """Of the broker, all panels at one Jupyter server ..."""
    jupyter_percent: float
    """... and of that server."""
    own_servers_percent: float
    """Of the broker, a Jupyter server for each panel."""
    news_ms: float
    errors: int
    """Answers that were neither news nor that there are none."""


# --- processes ---------------------------------------------------------------------------


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "SELFSCHED" not in name}
    return kept | {"PYTHONWARNINGS": "ignore"} | more


def _broker(folder: Path) -> subprocess.Popen[bytes]:
    environment = _environment(
        SELFSCHED_BROKER_STATE_DIR=str(folder / "state"),
        SELFSCHED_BROKER_SOCKET=str(folder / "s"),
        SELFSCHED_BROKER_HOST="127.0.0.1",
        SELFSCHED_BROKER_PORT="0",
        SELFSCHED_BROKER_AGENT="0",
        SELFSCHED_BROKER_CALLS_PER_SECOND="1e6",
        SELFSCHED_BROKER_NODE_SILENT_SECONDS="3600",
    )
    command = (sys.executable, "-m", "selfsched_broker", "serve")
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _jupyter(folder: Path, port: int, broker_url: str, token: str) -> subprocess.Popen[bytes]:
    home = folder / "home"
    home.mkdir()
    environment = _environment(HOME=str(home), SELFSCHED_BROKER=broker_url, SELFSCHED_TOKEN=token)
    command = (
        sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", f"--port={port}",
        "--ServerApp.port_retries=0", f"--ServerApp.root_dir={home}", f"--IdentityProvider.token={_TOKEN}",
    )  # fmt: skip
    return subprocess.Popen(
        command, env=environment, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _until_it_answers(client: httpx.AsyncClient, path: str, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + _START_SECONDS
    while True:
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise SystemExit("a process of this bench does not start")
        try:
            if (await client.get(path)).is_success:
                return
        except httpx.TransportError:
            await asyncio.sleep(0.05)


async def _address(ready: Path, broker: subprocess.Popen[bytes]) -> str:
    """Where the broker listens, when it does."""
    give_up_at = time.monotonic() + _START_SECONDS
    while not ready.exists():
        if broker.poll() is not None or time.monotonic() > give_up_at:
            raise SystemExit("the broker does not start")
        await asyncio.sleep(0.05)
    return str(json.loads(ready.read_text())["address"])


# --- what goes on at the broker ----------------------------------------------------------


async def _offer(broker: httpx.AsyncClient) -> None:
    devices = tuple(
        DeviceReport(id=f"n/g{n}", index=n, model="A", kind="gpu", state="empty") for n in range(_DEVICES)
    )
    report = NodeReport(incarnation=1, sequence=1, devices=devices)
    (await broker.post("/v1/nodes/n/report", content=report.to_json())).raise_for_status()


async def _accounts(broker: httpx.AsyncClient) -> list[str]:
    """A token of each account."""
    tokens = []
    for number in range(PANELS):
        place = f"/v1/admin/accounts/user-{number}"
        (await broker.put(place, json={})).raise_for_status()
        answer = await broker.post(f"{place}/tokens", json={})
        tokens.append(str(answer.raise_for_status().json()["token"]))
    return tokens


async def _register(url: str, tokens: list[str]) -> list[str]:
    """A job of each of the first accounts."""
    jobs = []
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        for token in tokens[:_JOBS]:
            headers = {"Idempotency-Key": "a-job", "Authorization": f"Bearer {token}"}
            job = RegisterJob(name="train")
            answer = await client.post("/v1/jobs", content=job.to_json(), headers=headers)
            jobs.append(str(answer.raise_for_status().json()["job"]))
    return jobs


async def _train(broker: httpx.AsyncClient, jobs: list[str]) -> None:
    """Report for all jobs, until cancelled."""
    leases: dict[str, list[dict[str, object]]] = {job: [] for job in jobs}
    for sequence in range(1, 10_000):
        for job in jobs:
            state = JobState.RUNNING if leases[job] else JobState.WAITING
            report = JobReport(
                incarnation=1, sequence=sequence, state=state, step=sequence * 10, planned_steps=100_000,
                fraction_done=sequence * 1e-4,
            ).model_dump(mode="json")  # fmt: skip
            answer = await broker.post(f"/v1/jobs/{job}/report", json={**report, "leases": leases[job]})
            told = answer.raise_for_status().json()["leases"]
            leases[job] = [{"lease": lease["lease"], "fence": lease["fence"]} for lease in told]
        await asyncio.sleep(_REPORT_SECONDS)


# --- panels ------------------------------------------------------------------------------


class _Panel:
    """Shows the jobs and the cluster."""

    def __init__(self, client: httpx.AsyncClient, base: str, token: str) -> None:
        self._client = client
        self._base = base
        self._headers = {"Authorization": token}
        self.errors = 0
        self.priority = 0.0
        """Of its first job, as it shows it."""

    async def show(self) -> None:
        """Until cancelled."""
        await asyncio.gather(
            self._follow("jobs", _JOBS_HOLD_SECONDS), self._follow("cluster", _CLUSTER_HOLD_SECONDS)
        )

    async def _follow(self, view: str, hold_seconds: float) -> None:
        headers = self._headers
        while True:
            answer = await self._client.get(
                f"{self._base}{view}?wait_seconds={hold_seconds:.0f}", headers=headers
            )
            if answer.status_code not in (200, 304):
                self.errors += 1
                await asyncio.sleep(1.0)
            if answer.status_code == 200:
                headers = {**self._headers, "If-None-Match": answer.headers["etag"]}
                if view == "jobs":
                    self.priority = max((job["priority"] for job in answer.json()), default=0.0)


@asynccontextmanager
async def _open(panels: list[_Panel]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(panel.show()) for panel in panels]
    try:
        await asyncio.sleep(_SETTLE_SECONDS)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _shares(seconds: float, *processes: subprocess.Popen[bytes]) -> list[float]:
    began, before = time.monotonic(), [_cpu_seconds(process) for process in processes]
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    return [
        100 * (_cpu_seconds(process) - cpu) / took for process, cpu in zip(processes, before, strict=True)
    ]


async def _news_ms(broker: httpx.AsyncClient, job: str, panels: list[_Panel]) -> float:
    """The median over some orders."""
    took = []
    for number in range(_ORDERS):
        await asyncio.sleep(_BETWEEN_ORDERS_SECONDS)
        priority, ordered_at = 2.0 + number, time.monotonic()
        order = {"action": "set_priority", "priority": priority}
        (await broker.post(f"/v1/jobs/{job}/control", json=order)).raise_for_status()
        while any(panel.priority != priority for panel in panels):
            await asyncio.sleep(0.001)
        took.append(1000 * (time.monotonic() - ordered_at))
    return statistics.median(took)


async def measure(folder: Path, seconds: float) -> Panels:
    """Run all of it; `folder` is empty, and its path short enough for a socket."""
    (folder / "state").mkdir(mode=0o700)
    async with AsyncExitStack() as undo:
        transport = httpx.AsyncHTTPTransport(uds=str(folder / "s"))
        admin = await undo.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://broker", timeout=60)
        )
        web = await undo.enter_async_context(
            httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=60, trust_env=False)
        )
        broker = _broker(folder)
        undo.callback(_end, broker)
        url = await _address(folder / "state" / "broker.json", broker)
        await _offer(admin)
        tokens = await _accounts(admin)
        jobs = await _register(url, tokens)
        training = asyncio.ensure_future(_train(admin, jobs))
        undo.callback(training.cancel)
        await asyncio.sleep(_SETTLE_SECONDS)
        (alone,) = await _shares(seconds, broker)
        port = _free_port()
        notebooks = _jupyter(folder, port, url, tokens[0])
        undo.callback(_end, notebooks)
        base = f"http://127.0.0.1:{port}/selfsched/api"
        await _until_it_answers(web, f"http://127.0.0.1:{port}/api", notebooks)
        panels = [_Panel(web, f"{base}/broker/", f"token {_TOKEN}") for _ in range(PANELS)]
        async with _open(panels):
            together, jupyter = await _shares(seconds, broker, notebooks)
            news = await _news_ms(admin, jobs[0], panels)
        others = [_Panel(web, f"{url}/v1/", f"Bearer {token}") for token in tokens]
        async with _open(others):
            (own,) = await _shares(seconds, broker)
        if training.done():
            training.result()
    errors = sum(panel.errors for panel in (*panels, *others))
    return Panels(PANELS, alone, together, jupyter, own, news, errors)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(30)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.panels", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument("--quick", action="store_true", help="six seconds of each in place of thirty")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="panels-") as folder:
        found = asyncio.run(measure(Path(folder), 6.0 if asked.quick else 30.0))
    figures = asdict(found)
    if asked.json:
        print(json.dumps(figures))
        return
    for name, figure in figures.items():
        print(f"{name:>22}  {figure:8.2f}")


if __name__ == "__main__":
    main()
