"""Which of Lightning's classes something is, of either package, without importing one.

`lightning.pytorch` and `pytorch_lightning` have classes of their own, so they are told by name; but by
their module's name as well: a user may call a callback `Timer`, too.
"""

from __future__ import annotations

from typing import Any

_PACKAGES = ("lightning", "pytorch_lightning", "lightning_fabric")


def lightning_names(thing: Any) -> frozenset[str]:
    """Names of the classes of Lightning that something is an instance of, with their bases."""
    return frozenset(
        cls.__name__ for cls in type(thing).__mro__ if cls.__module__.partition(".")[0] in _PACKAGES
    )


def is_lightnings(thing: Any, name: str) -> bool:
    """Whether something is an instance of Lightning's class of that name, or of a class made from it."""
    return name in lightning_names(thing)
