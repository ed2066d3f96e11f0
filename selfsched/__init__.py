"""Self-aware PyTorch Lightning jobs that share GPU servers fairly.

Importing this package stays light: the broker and the Jupyter server import it
without torch. The public names load what they need when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from selfsched.callback import SelfScheduler as SelfScheduler
    from selfsched.cluster_view import show as show
    from selfsched.elastic.reattach import attach as attach
    from selfsched.elastic.trainer import Trainer as Trainer
    from selfsched.errors import Detached as Detached
    from selfsched.errors import Yielded as Yielded

_LAZY = {
    "Detached": "selfsched.errors",
    "SelfScheduler": "selfsched.callback",
    "Trainer": "selfsched.elastic.trainer",
    "Yielded": "selfsched.errors",
    "attach": "selfsched.elastic.reattach",
    "show": "selfsched.cluster_view",
}
__all__ = [
    "Detached", "SelfScheduler", "Trainer", "Yielded", "__version__", "attach", "load_ipython_extension",
    "show",
]  # fmt: skip


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext selfsched` in a notebook."""
    from selfsched.magics import load

    load(ipython)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
