"""An authorizer of a Jupyter server: whoever comes may look and do nothing."""

from __future__ import annotations

from typing import Any

from jupyter_server.auth import Authorizer


class OnlyLooking(Authorizer):
    """Lets everybody read."""

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        """Whether it is reading."""
        return action == "read"
