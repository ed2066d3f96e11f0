"""Over real HTTP: what of one account's bid another may read (nothing), and an administrator (all)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from broker.live_broker import LiveBroker, live_broker, register, report

from selfsched.protocol import BidRow, JobState, Placement, StandingBid

SECONDS = {"ada": 71_234.5, "bob": 83_456.5}
SEALED = ("rho_before", "rho_after", "payment", "term_part")


@pytest.fixture(scope="module", params=["selfsched", "themis"])
def market(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LiveBroker, dict[str, httpx.Client], dict[str, str]]]:
    """One device, two accounts with a job each that have bid: one has it, the other waits."""
    state: Path = tmp_path_factory.mktemp("b") / "state"
    with live_broker(state, devices=1, policy=request.param, term_seconds=1.0) as broker:
        clients = {name: broker.as_account(name) for name in SECONDS}
        jobs = {name: register(client, f"run-of-{name}") for name, client in clients.items()}
        for sequence in range(1, 40):
            for name, client in clients.items():
                assert say(broker, client, jobs[name], sequence, SECONDS[name]) == 200
            if sum(has_both(auction) for auction in listed(broker.admin)):
                break
        yield broker, clients, jobs


def say(broker: LiveBroker, client: httpx.Client, job: str, sequence: int, seconds: float) -> int:
    """Its bid, its leases if it has some, and that it hears what is new within a moment."""
    leases = [{"lease": lease.id, "fence": lease.fence} for lease in broker.books.leases_of(job)]
    row = BidRow(placement=Placement(devices=1), remaining_seconds=seconds, restart_seconds=2.0)
    answer = report(
        client, job, sequence, bid=StandingBid(rows=(row,)), leases=tuple(leases),
        state=JobState.RUNNING if leases else JobState.WAITING, steady_steps=40 * bool(leases),
        wait_seconds=0.2, seen=broker.books.jobs[job].instructions_version,
    )  # fmt: skip
    return answer.status_code


def listed(client: httpx.Client) -> list[dict[str, Any]]:
    """The auctions that a reader is given."""
    found = client.get("/v1/auctions").json()
    assert isinstance(found, list)
    return found


def has_both(auction: dict[str, Any]) -> bool:
    """Whether it was held over the bids of both."""
    return {a["account"] for a in auction["awards"] if a["rho_before"] is not None} == set(SECONDS)


@pytest.mark.slow
def test_no_reader_finds_anothers_bid(
    market: tuple[LiveBroker, dict[str, httpx.Client], dict[str, str]],
) -> None:
    broker, clients, jobs = market
    assert any(has_both(auction) for auction in listed(broker.admin)), "nothing to look for"
    for reader, other in (("ada", "bob"), ("bob", "ada")):
        client, bid = clients[reader], SECONDS[other]
        auctions = [client.get(f"/v1/auctions/{auction['number']}").json() for auction in listed(client)]
        everything = [client.get(path) for path in ("/v1/auctions", "/v1/jobs", "/v1/cluster", "/v1/policy")]
        everything += [client.get(f"/v1/auctions/{a['number']}") for a in auctions]
        everything.append(client.get(f"/v1/jobs/{jobs[reader]}"))
        for answer in everything:
            assert answer.status_code == 200
            shown = answer.text.replace(",", "")
            assert not any(figure in shown for figure in (f"{bid:g}", f"{bid:.0f}", f"{int(bid)}"))
            assert f"run-of-{other}" not in answer.text
        hidden = client.get(f"/v1/jobs/{jobs[other]}")
        assert (hidden.status_code, str(bid) in hidden.text) == (404, False)
        for award in (award for auction in auctions for award in auction["awards"]):
            assert (award["account"] == reader) == (award["reason"] != "another account's")
            if award["account"] == other:
                assert all(award.get(name) is None for name in SEALED)


@pytest.mark.slow
def test_the_owner_finds_their_own_bid_and_an_administrator_all(
    market: tuple[LiveBroker, dict[str, httpx.Client], dict[str, str]],
) -> None:
    broker, clients, jobs = market
    for name, client in clients.items():
        for reader in (client, broker.admin):
            shown = reader.get(f"/v1/jobs/{jobs[name]}")
            assert str(SECONDS[name]) in shown.text
            assert shown.json()["reasons"]
    awards = [award for auction in listed(broker.admin) for award in auction["awards"]]
    assert {award["account"] for award in awards} == set(SECONDS)
    assert all(award["reason"] not in ("", "another account's") for award in awards)
