"""`SelfScheduler`, the one line a user adds to a Lightning Trainer: hooks in, flags out."""

from __future__ import annotations

import sys
from typing import Any

from selfsched.elastic.segment import SegmentSpec


def _callback_base() -> type[Any]:
    """Callback of the package the user imported; `lightning` when both or none are."""
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
    return Callback  # type: ignore[no-any-return]


class SelfScheduler(_callback_base()):  # type: ignore[misc]
    """Measures its training, predicts its end and, under a launcher, makes it elastic."""

    def __init__(self) -> None:
        super().__init__()
        self.segment = SegmentSpec.from_environment()
        if self.segment is not None:
            from selfsched.elastic import hooks

            hooks.install(self.segment)
