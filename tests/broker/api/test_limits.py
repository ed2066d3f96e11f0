"""Floods, slow clients, foreign host names: nobody else notices."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from broker.live_broker import LiveBroker, live_broker, refs, register, report, until_leased

from selfsched_broker.api import peer
from selfsched_broker.api.gate import Gate, host_name
from selfsched_broker.api.limits import Buckets, Budget
from selfsched_broker.core.leases import Refusal


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with live_broker(tmp_path / "state", calls_per_second=0.5, reports_per_second=0.5) as live:
        yield live


def test_a_bucket_is_empty_after_its_burst_and_fills_again() -> None:
    now = 0.0
    buckets = Buckets(Budget(per_second=2), monotonic=lambda: now)
    for _ in range(20):
        buckets.take("ada")
    with pytest.raises(Refusal):
        buckets.take("ada")
    buckets.take("bob")
    now = 0.5
    buckets.take("ada")
    with pytest.raises(Refusal):
        buckets.take("ada")


def test_a_flood_of_calls_is_stopped_and_heartbeats_go_on(broker: LiveBroker) -> None:
    ada, bob = broker.as_account("ada"), broker.as_account("bob")
    job = register(ada)
    told, last = until_leased(ada, job)
    flood = [
        ada.post("/v1/jobs", json={"name": "x"}, headers={"Idempotency-Key": f"k{n}"}) for n in range(30)
    ]
    refused = [answer for answer in flood if answer.status_code == 429]
    assert len(refused) >= 20
    assert refused[0].json()["code"] == "overloaded"
    assert int(refused[0].headers["retry-after"]) >= 1
    assert report(ada, job, last + 1, leases=refs(told)).status_code == 200
    assert bob.get("/v1/cluster").status_code == 200


def test_one_jobs_flood_of_reports_leaves_the_others_theirs(broker: LiveBroker) -> None:
    ada = broker.as_account("ada")
    loud, quiet = register(ada, "loud"), register(ada, "quiet")
    answers = [report(ada, loud, n).status_code for n in range(1, 12)]
    assert answers[0] == 200
    assert answers[-1] == 429
    assert report(ada, quiet, 1).status_code == 200


def test_a_foreign_host_name_is_refused_over_tcp(broker: LiveBroker) -> None:
    client = broker.anonymous()
    assert client.get("/healthz", headers={"Host": "evil.example"}).status_code == 421
    assert client.get("/healthz", headers={"Host": "localhost:1"}).status_code == 200
    assert broker.admin.get("/v1/cluster", headers={"Host": "evil.example"}).status_code == 200


@pytest.mark.parametrize(
    ("header", "name"),
    [("a:1", "a"), ("A", "a"), ("[::1]:8", "[::1]"), ("[::1]", "[::1]"), ("", "")],
)
def test_host_names_are_read_without_their_ports(header: str, name: str) -> None:
    assert host_name(header) == name


def test_a_client_that_trickles_its_headers_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "HEAD_SECONDS", 0.2)
    with live_broker(tmp_path / "state") as broker:
        url = httpx.URL(broker.url)
        with socket.create_connection((url.host, url.port or 0), timeout=10) as slow:
            slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A")
            assert slow.recv(100) == b""
        assert broker.anonymous().get("/healthz").status_code == 200


def test_a_body_that_trickles_is_given_up() -> None:
    sent: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass

    async def trickle() -> dict[str, Any]:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    gate = Gate(application, frozenset(), body_seconds=0.1)
    scope = {"type": "http", "path": "/", "headers": []}
    with pytest.raises(Exception, match="did not arrive"):
        asyncio.run(gate(scope, trickle, send))


def test_metrics_are_aggregates(broker: LiveBroker) -> None:
    register(broker.admin, "secret-name")
    text = broker.anonymous().get("/metrics").text
    assert 'selfsched_devices{state="free"}' in text
    assert "selfsched_forecasts_scored 0" in text
    assert "selfsched_hardware_learned 0" in text
    assert "secret-name" not in text
    assert "root" not in text


def test_it_listens_on_loopback_only(broker: LiveBroker) -> None:
    port = int(httpx.URL(broker.url).port or 0)
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port]
    assert listening == [f"0100007F:{port:04X}"]
