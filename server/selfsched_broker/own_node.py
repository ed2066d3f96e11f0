"""The broker's own machine as a node: its agent in a thread of the broker.

It reports as often as the broker asks, and at once, with short pauses, when a device was left:
a freed device is proven empty within moments, not at the next regular report.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from selfsched.protocol import NodeInstructions, NodeReport
from selfsched_broker.core.leases import Refusal
from selfsched_broker.service import LEFT

log = logging.getLogger(__name__)
_MOST_SECONDS = 2.0
_HURRIED_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Pauses between reports after a device was left: its last process may still be ending."""


class Agent(Protocol):
    """Speaks for the devices of one machine. Used by one thread."""

    @property
    def name(self) -> str:
        """Of the node."""
        ...

    def report(self) -> NodeReport:
        """What the node sees now."""
        ...

    def follow(self, instructions: NodeInstructions) -> None:
        """Take the broker's answer to the last report."""
        ...


class OwnNode:
    """The reports of an in-process agent.

    Args:
        agent: whose.
        send: hands a report to the broker.
    """

    def __init__(self, agent: Agent, send: Callable[[NodeReport], NodeInstructions]) -> None:
        self._agent = agent
        self._send = send
        self._left = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="own-node", daemon=True)

    def start(self) -> None:
        """Report for the first time, then keep reporting."""
        self._report()
        self._thread.start()

    def stop(self) -> None:
        """Report no more."""
        self._stopping = True
        self._left.set()
        self._thread.join()

    def tell(self, topics: frozenset[str]) -> None:
        """A listener of the service: hurry when a device was left."""
        if LEFT in topics:
            self._left.set()

    def _run(self) -> None:
        pause, hurried = _MOST_SECONDS, 0
        while True:
            if self._left.wait(pause):
                self._left.clear()
                hurried = 0
                pause = 0.0
            if self._stopping:
                return
            pause = self._report()
            if hurried < len(_HURRIED_SECONDS):
                pause = min(pause, _HURRIED_SECONDS[hurried])
                hurried += 1

    def _report(self) -> float:
        """Report once; returns the seconds until the next."""
        try:
            instructions = self._send(self._agent.report())
            self._agent.follow(instructions)
        except Refusal as refusal:
            log.warning("this machine's report was refused: %s", refusal.message)
            return _MOST_SECONDS
        except Exception:
            # The thread's outermost loop: a machine that cannot be read for once is read again.
            log.exception("this machine could not be reported")
            return _MOST_SECONDS
        return min(instructions.next_report_seconds, _MOST_SECONDS)
