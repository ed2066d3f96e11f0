"""What the extension answers: a status, a body and the few headers that pass.

Whatever is no success is a problem document, as the broker's are. `code` is what a program
acts on; next to the broker's own codes (`selfsched.protocol.ProblemCode`) there are:

no_broker           there is none to ask: nothing is set, no lab's and no private one runs
broker_unreachable  there should be one, but it does not answer, or too slowly
not_a_broker        something else answers at its address: a redirect, a proxy's page
other_version       it answers with what this version of selfsched cannot read
settings_invalid    a SELFSCHED_* name or an entry of the config file is wrong
jupyter_refused     Jupyter's server refuses: not logged in, another site, no xsrf token
no_right            Jupyter's server knows who it is, and its authorizer allows them no such thing
not_forwarded       this extension does not forward such a call
not_foreseeable     what is said of a run does not tell how long it takes, or on what
no_such_run         no run of that name lies on this machine
internal_error      a mistake of this extension's own
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

from selfsched.protocol import Problem

JSON = "application/json"
PROBLEM = "application/problem+json"
_TAG = re.compile(r'"[!#-~]{1,128}"')


class OwnCode(StrEnum):
    """`code` of the problems that the extension itself has to tell."""

    NO_BROKER = "no_broker"
    UNREACHABLE = "broker_unreachable"
    NOT_A_BROKER = "not_a_broker"
    OTHER_VERSION = "other_version"
    SETTINGS = "settings_invalid"
    JUPYTER_REFUSED = "jupyter_refused"
    NO_RIGHT = "no_right"
    NOT_FORWARDED = "not_forwarded"
    NOT_FORESEEABLE = "not_foreseeable"
    NO_SUCH_RUN = "no_such_run"
    INTERNAL = "internal_error"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One answer, complete."""

    status: int
    body: bytes = b""
    media: str = JSON
    etag: str | None = None
    retry_after: str | None = None

    @property
    def is_news(self) -> bool:
        """Whether it brings what was asked for."""
        return self.status == HTTPStatus.OK

    @property
    def is_trouble(self) -> bool:
        """Whether the broker should be looked for again: it is away, it is another, or does not know us."""
        return self.status >= HTTPStatus.INTERNAL_SERVER_ERROR or self.status == HTTPStatus.UNAUTHORIZED

    @property
    def is_away(self) -> bool:
        """Whether no broker of ours has answered: what people are told, and no mistake of anybody here."""
        return self.status in (
            HTTPStatus.BAD_GATEWAY,
            HTTPStatus.SERVICE_UNAVAILABLE,
            HTTPStatus.GATEWAY_TIMEOUT,
        )

    def unless_known(self, etag: str | None) -> Answer:
        """This answer; without its body for who has it already."""
        if self.is_news and etag is not None and self.etag == etag:
            return not_modified(etag)
        return self


def not_modified(etag: str | None) -> Answer:
    """There is nothing new."""
    return Answer(status=HTTPStatus.NOT_MODIFIED, etag=etag)


def tag_of(body: bytes) -> str:
    """An ETag for a body that came without one."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def tag_in(header: str | None) -> str | None:
    """The ETag in a header of a browser's or a broker's; None: none that is ours, or can be sent on.

    A proxy that packs answers makes a tag a weak one (`W/"..."`) on the way: it is the same here.
    """
    tag = (header or "").removeprefix("W/")
    return tag if _TAG.fullmatch(tag) else None


def trouble(status: int, code: str, detail: str, *, retry_after: str | None = None) -> Answer:
    """A problem document of the extension's own."""
    document = Problem(status=status, code=code, title=HTTPStatus(status).phrase, detail=detail[:2000])
    return Answer(status=status, body=document.to_json().encode(), media=PROBLEM, retry_after=retry_after)
