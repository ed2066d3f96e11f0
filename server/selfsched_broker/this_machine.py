"""The machine that the broker runs on, as a node of its own."""

from __future__ import annotations

import re
import socket

from selfsched.launch.locks import MachineLocks
from selfsched_broker.node.agent import Agent
from selfsched_broker.node.gpus import NvmlGpus
from selfsched_broker.node.slots import CpuSlots
from selfsched_broker.settings import BrokerSettings


def node_name() -> str:
    """This machine's name as a `protocol.Name`, by the same rule as on the job's side."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).strip("-._")
    return name[:64] or "localhost"


def own_agent(settings: BrokerSettings) -> Agent:
    """The agent of this machine: its GPUs where the driver shows any, else its CPU slots."""
    locks, name = MachineLocks(settings.lock_dir), node_name()
    if settings.slots is None:
        gpus = NvmlGpus(locks=locks)
        if gpus.read():
            return Agent(name, [gpus])
    return Agent(name, [CpuSlots(name, settings.slots, locks=locks)])
