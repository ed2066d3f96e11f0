"""The configuration of docs/jupyterhub.md, started: a Hub, its proxy, two users, the broker as a service."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from selfsched.protocol import RegisterJob

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
DOCS = Path(__file__).parents[2] / "docs" / "jupyterhub.md"
DRIVER_TOKEN = "of-the-test-that-drives-the-hub"
ACCESS = "access:services!service=broker"
_UP_SECONDS = 90.0


@dataclass
class House:
    """A Hub that runs."""

    url: str
    broker_url: str
    folder: Path
    driver: httpx.Client
    """The Hub's API, with the rights to start servers and to make tokens."""

    def token(self, user: str, *scopes: str) -> str:
        """A new token of a user."""
        answer = self.driver.post(f"/users/{user}/tokens", json={"scopes": list(scopes), "note": "test"})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    def at_broker(self, token: str) -> httpx.Client:
        """The broker, called with a token."""
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=f"{self.broker_url}/v1", headers=headers, trust_env=False, timeout=20)

    def in_lab_of(self, user: str) -> httpx.Client:
        """The extension in a user's server, through the proxy, as their browser has it."""
        headers = {"Authorization": f"token {self.token(user, f'access:servers!user={user}')}"}
        base = f"{self.url}/user/{user}/selfsched/api/"
        return httpx.Client(base_url=base, headers=headers, trust_env=False, timeout=20)

    @property
    def log(self) -> str:
        return (self.folder / "hub.log").read_text(errors="replace")


@pytest.fixture(scope="module")
def proxy_command(request: pytest.FixtureRequest) -> list[str]:
    """The Hub's proxy, fetched once into pytest's cache."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm, which fetches JupyterHub's proxy, is not installed")
    folder = request.config.cache.mkdir("configurable-http-proxy")
    command = folder / "node_modules" / ".bin" / "configurable-http-proxy"
    if not command.exists():
        fetch = [npm, "install", "--silent", "--no-audit", "--no-fund", "configurable-http-proxy@5"]
        subprocess.run(fetch, cwd=folder, check=True, timeout=120, stdin=subprocess.DEVNULL)
    return [str(command)]


@pytest.fixture(scope="module")
def house(proxy_command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("hub")
    ports = free_ports(4)
    (folder / "jupyterhub_config.py").write_text(configuration(folder, ports, proxy_command))
    with open(folder / "hub.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", "-f", str(folder / "jupyterhub_config.py")],
            cwd=folder, env=environment(folder), stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    driver = httpx.Client(
        base_url=f"http://127.0.0.1:{ports[1]}/hub/api", trust_env=False, timeout=60,
        headers={"Authorization": f"token {DRIVER_TOKEN}"},
    )  # fmt: skip
    found = House(f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[3]}", folder, driver)
    try:
        until(lambda: answers(f"{driver.base_url}") and answers(f"{found.broker_url}/readyz"), found, process)
        start_servers(found, process)
        yield found
    finally:
        driver.close()
        end(process)


def configuration(folder: Path, ports: list[int], proxy_command: list[str]) -> str:
    """The documented lines, and what makes them a Hub of this test's own."""
    documented = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(documented) == 1
    ours = documented[0].replace("8470", str(ports[3])).replace("/var/lib/selfsched", str(folder / "state"))
    assert ours != documented[0]
    return (
        ours
        + f"""
c.JupyterHub.services[0]["environment"].update(
    SELFSCHED_BROKER_LOCK_DIR={str(folder / "locks")!r}, SELFSCHED_BROKER_SLOTS="2"
)
c.JupyterHub.services.append({{"name": "driver", "api_token": {DRIVER_TOKEN!r}}})
c.JupyterHub.load_roles.append({{
    "name": "driver", "services": ["driver"],
    "scopes": ["admin:users", "admin:servers", "tokens", "access:servers", {ACCESS!r}],
}})
c.JupyterHub.bind_url = "http://127.0.0.1:{ports[0]}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{ports[1]}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{ports[2]}"
c.ConfigurableHTTPProxy.command = {proxy_command!r}
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie_secret"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {{"eve"}}
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = "{folder}/home-{{username}}"
c.Spawner.args = ["--allow-root"]
c.Spawner.start_timeout = 90
c.Spawner.http_timeout = 90
"""
    )


def environment(folder: Path) -> dict[str, str]:
    ours = ("SELFSCHED_", "_SELFSCHED_", "XDG_", "JUPYTER", "CONFIGPROXY")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    return kept | {"PATH": binaries, "HOME": str(folder)}


def start_servers(house: House, process: subprocess.Popen[bytes]) -> None:
    """Users, and the servers of two of them."""
    for user in ("ada", "bob", "eve"):
        assert house.driver.post(f"/users/{user}", json={}).status_code in (201, 409)
    for user in ("ada", "bob"):
        answer = house.driver.post(f"/users/{user}/server")
        assert answer.status_code in (201, 202), answer.text
    until(lambda: all(ready(house, user) for user in ("ada", "bob")), house, process)


def ready(house: House, user: str) -> bool:
    servers: dict[str, Any] = house.driver.get(f"/users/{user}").json()["servers"]
    return bool(servers) and bool(servers[""]["ready"])


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def until(condition: Callable[[], bool], house: House, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + _UP_SECONDS
    while not condition():
        assert process.poll() is None, f"the Hub has ended:\n{house.log[-4000:]}"
        assert time.monotonic() < give_up_at, f"it does not come up:\n{house.log[-4000:]}"
        time.sleep(0.1)


def end(process: subprocess.Popen[bytes]) -> None:
    """The Hub ends its proxy, its servers and the broker; whoever is left after that is ended too."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for found in sockets:
            found.bind(("127.0.0.1", 0))
        return [int(found.getsockname()[1]) for found in sockets]
    finally:
        for found in sockets:
            found.close()


def register(client: httpx.Client, name: str) -> str:
    message = RegisterJob(name=name)
    answer = client.post("/jobs", content=message.to_json(), headers={"Idempotency-Key": uuid.uuid4().hex})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["job"])


# --- what holds ------------------------------------------------------------------------------


def test_idle_notebooks_hold_nothing(house: House) -> None:
    with house.in_lab_of("ada") as ada, house.in_lab_of("bob") as bob:
        assert ada.get("broker/jobs").json() == bob.get("broker/jobs").json() == []
        assert [device["state"] for device in ada.get("broker/cluster").json()["devices"]] == ["free", "free"]


def test_in_each_server_its_user_is_known_to_the_broker_by_the_servers_own_token(house: House) -> None:
    for user in ("ada", "bob"):
        with house.in_lab_of(user) as lab:
            told = lab.get("hello").json()
        assert told["problem"] is None
        assert told["broker"] == {"url": house.broker_url, "kind": "set"}
        assert (told["account"]["account"], told["account"]["admin"]) == (user, False)


def test_commands_in_a_users_server_are_that_users(house: House) -> None:
    there = {
        "SELFSCHED_BROKER": house.broker_url,
        "SELFSCHED_JUPYTERHUB": "1",
        "JUPYTERHUB_API_TOKEN": house.token("ada", ACCESS),
    }
    done = subprocess.run(
        [sys.executable, "-m", "selfsched", "status", "--json"],
        env=environment(house.folder) | there, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_each_sees_their_own_and_an_administrator_all(house: House) -> None:
    jobs, seen = {}, {}
    for user in ("ada", "bob"):
        with house.in_lab_of(user) as lab:
            seen[user] = lab.get("broker/jobs").headers["etag"]
        with house.at_broker(house.token(user, ACCESS)) as client:
            jobs[user] = register(client, f"of-{user}")
    for user, other in (("ada", "bob"), ("bob", "ada")):
        with house.in_lab_of(user) as lab:
            # What was seen before the jobs came is no longer so: this answer comes at once.
            news = lab.get("broker/jobs?wait_seconds=20", headers={"If-None-Match": seen[user]})
            assert [job["account"] for job in news.json()] == [user]
            assert lab.get(f"broker/jobs/{jobs[other]}").json()["code"] == "not_found"
            order = {"action": "stop"}
            assert lab.post(f"broker/jobs/{jobs[other]}/control", json=order).status_code == 404
            assert lab.post(f"broker/jobs/{jobs[user]}/control", json=order).status_code == 200
    with house.at_broker(house.token("eve", ACCESS)) as eve:
        assert sorted(job["account"] for job in eve.get("/jobs").json()) == ["ada", "bob"]
        assert eve.get("/accounts/me").json()["admin"]
        assert {account["account"] for account in eve.get("/admin/accounts").json()} >= {"ada", "bob", "eve"}


def test_a_token_without_the_scope_and_one_of_nobody_open_nothing(house: House) -> None:
    with house.at_broker(house.token("ada", "access:servers!user=ada")) as client:
        answer = client.get("/jobs")
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert "access:services!service=broker" in answer.json()["detail"]
    for token in ("nobodys", DRIVER_TOKEN):
        with house.at_broker(token) as client:
            assert client.get("/jobs").json()["code"] == "not_authenticated"


def test_no_server_shows_the_token_by_which_it_is_known(house: House) -> None:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        command = _read(pid, "cmdline")
        if b"jupyterhub-singleuser" in command and str(house.folder).encode() in _read(pid, "environ"):
            held = dict(part.partition(b"=")[::2] for part in _read(pid, "environ").split(b"\0"))
            token = held[b"JUPYTERHUB_API_TOKEN"].decode()
            break
    else:
        raise AssertionError("no user's server was found")
    assert token not in house.log
    for user in ("ada", "bob"):
        with house.in_lab_of(user) as lab:
            for path in ("hello", "broker/jobs", "broker/accounts/me", "runs", "broker/nothing"):
                answer = lab.get(path)
                assert token not in answer.text + str(answer.headers)


def _read(pid: str, name: str) -> bytes:
    try:
        return Path("/proc", pid, name).read_bytes()
    except OSError:
        return b""
