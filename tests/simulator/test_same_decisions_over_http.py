"""What a simulation decides a broker decides, too, told the same over HTTP, with tokens and on SQLite."""

from __future__ import annotations

import asyncio
import os
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from simulator.test_same_decisions import VirtualClock, record

from selfsched.protocol import Message
from selfsched_broker.api.call import Backstage
from selfsched_broker.api.limits import Buckets, Budget
from selfsched_broker.api.polls import Polls
from selfsched_broker.app import build_app
from selfsched_broker.core import arbiter
from selfsched_broker.core.books import Books
from selfsched_broker.desk import Desk
from selfsched_broker.management import Management
from selfsched_broker.service import Service
from selfsched_broker.store.sql import SqlStore
from selfsched_simulator.faults import FaultOptions
from selfsched_simulator.wire import Said

NO_LIMIT = Budget(per_second=1e6)


class Broker:
    """A service behind its HTTP application, in virtual time."""

    def __init__(self, service: Service, clock: VirtualClock, workers: ThreadPoolExecutor) -> None:
        self.service, self.clock = service, clock
        backstage = Backstage(
            desk=Desk(service), management=Management(service), polls=Polls(asyncio.get_running_loop()),
            workers=workers, longest_wait_seconds=0.0, calls=Buckets(NO_LIMIT), heartbeats=Buckets(NO_LIMIT),
        )  # fmt: skip
        app = build_app(backstage)

        async def as_me(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
            await app({**scope, "state": {"peer_uid": os.geteuid()}}, receive, send)

        self.admin = httpx.AsyncClient(transport=httpx.ASGITransport(as_me), base_url="http://localhost")
        self.anyone = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
        self.tokens: dict[str, str] = {}
        self.owners: dict[str, str] = {}

    async def let_in(self, account: str) -> None:
        assert (await self.admin.put(f"/v1/admin/accounts/{account}", json={})).status_code == 200
        made = await self.admin.post(f"/v1/admin/accounts/{account}/tokens", json={})
        self.tokens[account] = made.json()["token"]

    async def hear(self, said: Said, key: str) -> None:
        """One message of a recorded history, at its instant."""
        self.clock.at = said.at_seconds
        if said.call == "advance":
            assert self.service.look(arbiter.next_due) <= self.clock.at
            self.service.advance()
            return
        who, message = said.arguments
        if said.call == "node_report":
            answer = await self.admin.post(f"/v1/nodes/{who}/report", content=message.to_json())
        elif said.call == "register":
            answer = await self._post(who, "/v1/jobs", message, key)
            self.owners[answer.json()["job"]] = who
        elif said.call == "release":
            owner = self.owners[self.service.books.leases[who].job]
            answer = await self._post(owner, f"/v1/leases/{who}/release", message, key)
        else:
            answer = await self._post(self.owners[who], f"/v1/jobs/{who}/{said.call}", message, key)
        assert answer.is_success == isinstance(said.answer, Message), (said, answer.text)

    async def _post(self, account: str, path: str, message: Message, key: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.tokens[account]}", "Idempotency-Key": key}
        return await self.anyone.post(path, content=message.to_json(), headers=headers)


async def say_again(history: list[Said], service: Service, clock: VirtualClock) -> None:
    with ThreadPoolExecutor(1) as workers:
        broker = Broker(service, clock, workers)
        for account in sorted({said.arguments[0] for said in history if said.call == "register"}):
            await broker.let_in(account)
        for number, said in enumerate(history):
            await broker.hear(said, f"key-{number}")
        await broker.admin.aclose()
        await broker.anyone.aclose()


def decisions(books: Books) -> list[object]:
    """Who got what, when, until when and by which auction."""
    leases = [
        (x.fence, x.job, x.granted_at, x.term_ends_at, x.visit, x.ended_at, x.end_reason,
         tuple(h.device for h in books.all_holdings_of(x.id)))
        for x in sorted(books.leases.values(), key=lambda lease: lease.fence)
    ]  # fmt: skip
    auctions = [
        (a.number, a.at, a.view.trigger, tuple((w.job, w.device_ids) for w in a.view.awards))
        for a in sorted(books.auctions.values(), key=lambda auction: auction.number)
    ]
    return [leases, auctions]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["selfsched", "themis"])
def test_over_http_a_recorded_history_gets_the_same_decisions(tmp_path: Path, policy: str) -> None:
    history, simulation = record(policy, FaultOptions())
    assert len(history) > 100
    (tmp_path / "state").mkdir(mode=0o700)
    clock = VirtualClock()
    store = SqlStore(f"sqlite:///{tmp_path / 'state' / 'books.sqlite'}")
    service = Service(store, simulation.rules, monotonic=clock)
    asyncio.run(say_again(history, service, clock))
    service.books.validate()
    assert decisions(service.books) == decisions(simulation.books)
    service.close()
