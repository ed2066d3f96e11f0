"""Who calls, under JupyterHub: the user whose token of the Hub it is.

The broker is a service of the Hub. A caller sends its own token, such as the one that each
single-user server has in `JUPYTERHUB_API_TOKEN`; the Hub is asked, with that very token, whose
it is and what it may do (`GET /user`), and it must hold `access:services!service=NAME`. Thus a
token that was made for something else opens nothing here. The answer counts for a minute.
Administrators of the Hub, and members of a group that can be named, administer the broker;
the former can only be told by asking with the service's own token, which needs the scope
`read:users`.

A Hub that is away for a while takes nothing from a training: who was known within the last
hour stays so, and the Hub is asked again every ten seconds. Nobody new is let in meanwhile.

An account has the name of the user where that is a name here, and otherwise a readable form
of it with a hash, which is no other user's.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from selfsched.protocol import ProblemCode
from selfsched_broker.core.leases import Refusal
from selfsched_broker.hub_settings import HubSettings
from selfsched_broker.identity import HubUser

KEPT_SECONDS = 60.0
REFUSED_SECONDS = 10.0
AWAY_SECONDS = 10.0
"""After it did not answer, the Hub is left alone for so long."""
LONGEST_AWAY_SECONDS = 3600.0
REPLY_SECONDS = 3.0
_MOST_KEPT = 10_000
_TOKEN = re.compile(r"[!-~]{1,4096}")
_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MADE_UP = re.compile(r".*-[0-9a-f]{16}")


def account_of(user: str) -> str:
    """The account of a user of the Hub."""
    if _ACCOUNT.fullmatch(user) and not _MADE_UP.fullmatch(user):
        return user
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", user).lstrip("._-")[:40] or "user"
    return f"{readable}-{hashlib.sha256(user.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class _Known:
    """What the Hub said of a token, and when."""

    said: HubUser | Refusal
    at: float


class Hub:
    """The Hub, asked whose a token is. `known` may be called from anywhere, `ask` by one thread at a time.

    Args:
        settings: which Hub.
        transport: stands in for the network in tests.
        monotonic: a clock of seconds.
    """

    def __init__(
        self,
        settings: HubSettings,
        *,
        transport: httpx.BaseTransport | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._known: dict[str, _Known] = {}
        self._away_until = 0.0
        self._http = httpx.Client(
            transport=transport, trust_env=False, follow_redirects=False, timeout=REPLY_SECONDS
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def known(self, token: str) -> HubUser | None:
        """Whose token it is, if the Hub need not be asked.

        Raises:
            Refusal: it was refused a moment ago, or the Hub is away and it is nobody's we know.
        """
        if not _TOKEN.fullmatch(token):
            raise _not_accepted()
        kept, now = self._known.get(_hash(token)), self._monotonic()
        if kept is None:
            age_seconds, said = float("inf"), None
        else:
            age_seconds, said = now - kept.at, kept.said
        if isinstance(said, Refusal) and age_seconds < REFUSED_SECONDS:
            raise said
        is_away = now < self._away_until
        if isinstance(said, HubUser) and age_seconds < (LONGEST_AWAY_SECONDS if is_away else KEPT_SECONDS):
            return said
        if is_away:
            raise _away()
        return None

    def has_known(self, token: str) -> bool:
        """Whether the last that the Hub said of a token was whose it is, however long ago."""
        kept = self._known.get(_hash(token))
        return kept is not None and isinstance(kept.said, HubUser)

    def ask(self, token: str) -> HubUser:
        """Whose token it is; the Hub is asked if need be, which takes some milliseconds.

        Raises:
            Refusal: NOT_AUTHENTICATED: nobody's; FORBIDDEN: it is not for this; UNAVAILABLE: the Hub is away.
        """
        known = self.known(token)  # somebody else may have asked in between
        if known is not None:
            return known
        try:
            said: HubUser | Refusal = self._asked(token)
        except Refusal as refusal:
            said = refusal
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            self._away_until = self._monotonic() + AWAY_SECONDS
            known = self.known(token)
            if known is None:
                raise _away() from error
            return known
        self._keep(_hash(token), _Known(said, self._monotonic()))
        if isinstance(said, Refusal):
            raise said
        return said

    def _keep(self, key: str, known: _Known) -> None:
        if len(self._known) >= _MOST_KEPT:
            newest = sorted(self._known.items(), key=lambda item: item[1].at)[_MOST_KEPT // 2 :]
            self._known = dict(newest)
        self._known[key] = known

    # --- what the Hub says -----------------------------------------------------------

    def _asked(self, token: str) -> HubUser:
        """
        Raises:
            Refusal: the token is not good here.
            httpx.HTTPError, ValueError: what answers is no Hub that works.
        """
        model = self._get("/user", token)
        if model is None:
            raise _not_accepted()
        name, scopes = model.get("name"), model.get("scopes")
        if model.get("kind") != "user" or not isinstance(name, str) or not isinstance(scopes, list):
            raise _not_accepted()
        wanted = f"access:services!service={self._settings.service}"
        if wanted not in scopes and "access:services" not in scopes:
            words = f"this token of JupyterHub is not made for the broker: it lacks the scope {wanted}"
            raise Refusal(ProblemCode.FORBIDDEN, words)
        return HubUser(account=account_of(name), admin=self._is_admin(name, model))

    def _is_admin(self, name: str, model: dict[str, Any]) -> bool:
        group, groups = self._settings.admin_group, model.get("groups")
        if group and isinstance(groups, list) and group in groups:
            return True
        if self._settings.token is None:
            return False
        seen = self._get(f"/users/{quote(name, safe='')}", self._settings.token)
        return seen is not None and seen.get("admin") is True

    def _get(self, path: str, token: str) -> dict[str, Any] | None:
        """The object at a path; None: this token may not see it."""
        headers = {"Authorization": f"token {token}", "Accept": "application/json"}
        answer = self._http.get(f"{self._settings.api_url}{path}", headers=headers)
        if answer.status_code in (401, 403, 404):
            return None
        if answer.status_code != 200:
            raise ValueError(f"the Hub answers with status {answer.status_code}")
        found = answer.json()
        if not isinstance(found, dict):
            raise ValueError("the Hub answers with what is no object")
        return found


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _not_accepted() -> Refusal:
    words = "JupyterHub does not know this token: start your server anew, or ask for a new token"
    return Refusal(ProblemCode.NOT_AUTHENTICATED, words)


def _away() -> Refusal:
    return Refusal(ProblemCode.UNAVAILABLE, "JupyterHub does not answer, so nobody can be told who they are")
