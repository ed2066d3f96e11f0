"""Who may call what: a matrix over every route of the application."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from broker.live_broker import LiveBroker, live_broker, register, until_leased
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from selfsched_broker.api import admin, health, jobs, nodes, people

OPEN = {"/healthz", "/readyz", "/metrics"}
ROUTES = [
    (method, prefix + route.path)
    for prefix, room in (("/v1", jobs), ("/v1", people), ("/v1", nodes), ("/v1", admin), ("", health))
    for route in room.router.routes
    if isinstance(route, APIRoute)
    for method in sorted(route.methods)
]
BODIES = {
    "/v1/jobs": '{"name":"x"}',
    "/v1/jobs/{job}/report": '{"incarnation":7,"sequence":7,"state":"running"}',
    "/v1/jobs/{job}/end": '{"outcome":"cancelled"}',
    "/v1/jobs/{job}/control": '{"action":"stop"}',
    "/v1/leases/{lease}/release": '{"fence":1,"devices":["here/cpu0"]}',
    "/v1/nodes/{name}/report": '{"incarnation":9999,"sequence":1,"devices":[]}',
    "/v1/forecast": '{"job":"job-1"}',
    "/v1/admin/accounts/{name}": '{"admin":true,"max_devices":1000}',
    "/v1/admin/accounts/{name}/tokens": "{}",
}


@dataclass
class House:
    """Two users, a node, an administrator; everything in the paths is Ada's."""

    broker: LiveBroker
    ada: httpx.Client
    bob: httpx.Client
    node: httpx.Client
    job: str
    lease: str

    def send(self, client: httpx.Client, method: str, path: str) -> httpx.Response:
        filled = path.format(
            job=self.job, lease=self.lease, number=1, name="other", token_id="x", device="here/cpu0",
            **{"device:path": "here/cpu0", "name:path": "cpu"},
        )  # fmt: skip
        filled = re.sub(r"\{name:path\}", "cpu", re.sub(r"\{device:path\}", "here/cpu0", filled))
        headers = {"Idempotency-Key": f"k-{method}-{abs(hash(path))}"}
        return client.request(method, filled, content=BODIES.get(path), headers=headers)

    def state(self) -> tuple[object, ...]:
        books = self.broker.books
        job = books.jobs[self.job]
        account = books.accounts["ada"]
        return (
            job.state, job.order, job.bid, books.devices_of(self.job), set(books.jobs), set(books.tokens),
            account.admin, account.max_devices, set(books.accounts), books.nodes["here"].incarnation,
            [device.drained for device in books.devices.values()],
        )  # fmt: skip


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with live_broker(
        tmp_path_factory.mktemp("b") / "state", calls_per_second=1e5, reports_per_second=1e5
    ) as broker:
        ada, bob = broker.as_account("ada"), broker.as_account("bob")
        node = broker.as_account("nodes", node="there")
        job = register(ada)
        told, _ = until_leased(ada, job)
        yield House(broker, ada, bob, node, job, told.leases[0].lease)


def plain(path: str) -> str:
    return path.replace(":path}", "}")


def ids(value: object) -> str:
    return str(value)


def test_the_matrix_has_every_route_of_the_application(house: House) -> None:
    def paths(routes: list[BaseRoute]) -> set[str]:
        return {route.path for route in routes if isinstance(route, APIRoute)}

    found = house.broker.anonymous().get("/v1/openapi.json").json()["paths"]
    assert {plain(path) for _, path in ROUTES} == set(found)
    assert set(BODIES) <= {plain(path) for _, path in ROUTES}


@pytest.mark.parametrize(("method", "path"), [r for r in ROUTES if r[1] not in OPEN], ids=ids)
def test_without_a_valid_token_nothing_is_told_or_done(house: House, method: str, path: str) -> None:
    before = house.state()
    wrong = "ss_" + "0" * 12 + "_" + "A" * 43
    for header in ({}, {"Authorization": f"Bearer {wrong}"}, {"Authorization": "Basic cm9vdDpyb290"},
                   {"Authorization": f"Bearer {wrong}x"}, {"Authorization": "Bearer"}):  # fmt: skip
        with httpx.Client(base_url=house.broker.url, headers=header, trust_env=False) as client:
            answer = house.send(client, method, plain(path))
        assert answer.status_code == 401
        assert answer.json()["code"] == "not_authenticated"
        assert answer.headers["www-authenticate"] == "Bearer"
    assert house.state() == before


FOREIGN = [r for r in ROUTES if "{job}" in r[1] or ("{lease}" in r[1] and "/admin/" not in r[1])]


@pytest.mark.parametrize(("method", "path"), FOREIGN, ids=ids)
def test_what_is_somebody_elses_looks_like_what_is_not_there(house: House, method: str, path: str) -> None:
    before = house.state()
    theirs = house.send(house.bob, method, plain(path))
    absent = House(house.broker, house.ada, house.bob, house.node, "job-9999", "lease-9999").send(
        house.bob, method, plain(path)
    )
    assert theirs.status_code == absent.status_code == 404
    assert theirs.content == absent.content
    assert house.state() == before


def test_a_try_at_somebody_elses_job_is_kept_in_the_audit(house: House) -> None:
    house.bob.get(f"/v1/jobs/{house.job}")
    entries = house.broker.admin.get("/v1/admin/audit").json()
    assert any(e["account"] == "bob" and e["action"] == "refused" for e in entries)


@pytest.mark.parametrize(("method", "path"), [r for r in ROUTES if "/admin/" in r[1]], ids=ids)
def test_administration_is_for_administrators(house: House, method: str, path: str) -> None:
    before = house.state()
    for client in (house.bob, house.ada, house.node):
        assert house.send(client, method, plain(path)).status_code == 403
    assert house.state() == before


@pytest.mark.parametrize(("method", "path"), [r for r in ROUTES if r[1] not in OPEN], ids=ids)
def test_a_nodes_token_reports_for_its_node_and_does_nothing_else(
    house: House, method: str, path: str
) -> None:
    before = house.state()
    answer = house.send(house.node, method, plain(path))
    assert answer.status_code == 403, answer.text
    assert house.state() == before


def test_a_nodes_token_may_report_for_its_node(house: House) -> None:
    body = '{"incarnation":1,"sequence":1,"devices":[]}'
    assert house.node.post("/v1/nodes/there/report", content=body).status_code == 200
    assert house.node.post("/v1/nodes/here/report", content=body).status_code == 403
    assert house.bob.post("/v1/nodes/there/report", content=body).status_code == 403


def test_lists_and_auctions_show_others_only_as_accounts(house: House) -> None:
    assert house.bob.get("/v1/jobs").json() == []
    assert [job["job"] for job in house.ada.get("/v1/jobs").json()] == [house.job]
    assert [job["job"] for job in house.broker.admin.get("/v1/jobs").json()] == [house.job]
    for auction in house.bob.get("/v1/auctions").json():
        assert all(award["reason"] == "another account's" for award in auction["awards"])
    assert "ada" in {device["account"] for device in house.bob.get("/v1/cluster").json()["devices"]}


def test_a_revoked_token_is_worth_nothing_at_once(house: House) -> None:
    client = house.broker.as_account("carol")
    assert client.get("/v1/accounts/me").status_code == 200
    token = next(t for t in house.broker.admin.get("/v1/admin/tokens").json() if t["account"] == "carol")
    assert house.broker.admin.delete(f"/v1/admin/tokens/{token['token_id']}").status_code == 200
    assert client.get("/v1/accounts/me").status_code == 401


def test_a_disabled_account_may_not_begin_anything(house: House) -> None:
    client = house.broker.as_account("dora")
    job = register(client)
    assert house.broker.admin.put("/v1/admin/accounts/dora", json={"disabled": True}).status_code == 200
    started = client.post("/v1/jobs", json={"name": "x"}, headers={"Idempotency-Key": "k"})
    assert started.status_code == 403
    control = client.post(f"/v1/jobs/{job}/control", json={"action": "pause"})
    assert control.status_code == 403
    assert client.post(f"/v1/jobs/{job}/end", json={"outcome": "cancelled"}).status_code == 200


def test_nobody_raises_their_own_limit(house: House) -> None:
    client = house.broker.as_account("erik")
    house.broker.admin.put("/v1/admin/accounts/erik", json={"max_devices": 1})
    assert client.put("/v1/admin/accounts/erik", json={"max_devices": 2}).status_code == 403
    wide = {"name": "wide", "min_devices": 2, "max_devices": 2}
    answer = client.post("/v1/jobs", json=wide, headers={"Idempotency-Key": "wide"})
    assert answer.status_code == 422
    assert "may hold 1" in answer.json()["detail"]


def test_secrets_are_stored_as_hashes_only(house: House) -> None:
    house.broker.admin.put("/v1/admin/accounts/fred", json={})
    made = house.broker.admin.post("/v1/admin/accounts/fred/tokens", json={}).json()
    secret = made["token"].split("_", 2)[2]
    assert secret not in repr(house.broker.books.tokens[made["token_id"]])
    assert secret not in house.broker.admin.get("/v1/admin/tokens").text
    assert secret not in house.broker.admin.get("/v1/admin/audit").text


def test_over_a_socket_one_is_who_the_kernel_says(house: House) -> None:
    assert house.broker.admin.get("/v1/accounts/me").json()["admin"] is True
    assert house.ada.get("/v1/accounts/me").json()["admin"] is False
    header = {"Authorization": "Bearer " + "x" * 60}
    assert house.broker.admin.get("/v1/accounts/me", headers=header).status_code == 200


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_unix_user_is_another_account_and_no_administrator(house: House) -> None:
    program = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "s.sendall(f'GET {sys.argv[2]} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n'.encode())\n"
        "out = b''\n"
        "while piece := s.recv(65536): out += piece\n"
        "sys.stdout.write(out.decode())\n"
    )

    def as_nobody(path: str) -> str:
        # The kernel notes who connects, so the child changes its user before it does.
        return subprocess.run(
            [sys.executable, "-S", "-c", program, socket_path, path],
            capture_output=True, text=True, check=True, cwd="/",
        ).stdout  # fmt: skip

    socket_path = house.broker.running.addresses.socket
    assert socket_path is not None
    state = os.path.dirname(socket_path)
    opened = []
    while state != "/":
        opened.append((state, os.stat(state).st_mode))
        os.chmod(state, os.stat(state).st_mode | 0o011)
        state = os.path.dirname(state)
    try:
        me = as_nobody("/v1/accounts/me")
        refused = as_nobody("/v1/admin/accounts")
    finally:
        for path, mode in opened:
            os.chmod(path, mode)
    assert '"account":"nobody"' in me
    assert refused.startswith("HTTP/1.1 403")
