"""The machine that the broker runs on, as a node of its own."""

from __future__ import annotations

import re
import socket

from selfsched_broker.node.agent import Agent, local_agent
from selfsched_broker.settings import BrokerSettings


def node_name() -> str:
    """This machine's name as a `protocol.Name`, by the same rule as on the job's side."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).strip("-._")
    return name[:64] or "localhost"


def own_agent(settings: BrokerSettings) -> Agent:
    """The agent of this machine's devices."""
    return local_agent(node_name(), slots=settings.slots)
