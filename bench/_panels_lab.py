"""What the benches of panels share: a broker and a Jupyter server as processes, and jobs at the broker."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from selfsched.protocol import DeviceReport, NodeReport, RegisterJob

JUPYTER_TOKEN = "of-this-bench"
_START_SECONDS = 40.0


def start_broker(folder: Path) -> subprocess.Popen[bytes]:
    """A broker with its books in a folder, at the socket `s` there; it offers no devices of its own."""
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


def start_jupyter(folder: Path, port: int, **environment: str) -> subprocess.Popen[bytes]:
    """A Jupyter server whose user has a home of their own in a folder."""
    home = folder / "home"
    home.mkdir()
    command = (
        sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", f"--port={port}",
        "--ServerApp.port_retries=0", f"--ServerApp.root_dir={home}",
        f"--IdentityProvider.token={JUPYTER_TOKEN}", "--LabApp.expose_app_in_browser=True",
    )  # fmt: skip
    return subprocess.Popen(
        command, env=_environment(HOME=str(home), **environment), cwd=home,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "SELFSCHED" not in name}
    return kept | {"PYTHONWARNINGS": "ignore"} | more


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process."""
    process.terminate()
    process.wait(30)


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def until_it_answers(client: httpx.AsyncClient, path: str, process: subprocess.Popen[bytes]) -> None:
    """Wait for a server to come up.

    Raises:
        SystemExit: it does not.
    """
    give_up_at = time.monotonic() + _START_SECONDS
    while True:
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise SystemExit("a process of this bench does not start")
        try:
            if (await client.get(path)).is_success:
                return
        except httpx.TransportError:
            await asyncio.sleep(0.05)


async def address_of(folder: Path, broker: subprocess.Popen[bytes]) -> str:
    """Where the broker of a folder listens, when it does.

    Raises:
        SystemExit: it does not.
    """
    ready, give_up_at = folder / "state" / "broker.json", time.monotonic() + _START_SECONDS
    while not ready.exists():
        if broker.poll() is not None or time.monotonic() > give_up_at:
            raise SystemExit("the broker does not start")
        await asyncio.sleep(0.05)
    return str(json.loads(ready.read_text())["address"])


async def offer(broker: httpx.AsyncClient, devices: int) -> None:
    """Report a node with so many empty devices."""
    offered = tuple(
        DeviceReport(id=f"n/g{n}", index=n, model="A", kind="gpu", state="empty") for n in range(devices)
    )
    report = NodeReport(incarnation=1, sequence=1, devices=offered)
    (await broker.post("/v1/nodes/n/report", content=report.to_json())).raise_for_status()


async def register(broker: httpx.AsyncClient, name: str, *, devices: int = 1, token: str = "") -> str:
    """Register a job for so many devices; its id."""
    headers = {"Idempotency-Key": name} | ({"Authorization": f"Bearer {token}"} if token else {})
    job = RegisterJob(name=name, min_devices=devices, max_devices=devices)
    answer = await broker.post("/v1/jobs", content=job.to_json(), headers=headers)
    return str(answer.raise_for_status().json()["job"])
