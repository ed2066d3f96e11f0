"""A JupyterHub's API in memory: users, tokens, and whatever a test has it do instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from selfsched_broker.hub_settings import HubSettings

SERVICE_TOKEN = "of-the-service"
ACCESS = "access:services!service=broker"


@dataclass
class HubStandIn:
    """Answers `GET /user` and `GET /users/NAME`."""

    users: dict[str, dict[str, object]] = field(default_factory=dict)
    """By token: the model of its owner."""
    admins: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    instead: Callable[[httpx.Request], httpx.Response] | None = None
    now: float = 1000.0

    def settings(self, **changes: object) -> HubSettings:
        values = {"api_url": "http://hub/hub/api", "service": "broker", "token": SERVICE_TOKEN, **changes}
        return HubSettings(**values)  # type: ignore[arg-type]

    def clock(self) -> float:
        return self.now

    def add(self, token: str, name: str, *, scopes: tuple[str, ...] = (ACCESS,), **more: object) -> None:
        self.users[token] = {"kind": "user", "name": name, "scopes": list(scopes), "groups": [], **more}

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if self.instead is not None:
            return self.instead(request)
        token = request.headers["authorization"].removeprefix("token ")
        if request.url.path == "/hub/api/user":
            model = self.users.get(token)
            return _json(model) if model is not None else _json({"status": 403}, 403)
        if token != SERVICE_TOKEN:
            return _json({"status": 403}, 403)
        name = request.url.path.removeprefix("/hub/api/users/")
        return _json({"kind": "user", "name": name, "admin": name in self.admins})


def _json(body: object, status: int = 200) -> httpx.Response:
    return httpx.Response(status, content=json.dumps(body), headers={"Content-Type": "application/json"})
