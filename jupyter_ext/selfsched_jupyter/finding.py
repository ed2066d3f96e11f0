"""Which broker this user's notebooks show: the one that is set, the lab's, or a private one.

A notebook that is only open starts none and registers nothing: until a job runs there may be
no broker at all. The settings are read as they are when it is looked for, so that a renewed
token file counts without a restart of Jupyter's server.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from selfsched import settings
from selfsched.errors import InvalidSettings
from selfsched.private_broker import PrivateBroker, answers
from selfsched.settings import BrokerAddress

Kind = Literal["set", "lab", "private", "none"]
NO_BROKER_WORDS = (
    "No broker is running. Training with selfsched.Trainer or `selfsched run` starts one of your own; "
    "to join your lab's, set SELFSCHED_BROKER to its address before JupyterLab starts, or write "
    'broker = "..." into ~/.config/selfsched/config.toml.'
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A broker and how to speak to it, or why there is none. Its repr does not show the token."""

    kind: Kind
    address: BrokerAddress | None = None
    token: str | None = field(default=None, repr=False)
    verify: ssl.SSLContext | bool = field(default=True, compare=False)
    certificates: str = ""
    """Which file they are from, and of when; empty: the system's."""
    wrong_settings: str = ""
    """What is wrong with the settings; empty: nothing."""


def find() -> Found:
    """Look for the broker. It may take seconds where one hangs: not for an event loop."""
    try:
        known = settings.load(unknown="ignore")
        verify, certificates = _trust(known.ca_file)
    except InvalidSettings as error:
        return Found(kind="none", wrong_settings=str(error))
    if known.broker is not None:
        token = known.token if known.broker.uses_tokens else None
        return Found(kind="set", address=known.broker, token=token, verify=verify, certificates=certificates)
    lab = BrokerAddress(url="http://broker", socket=known.lab_socket)
    candidates: tuple[tuple[Kind, BrokerAddress], ...] = (("lab", lab), ("private", PrivateBroker().address))
    for kind, address in candidates:
        if _is_there(address.socket) and answers(address):
            return Found(kind=kind, address=address)
    return Found(kind="none")


def _is_there(socket: Path | None) -> bool:
    try:
        return socket is not None and socket.exists()
    except PermissionError:  # of a lab that this user is not a member of
        return False


def _trust(ca_file: Path | None) -> tuple[ssl.SSLContext | bool, str]:
    if ca_file is None:
        return True, ""
    try:
        changed_ns = ca_file.stat().st_mtime_ns
        return ssl.create_default_context(cafile=str(ca_file)), f"{ca_file} of {changed_ns}"
    except (OSError, ssl.SSLError) as error:
        raise InvalidSettings(f"the CA file {ca_file} cannot be used: {error}") from error
