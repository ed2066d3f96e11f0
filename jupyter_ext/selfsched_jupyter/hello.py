"""The answer to `hello`: what the front end learns first."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from selfsched.protocol import AccountView
from selfsched_jupyter.finding import Kind


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class ShownBroker(_Frozen):
    """The broker in use, without any secret."""

    url: str | None
    """`http://...`, `https://...` or `unix:/...`; None: there is none."""
    kind: Kind
    """`set` by the settings, the `lab`'s on this machine, this user's `private` one, or `none`."""


class ProblemWords(_Frozen):
    """What keeps us from the broker."""

    code: str
    detail: str
    """What happened, and what to do."""


class Hello(_Frozen):
    """Who we are to which broker."""

    version: str
    """Of the extension."""
    broker: ShownBroker
    account: AccountView | None
    """None: see `problem`."""
    problem: ProblemWords | None
