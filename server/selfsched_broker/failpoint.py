"""Where a broker kills itself, so that a test can see what a restart finds.

`_SELFSCHED_FAILPOINT=before_commit` or `after_commit`, for the first commit that stores the
answer to an idempotency key; `after_commit:Lease` for the first that writes a lease, and so on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from selfsched.errors import InvalidSettings
from selfsched_broker.core.books import Change

VARIABLE = "_SELFSCHED_FAILPOINT"
_PLACES = ("before_commit", "after_commit")


@dataclass(frozen=True, slots=True)
class Failpoint:
    """A place in the pipeline and the kind of record whose commit sets it off."""

    place: str = ""
    kind: str = "Answer"

    @classmethod
    def parse(cls, text: str) -> Failpoint:
        """Read `PLACE[:KIND]`.

        Raises:
            InvalidSettings: there is no such place.
        """
        place, _, kind = text.partition(":")
        if place and place not in _PLACES:
            raise InvalidSettings(f"{VARIABLE} must be one of {', '.join(_PLACES)}")
        return cls(place, kind or "Answer")

    def reach(self, place: str, changes: Sequence[Change]) -> None:
        """Kill this process if it is set for this place and one of these changes."""
        if place == self.place and any(type(change).__name__ == self.kind for change in changes):
            os.kill(os.getpid(), signal.SIGKILL)
