"""The rules that divide devices, by name."""

from __future__ import annotations

from selfsched.errors import Refused
from selfsched_broker.core.market import Policy
from selfsched_broker.core.policies.fifo import Fifo
from selfsched_broker.core.policies.goodput import Goodput
from selfsched_broker.core.policies.maxmin import Maxmin
from selfsched_broker.core.policies.queues import Las, Srtf
from selfsched_broker.core.policies.selfsched import Selfsched
from selfsched_broker.core.policies.themis import Themis

_KINDS: tuple[type[Policy], ...] = (Selfsched, Themis, Fifo, Srtf, Las, Maxmin, Goodput)
POLICIES: dict[str, type[Policy]] = {str(kind.name): kind for kind in _KINDS}
DEFAULT_POLICY = "selfsched"


def policy_named(name: str) -> Policy:
    """The policy of that name.

    Raises:
        Refused: there is none; the message lists those that exist.
    """
    kind = POLICIES.get(name)
    if kind is None:
        raise Refused(f"there is no policy {name!r}; there are: {', '.join(sorted(POLICIES))}")
    return kind()
