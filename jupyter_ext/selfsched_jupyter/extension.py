"""Puts the handlers into a Jupyter server and takes them out again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jupyter_server.serverapp import ServerApp
from jupyter_server.utils import url_path_join
from tornado.web import Application

from selfsched_jupyter import handlers
from selfsched_jupyter.room import Room


def load(server: ServerApp) -> None:
    """Add the handlers below the server's base URL. Nothing is looked for or opened yet."""
    application: Application = server.web_app
    root = Path(server.root_dir).expanduser().absolute()
    application.settings[handlers.SETTING] = Room(say=server.log.warning, root=root)
    base = re.escape(application.settings["base_url"])
    rules: list[Any] = [  # tornado's own union of rules
        (url_path_join(base, "selfsched", "api", tail), handler)
        for tail, handler in (
            ("hello", handlers.HelloHandler),
            ("broker/(.*)", handlers.BrokerHandler),
            ("what-if", handlers.WhatIfHandler),
            ("runs", handlers.RunsHandler),
            ("runs/([^/]+)/output", handlers.OutputHandler),
            (".*", handlers.NothingHandler),
        )
    ]
    application.add_handlers(".*$", rules)


async def unload(server: ServerApp) -> None:
    """Close the connections."""
    room: Room | None = server.web_app.settings.pop(handlers.SETTING, None)
    if room is not None:
        await room.close()
