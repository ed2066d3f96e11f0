"""The route of a node."""

from __future__ import annotations

from fastapi import APIRouter, Response

from selfsched.protocol import NodeInstructions, NodeReport
from selfsched_broker.api.call import reply
from selfsched_broker.api.contract import describes
from selfsched_broker.api.jobs import Heartbeats

router = APIRouter(tags=["nodes"])


@router.post("/nodes/{name}/report", **describes(takes=NodeReport, gives=NodeInstructions))
async def report(name: str, call: Heartbeats) -> Response:
    """A node's whole report."""
    message = await call.read(NodeReport)
    return reply(await call.do(call.desk.node_report, call.caller, name, message))
