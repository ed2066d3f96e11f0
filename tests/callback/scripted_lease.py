"""A scripted broker of two CPU slots of this machine, and the way of a plain Trainer to it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from negotiator.scripted_broker import ADDRESS, ScriptedBroker

from selfsched.callback import NoLease
from selfsched.client import BrokerClient
from selfsched.launch.local_devices import node_name
from selfsched.private_broker import BrokerAccess
from selfsched.protocol import ClusterView, DeviceState, DeviceView, Instructions, Message, RegisterJob, parse

NODE = node_name()


def slot(number: int) -> str:
    return f"{NODE}/cpu{number}"


class TwoSlots(ScriptedBroker):
    """Grants at registration what is asked for, unless `grants` says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.grants = True
        self.term_seconds = 300.0
        self.held_by: dict[str, str] = {}
        self.detail = ""
        self.state = DeviceState.FREE
        """Of the slots that nobody holds."""

    def _answer(self, last: str, request: httpx.Request) -> Message:
        if last == "cluster":
            return self.cluster()
        if last == "jobs" and self.grants and request.headers["idempotency-key"] not in self.keys:
            wanted = parse(RegisterJob, request.content)
            self.grant(*(wanted.wanted_devices or [slot(n) for n in range(wanted.min_devices)]))
        return super()._answer(last, request)

    def instructions(self) -> Instructions:
        told = super().instructions()
        leases = [lease.model_copy(update={"term_seconds": self.term_seconds}) for lease in told.leases]
        return told.model_copy(update={"leases": tuple(leases)})

    def cluster(self) -> ClusterView:
        devices = tuple(
            DeviceView(
                id=slot(n), node=NODE, index=n, model="cpu", kind="cpu", cores=(n,), since_seconds=1.0,
                state=DeviceState.HELD if slot(n) in self.held_by else self.state,
                account=self.held_by.get(slot(n)),
                detail=self.detail,
            )
            for n in range(2)
        )  # fmt: skip
        return ClusterView(
            policy="themis", devices=devices, waiting_jobs=0, running_jobs=0, next_tick_seconds=1.0,
            incarnation=1,
        )  # fmt: skip


@dataclass
class Lab:
    """A Trainer's surroundings: a broker that is set, and places of a test's own."""

    root: Path
    broker: TwoSlots
    warned: list[str] = field(default_factory=list)

    def fit(self, run: Callable[[], Any]) -> None:
        """Run it, keeping what it warned of its lease."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                run()
            finally:
                self.warned = [str(w.message) for w in caught if w.category is NoLease]


def lab(root: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Let every callback of this process reach a scripted broker instead of the network."""
    broker = TwoSlots()

    def find(settings: Any) -> BrokerAccess:
        return BrokerAccess(BrokerClient(ADDRESS, transport=httpx.MockTransport(broker)))

    monkeypatch.setattr("selfsched.held_fit.find_broker", find)
    (root / "locks").mkdir()
    monkeypatch.setenv("SELFSCHED_BROKER", ADDRESS.url)
    monkeypatch.setenv("SELFSCHED_LOCK_DIR", str(root / "locks"))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    return Lab(root, broker)
