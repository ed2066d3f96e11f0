"""Who calls: tokens over TCP, the Unix account of the peer over a socket, users of a JupyterHub.

A token is `ss_<id>_<secret>`: found by its id, compared by the hash of its secret in constant
time. 32 random bytes need no slow hash. It is shown once, when it is issued.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import pwd
import re
import secrets
from dataclasses import dataclass

from selfsched.protocol import ProblemCode
from selfsched_broker.core.books import Books, Token
from selfsched_broker.core.leases import Refusal

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OUR_PREFIX = "ss_"
_TOKEN = re.compile(r"ss_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who a call comes from."""

    account: str
    admin: bool = False
    node: str | None = None
    """Set: may do nothing but report for this node."""
    by_socket: bool = False

    def may_see(self, account: str) -> bool:
        """Whether what belongs to an account is shown to this caller."""
        return self.node is None and (self.admin or self.account == account)


@dataclass(frozen=True, kw_only=True, slots=True)
class HubUser:
    """A user of a JupyterHub, as the Hub said."""

    account: str
    admin: bool = False
    """May administer the broker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IssuedToken:
    """A new token and the record of it. Its repr does not show the secret."""

    record: Token
    secret: str

    def __repr__(self) -> str:
        return f"IssuedToken({self.record.token_id})"

    @property
    def text(self) -> str:
        """What its owner is given."""
        return f"ss_{self.record.token_id}_{self.secret}"


def issue_token(account: str, *, node: str | None, now: float) -> IssuedToken:
    """Draw a token for an account. `now` is broker time."""
    secret = secrets.token_urlsafe(32)
    record = Token(
        token_id=secrets.token_hex(6), account=account, secret_hash=_hash(secret), node=node, created_at=now
    )
    return IssuedToken(record=record, secret=secret)


def caller_by_token(books: Books, authorization: str) -> Caller:
    """The caller that a header `Authorization: Bearer ss_...` names.

    Raises:
        Refusal: NOT_AUTHENTICATED, with the same words whatever is wrong.
    """
    scheme, _, text = authorization.partition(" ")
    match = _TOKEN.fullmatch(text.strip())
    if scheme.lower() != "bearer" or match is None:
        raise _not_authenticated()
    token = books.tokens.get(match[1])
    expected = token.secret_hash if token else _hash("")
    fits = hmac.compare_digest(expected, _hash(match[2]))
    if token is None or not fits or token.revoked:
        raise _not_authenticated()
    account = books.accounts.get(token.account)
    admin = bool(account and account.admin and not account.disabled and token.node is None)
    return Caller(account=token.account, admin=admin, node=token.node)


def hub_token(authorization: str | None) -> str | None:
    """The token of a header, where it is none of ours and so may be a JupyterHub's."""
    scheme, _, text = (authorization or "").partition(" ")
    token = text.strip()
    return token if scheme.lower() == "bearer" and token and not token.startswith(_OUR_PREFIX) else None


def caller_by_hub(books: Books, user: HubUser) -> Caller:
    """The caller behind a user of a JupyterHub. Who is disabled here administers nothing."""
    account = books.accounts.get(user.account)
    admin = user.admin or bool(account and account.admin)
    return Caller(account=user.account, admin=admin and not (account and account.disabled))


def caller_by_uid(books: Books, uid: int) -> Caller:
    """The caller behind a Unix socket: its account; root and the broker's own user administer."""
    name = account_of_uid(uid)
    account = books.accounts.get(name)
    named = bool(account and account.admin and not account.disabled)
    return Caller(account=name, admin=named or uid in (0, os.geteuid()), by_socket=True)


def account_of_uid(uid: int) -> str:
    """Name of a Unix account as an account of ours; `uid-N` where it has no usable one."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"
    return name if _NAME.fullmatch(name) else f"uid-{uid}"


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _not_authenticated() -> Refusal:
    return Refusal(ProblemCode.NOT_AUTHENTICATED, "a valid token is needed: Authorization: Bearer ss_...")
