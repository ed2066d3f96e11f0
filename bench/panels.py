"""What open panels of JupyterLab cost: `python -m bench.panels [--json] [--quick]`.

A broker process, fifty accounts, of which sixteen have a job that reports every five seconds,
and fifty panels that show jobs and cluster, as the front end asks for them. Three times: no
panel at all; all panels of one account at one Jupyter server, whose extension shares the
questions; and one of each account at a server of its own, as under JupyterHub (their polls
alone, sent as the extension would). Shares are of one core. `news_ms`: from an order to give a
device back until the last panel at the one server has what came of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from bench import _panels_lab as lab
from selfsched.protocol import JobReport, JobState

PANELS = 50
_JOBS = 16
_DEVICES = 8
_REPORT_SECONDS = 5.0
_SETTLE_SECONDS = 2.0
_JOBS_SECONDS, _CLUSTER_HOLD_SECONDS = 5.0, 20.0
"""As in the front end."""
_ORDERS = 5
_BETWEEN_ORDERS_SECONDS = 0.5
"""A person's: the extension tells a view's news at most four times a second."""


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


def _cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- what goes on at the broker ----------------------------------------------------------


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
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        return [await lab.register(client, "train", token=token) for token in tokens[:_JOBS]]


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
    """Shows the jobs and the cluster, asking as the front end does: the cluster by long polls, the
    jobs now and then, and at once when there is news of the cluster."""

    def __init__(self, client: httpx.AsyncClient, base: str, token: str) -> None:
        self._client = client
        self._base = base
        self._headers = {"Authorization": token}
        self._hurry = asyncio.Event()
        self._left = 0
        self.errors = 0
        self.left = 0
        """Devices that are not held, or are about to be left, when it asked for its jobs last."""

    async def show(self) -> None:
        """Until cancelled."""
        await asyncio.gather(self._follow_jobs(), self._follow_cluster())

    async def _follow_jobs(self) -> None:
        while True:
            self._hurry.clear()
            left = self._left
            answer = await self._ask("jobs?ended=0", self._headers)
            if answer is not None:
                self.left = left
            with suppress(TimeoutError):
                async with asyncio.timeout(_JOBS_SECONDS):
                    await self._hurry.wait()

    async def _follow_cluster(self) -> None:
        headers = self._headers
        while True:
            answer = await self._ask(f"cluster?wait_seconds={_CLUSTER_HOLD_SECONDS:.0f}", headers)
            if answer is not None:
                headers = {**self._headers, "If-None-Match": answer.headers["etag"]}
                self._left = sum(device["state"] != "held" for device in answer.json()["devices"])
                self._hurry.set()

    async def _ask(self, path: str, headers: dict[str, str]) -> httpx.Response | None:
        """What is new; None: nothing."""
        answer = await self._client.get(f"{self._base}{path}", headers=headers)
        if answer.status_code not in (200, 304):
            self.errors += 1
            await asyncio.sleep(1.0)
        return answer if answer.status_code == 200 else None


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


async def _news_ms(broker: httpx.AsyncClient, jobs: list[str], panels: list[_Panel]) -> float:
    """The median over some jobs that are told to give their device back."""
    took = []
    for number, job in enumerate(jobs[:_ORDERS]):
        await asyncio.sleep(_BETWEEN_ORDERS_SECONDS)
        ordered_at = time.monotonic()
        answer = await broker.post(f"/v1/jobs/{job}/control", json={"action": "give_back"})
        answer.raise_for_status()
        while any(panel.left <= number for panel in panels):
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
        broker = lab.start_broker(folder)
        undo.callback(lab.end, broker)
        url = await lab.address_of(folder, broker)
        await lab.offer(admin, _DEVICES)
        tokens = await _accounts(admin)
        jobs = await _register(url, tokens)
        training = asyncio.ensure_future(_train(admin, jobs))
        undo.callback(training.cancel)
        await asyncio.sleep(_SETTLE_SECONDS)
        (alone,) = await _shares(seconds, broker)
        port = lab.free_port()
        notebooks = lab.start_jupyter(folder, port, SELFSCHED_BROKER=url, SELFSCHED_TOKEN=tokens[0])
        undo.callback(lab.end, notebooks)
        base = f"http://127.0.0.1:{port}/selfsched/api"
        await lab.until_it_answers(web, f"http://127.0.0.1:{port}/api", notebooks)
        panels = [_Panel(web, f"{base}/broker/", f"token {lab.JUPYTER_TOKEN}") for _ in range(PANELS)]
        async with _open(panels):
            together, jupyter = await _shares(seconds, broker, notebooks)
            news = await _news_ms(admin, jobs, panels)
        others = [_Panel(web, f"{url}/v1/", f"Bearer {token}") for token in tokens]
        async with _open(others):
            (own,) = await _shares(seconds, broker)
        if training.done():
            training.result()
    errors = sum(panel.errors for panel in (*panels, *others))
    return Panels(PANELS, alone, together, jupyter, own, news, errors)


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
