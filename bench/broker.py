"""Heartbeats of many jobs at one broker: `python -m bench.broker [--json] [--quick]`.

A broker process on SQLite and one on memory, a node with made-up devices, jobs that hold them
and others that wait. Clients report as fast as the broker answers, several at once, so the
figures are those of a saturated broker that shares its machine with its clients; a lab of a
thousand jobs sends a hundred reports a second.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

from selfsched.protocol import (
    DeviceReport,
    Instructions,
    JobReport,
    JobState,
    LeaseRef,
    NodeReport,
    RegisterJob,
)

_CONNECTIONS = 16
_START_SECONDS = 40.0
_LEASE_LOST = 410


@dataclass(frozen=True)
class Run:
    """Result of one store."""

    store: str
    jobs: int
    devices: int
    heartbeats_per_s: float
    p50_ms: float
    p99_ms: float
    false_expiries: int
    """Leases that ended although their job reported in time."""
    errors: int
    """Answers that were no 200."""


@dataclass
class _Tally:
    latencies: list[float] = field(default_factory=list)
    errors: int = 0
    lost: int = 0


def measure(store: str, *, jobs: int, devices: int, seconds: float) -> Run:
    """Start a broker, let jobs report for a while, and count.

    Args:
        store: `sqlite` or `memory`.
        jobs: how many report.
        devices: of the made-up node; so many of the jobs hold one.
        seconds: for so long they report.
    """
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "b"
        process = _start(state, store)
        try:
            return asyncio.run(_load(_socket_of(state, process), store, jobs, devices, seconds))
        finally:
            process.terminate()
            process.wait(20)


def _start(state: Path, store: str) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if "SELFSCHED" not in name}
    environment = kept | {
        "SELFSCHED_BROKER_STATE_DIR": str(state),
        "SELFSCHED_BROKER_SOCKET": str(state / "s"),
        "SELFSCHED_BROKER_AGENT": "0",
        "SELFSCHED_BROKER_CALLS_PER_SECOND": "1e6",
        "SELFSCHED_BROKER_REPORTS_PER_SECOND": "1e6",
        "SELFSCHED_BROKER_NODE_SILENT_SECONDS": "3600",
    }
    state.mkdir(mode=0o700)
    if store == "memory":
        environment["SELFSCHED_BROKER_STORE"] = "memory:"
    command = (sys.executable, "-m", "selfsched_broker", "serve")
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _socket_of(state: Path, process: subprocess.Popen[bytes]) -> str:
    give_up_at = time.monotonic() + _START_SECONDS
    while not (state / "broker.json").exists():
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise SystemExit("the broker does not start")
        time.sleep(0.05)
    return str(json.loads((state / "broker.json").read_text())["socket"])


async def _load(path: str, store: str, jobs: int, devices: int, seconds: float) -> Run:
    limits = httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS)
    transport = httpx.AsyncHTTPTransport(uds=path, limits=limits)
    async with httpx.AsyncClient(transport=transport, base_url="http://broker", timeout=30) as client:
        await _offer(client, devices)
        ids = [await _register(client, number) for number in range(jobs)]
        sequence = itertools.count(1)
        told = {job: await _first_lease(client, job, sequence) for job in ids}
        tally = _Tally()
        began = time.perf_counter()
        ends_at = began + seconds
        queue = itertools.cycle(ids)
        await asyncio.gather(
            *(_report_until(client, queue, told, sequence, ends_at, tally) for _ in range(_CONNECTIONS))
        )
        elapsed = time.perf_counter() - began
    cuts = statistics.quantiles(tally.latencies, n=100)
    return Run(
        store=store,
        jobs=jobs,
        devices=devices,
        heartbeats_per_s=round(len(tally.latencies) / elapsed, 1),
        p50_ms=round(cuts[49] * 1e3, 2),
        p99_ms=round(cuts[98] * 1e3, 2),
        false_expiries=tally.lost,
        errors=tally.errors,
    )


async def _offer(client: httpx.AsyncClient, devices: int) -> None:
    report = NodeReport(
        incarnation=1,
        sequence=1,
        devices=tuple(
            DeviceReport(id=f"bench/gpu{n}", index=n, model="made-up", kind="gpu", state="empty")
            for n in range(devices)
        ),
    )
    (await client.post("/v1/nodes/bench/report", content=report.to_json())).raise_for_status()


async def _register(client: httpx.AsyncClient, number: int) -> str:
    wish = RegisterJob(name=f"bench-{number}")
    headers = {"Idempotency-Key": f"bench-{number}"}
    answer = await client.post("/v1/jobs", content=wish.to_json(), headers=headers)
    return str(answer.raise_for_status().json()["job"])


async def _first_lease(
    client: httpx.AsyncClient, job: str, sequence: itertools.count[int]
) -> tuple[LeaseRef, ...]:
    report = JobReport(incarnation=1, sequence=next(sequence), state=JobState.WAITING)
    answer = await client.post(f"/v1/jobs/{job}/report", content=report.to_json())
    return _leases(answer.raise_for_status())


def _leases(answer: httpx.Response) -> tuple[LeaseRef, ...]:
    told = Instructions.model_validate_json(answer.content)
    return tuple(LeaseRef(lease=lease.lease, fence=lease.fence) for lease in told.leases)


async def _report_until(
    client: httpx.AsyncClient,
    queue: itertools.cycle[str],
    told: dict[str, tuple[LeaseRef, ...]],
    sequence: itertools.count[int],
    ends_at: float,
    tally: _Tally,
) -> None:
    while time.perf_counter() < ends_at:
        job = next(queue)
        state = JobState.RUNNING if told[job] else JobState.WAITING
        report = JobReport(incarnation=1, sequence=next(sequence), state=state, leases=told[job])
        began = time.perf_counter()
        answer = await client.post(f"/v1/jobs/{job}/report", content=report.to_json())
        tally.latencies.append(time.perf_counter() - began)
        if answer.status_code == httpx.codes.OK:
            told[job] = _leases(answer)
        else:
            tally.errors += 1
            if answer.status_code == _LEASE_LOST:
                tally.lost += 1
                told[job] = ()


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument("--quick", action="store_true", help="small and short")
    options = parser.parse_args()
    jobs, devices, seconds = (50, 16, 3.0) if options.quick else (1000, 64, 20.0)
    runs = [measure(s, jobs=jobs, devices=devices, seconds=seconds) for s in ("sqlite", "memory")]
    if options.json:
        print(json.dumps({"runs": [asdict(run) for run in runs]}))
        return
    print("store     jobs  devices   beats/s   p50 ms   p99 ms  false  errors")
    for r in runs:
        print(
            f"{r.store:<8}{r.jobs:>6}{r.devices:>9}{r.heartbeats_per_s:>10.0f}{r.p50_ms:>9.2f}"
            f"{r.p99_ms:>9.2f}{r.false_expiries:>7}{r.errors:>8}"
        )


if __name__ == "__main__":
    main()
