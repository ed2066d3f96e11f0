"""The HTTP application around a desk."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI

from selfsched_broker.api import admin, health, jobs, nodes, people, problems
from selfsched_broker.api.call import Backstage
from selfsched_broker.api.contract import publish
from selfsched_broker.api.gate import Gate

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})


def build_app(backstage: Backstage, *, hosts: frozenset[str] = LOOPBACK_HOSTS, version: str = "") -> FastAPI:
    """The application.

    Args:
        backstage: what its requests share.
        hosts: names by which it may be called over TCP; empty: any.
        version: shown in its OpenAPI document.
    """
    app = FastAPI(
        title="selfsched broker",
        version=version or "0",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.backstage = backstage
    v1 = APIRouter(prefix="/v1")
    for room in (jobs, people, nodes, admin):
        v1.include_router(room.router)
    app.include_router(v1)
    app.include_router(health.router)
    problems.install(app)
    publish(app)
    app.add_middleware(Gate, hosts=hosts)
    return app
