"""A broker under a Hub on a real port: tokens of both kinds, floods, a disabled account."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from broker.identity.hub_stand_in import ACCESS, SERVICE_TOKEN
from broker.live_broker import LiveBroker, live_broker, register

from selfsched.errors import InvalidSettings
from selfsched_broker import settings
from selfsched_broker.serving import serve


@dataclass
class HubOnAPort:
    """`GET /user` and `GET /users/NAME` of a Hub."""

    owners: dict[str, str] = field(default_factory=lambda: {"t-ada": "ada", "t-bob": "bob", "t-eve": "eve"})
    asked: list[str] = field(default_factory=list)
    port: int = 0


@contextmanager
def hub_on_a_port() -> Iterator[HubOnAPort]:
    hub = HubOnAPort()

    class Handler(BaseHTTPRequestHandler):
        wbufsize = -1  # head and body in one go: else each answer waits for the other side

        def do_GET(self) -> None:
            hub.asked.append(self.path)
            token = self.headers["Authorization"].removeprefix("token ")
            body: dict[str, Any] | None = None
            if self.path == "/hub/api/user" and token in hub.owners:
                body = {"kind": "user", "name": hub.owners[token], "scopes": [ACCESS], "groups": []}
            elif self.path.startswith("/hub/api/users/") and token == SERVICE_TOKEN:
                body = {"kind": "user", "admin": self.path.endswith("/eve")}
            data = json.dumps(body or {}).encode()
            self.send_response(200 if body else 403)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def hub() -> Iterator[HubOnAPort]:
    with hub_on_a_port() as found:
        yield found


@pytest.fixture(scope="module")
def broker(hub: HubOnAPort, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    told = {
        "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub.port}/hub/api",
        "JUPYTERHUB_SERVICE_NAME": "broker",
        "JUPYTERHUB_API_TOKEN": SERVICE_TOKEN,
    }
    state = tmp_path_factory.mktemp("b") / "state"
    with live_broker(state, environment=told, jupyterhub=True) as found:
        yield found


def client(broker: LiveBroker, token: str) -> httpx.Client:
    found = broker.anonymous()
    found.headers["Authorization"] = f"Bearer {token}"
    return found


def test_users_of_the_hub_are_accounts_and_see_their_own(broker: LiveBroker) -> None:
    ada, bob, eve = (client(broker, f"t-{name}") for name in ("ada", "bob", "eve"))
    job = register(ada)
    assert [seen["account"] for seen in ada.get("/v1/jobs").json()] == ["ada"]
    assert bob.get("/v1/jobs").json() == []
    assert bob.get(f"/v1/jobs/{job}").status_code == 404
    assert [seen["job"] for seen in eve.get("/v1/jobs").json()] == [job]
    assert eve.get("/v1/admin/accounts").status_code == 200
    assert ada.get("/v1/admin/accounts").status_code == 403


def test_tokens_of_the_brokers_own_count_as_before_and_never_reach_the_hub(
    broker: LiveBroker, hub: HubOnAPort
) -> None:
    robot = broker.as_account("robot")
    before = len(hub.asked)
    assert robot.get("/v1/accounts/me").json()["account"] == "robot"
    assert client(broker, "ss_000000000000_" + "x" * 43).get("/v1/jobs").status_code == 401
    assert broker.anonymous().get("/v1/jobs").status_code == 401
    assert len(hub.asked) == before


def test_a_flood_of_unknown_tokens_is_not_passed_on_and_holds_up_nobody_who_is_known(
    broker: LiveBroker, hub: HubOnAPort
) -> None:
    ada = client(broker, "t-ada")
    assert ada.get("/v1/accounts/me").status_code == 200
    before = len(hub.asked)
    flood = broker.anonymous()
    seen = {
        flood.get("/v1/jobs", headers={"Authorization": f"Bearer guess-{n}"}).status_code for n in range(400)
    }
    assert seen == {401, 429}
    assert len(hub.asked) - before < 400
    assert ada.get("/v1/accounts/me").status_code == 200


def test_an_administrator_of_the_hub_who_is_disabled_here_administers_nothing(broker: LiveBroker) -> None:
    eve = client(broker, "t-eve")
    assert eve.get("/v1/admin/accounts").status_code == 200
    broker.admin.put("/v1/admin/accounts/eve", json={"disabled": True})
    assert eve.get("/v1/admin/accounts").status_code == 403
    broker.admin.put("/v1/admin/accounts/eve", json={"disabled": False})


def test_a_broker_that_no_hub_has_started_says_what_is_missing(tmp_path: Path) -> None:
    found = settings.load(environment={}, state_dir=tmp_path / "s", jupyterhub=True)
    assert found.hub is None  # an administrator's command reads the same settings
    with pytest.raises(InvalidSettings, match="JUPYTERHUB_API_URL"):
        serve(found, agent=None)
