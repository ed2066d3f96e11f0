"""A whole broker in this process: real SQLite, a real loopback port, a real Unix socket."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from selfsched.protocol import (
    DeviceReport,
    Instructions,
    JobReport,
    JobState,
    LeaseRef,
    NodeInstructions,
    NodeReport,
    RegisterJob,
)
from selfsched_broker import settings
from selfsched_broker.serving import Running, serve

NODE = "here"


@dataclass
class StandInAgent:
    """A machine whose devices are as a test says: empty, unless it says otherwise."""

    name: str = NODE
    devices: int = 2
    occupied: set[str] = field(default_factory=set)
    incarnation: int = 1
    reports: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def report(self) -> NodeReport:
        return NodeReport(
            incarnation=self.incarnation,
            sequence=next(self.reports),
            devices=tuple(
                DeviceReport(
                    id=f"{self.name}/cpu{n}",
                    index=n,
                    model="cpu",
                    kind="cpu",
                    cores=(n,),
                    state="occupied" if f"{self.name}/cpu{n}" in self.occupied else "empty",
                )
                for n in range(self.devices)
            ),
        )

    def follow(self, instructions: NodeInstructions) -> None:
        pass


@dataclass
class LiveBroker:
    """A running broker and its clients."""

    running: Running
    agent: StandInAgent
    admin: httpx.Client
    """Over the socket, as the user who runs the tests."""
    clients: list[httpx.Client] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.running.addresses.address

    @property
    def books(self) -> Any:
        return self.running.service.books

    def anonymous(self) -> httpx.Client:
        return self._keep(httpx.Client(base_url=self.url, trust_env=False))

    def as_account(self, account: str, *, node: str | None = None) -> httpx.Client:
        """A client with a new token, over TCP; the account is made when it is not there."""
        assert self.admin.put(f"/v1/admin/accounts/{account}", json={}).status_code == 200
        made = self.admin.post(f"/v1/admin/accounts/{account}/tokens", json={"node": node} if node else {})
        assert made.status_code == 201, made.text
        headers = {"Authorization": f"Bearer {made.json()['token']}"}
        return self._keep(httpx.Client(base_url=self.url, headers=headers, trust_env=False))

    def _keep(self, client: httpx.Client) -> httpx.Client:
        self.clients.append(client)
        return client


@contextmanager
def live_broker(
    state: Path, *, devices: int = 2, environment: dict[str, str] | None = None, **given: Any
) -> Iterator[LiveBroker]:
    """Run a broker in a thread."""
    found = settings.load(
        environment=environment or {}, state_dir=state, socket=state / "s", port=0, host="127.0.0.1", **given
    )
    agent, ready, up = StandInAgent(devices=devices), [], threading.Event()

    def run() -> None:
        try:
            serve(found, agent=agent, ready=lambda running: (ready.append(running), up.set()))
        finally:
            up.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert up.wait(30), "the broker does not come up"
    assert ready, "the broker ended at once"
    transport = httpx.HTTPTransport(uds=ready[0].addresses.socket)
    live = LiveBroker(ready[0], agent, httpx.Client(transport=transport, base_url="http://broker"))
    try:
        yield live
    finally:
        for client in (live.admin, *live.clients):
            client.close()
        ready[0].end()
        thread.join(30)
        assert not thread.is_alive(), "the broker does not end"


def register(client: httpx.Client, name: str = "train", **wishes: Any) -> str:
    """Register a job; returns its id."""
    message = RegisterJob(name=name, **wishes)
    answer = client.post("/v1/jobs", content=message.to_json(), headers={"Idempotency-Key": uuid.uuid4().hex})
    assert answer.status_code == 201, answer.text
    job = answer.json()["job"]
    assert isinstance(job, str)
    return job


def report(client: httpx.Client, job: str, sequence: int, **said: Any) -> httpx.Response:
    """Send a report of a waiting job, or of what it says."""
    message = JobReport(incarnation=1, sequence=sequence, **{"state": JobState.WAITING, **said})
    return client.post(f"/v1/jobs/{job}/report", content=message.to_json(), timeout=20)


def until_leased(client: httpx.Client, job: str) -> tuple[Instructions, int]:
    """Report, by long poll, until the job has a lease; returns its instructions and the last sequence."""
    seen = 0
    for sequence in range(1, 10):
        answer = report(client, job, sequence, wait_seconds=5.0, seen=seen)
        assert answer.status_code == 200, answer.text
        told = Instructions.model_validate_json(answer.content)
        if told.leases:
            return told, sequence
        seen = told.version
    raise AssertionError("no lease after nine reports")


def refs(told: Instructions) -> tuple[LeaseRef, ...]:
    """The leases of instructions, as a report names them."""
    return tuple(LeaseRef(lease=lease.lease, fence=lease.fence) for lease in told.leases)
