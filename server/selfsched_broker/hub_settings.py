"""What a JupyterHub tells the broker, which is one of its services, in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from selfsched.errors import InvalidSettings


@dataclass(frozen=True, kw_only=True)
class HubSettings:
    """The Hub that started the broker, as it says in the environment of its services."""

    api_url: str
    service: str
    """The broker's name among the Hub's services."""
    token: str | None = field(default=None, repr=False)
    """The service's own."""
    admin_group: str = ""


def hub_settings(environment: Mapping[str, str], *, admin_group: str = "") -> HubSettings | None:
    """Read what the Hub tells its services; None: no Hub has started this process.

    Raises:
        InvalidSettings: what it tells is no address of an API.
    """
    url, service = environment.get("JUPYTERHUB_API_URL", ""), environment.get("JUPYTERHUB_SERVICE_NAME", "")
    if not url or not service:
        return None
    if urlsplit(url).scheme not in ("http", "https"):
        raise InvalidSettings(f"JUPYTERHUB_API_URL = {url[:80]!r} is no address of a Hub")
    token = environment.get("JUPYTERHUB_API_TOKEN") or None
    return HubSettings(api_url=url.rstrip("/"), service=service, token=token, admin_group=admin_group)
