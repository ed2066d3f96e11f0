"""The JupyterLab extension of selfsched: its front end, and the server extension behind it.

Only the hooks by which Jupyter finds both stand here.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Where the built front end lies."""
    return [{"src": "labextension", "dest": "selfsched-jupyter"}]


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """The module that Jupyter's server loads."""
    return [{"module": "selfsched_jupyter"}]


def _load_jupyter_server_extension(server: Any) -> None:  # jupyter_server.serverapp.ServerApp
    """Add the handlers to a server."""
    from selfsched_jupyter.extension import load

    load(server)


async def _unload_jupyter_server_extension(server: Any) -> None:
    """Close the connections: the server ends."""
    from selfsched_jupyter.extension import unload

    await unload(server)
