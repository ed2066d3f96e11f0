"""The requests of the front end: authenticated, bound to the base URL, without logic.

Jupyter's own rules come first: the login, the xsrf token of the page, the origin, and the
server's authorizer, which is asked for the resource `selfsched`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from pydantic import TypeAdapter
from tornado import web

from selfsched.errors import InvalidMessage, InvalidSettings
from selfsched.protocol import AccountView, Problem, parse
from selfsched_jupyter import __version__
from selfsched_jupyter.allowed import NotForwarded, call_of
from selfsched_jupyter.answers import Answer, OwnCode, tag_in, trouble
from selfsched_jupyter.hello import Hello, ProblemWords, ShownBroker
from selfsched_jupyter.room import Room
from selfsched_jupyter.runs import NoSuchRun, RunView, read_output
from selfsched_jupyter.what_if import answer_to

SETTING = "selfsched_room"
"""Under this name the room stands in the web application's settings."""
_POSITION = re.compile(r"[0-9]{1,16}")
_RUNS = TypeAdapter(tuple[RunView, ...])
_NO_RIGHT_WORDS = (
    "this server's authorizer does not allow it to you (resource `selfsched`): who runs it can change that"
)
_REFUSED_WORDS = "Jupyter's server refuses this: log in again, or reload the page"


class SelfschedHandler(APIHandler):
    """What all of them do the same way."""

    auth_resource = "selfsched"

    @property
    def room(self) -> Room:
        """What they share."""
        return cast(Room, self.settings[SETTING])

    def initialize(self) -> None:
        """A panel that only looks keeps no idle server from being culled."""
        self._track_activity = self.request.method != "GET"  # Jupyter's own switch

    async def prepare(self) -> None:  # type: ignore[override]  # as APIHandler's own
        """Jupyter's own checks; what is forbidden after them is so by the authorizer alone."""
        await super().prepare()
        self._is_let_in = self.current_user is not None

    _is_let_in = False

    def compute_etag(self) -> None:
        """None: the ETags are the broker's."""

    def answer(self, answer: Answer) -> None:
        """Send an answer."""
        self._is_said_elsewhere = answer.is_away
        self.set_status(answer.status)
        self.set_header("Cache-Control", "no-store")
        if answer.etag is not None:
            self.set_header("ETag", answer.etag)
        if answer.retry_after is not None:
            self.set_header("Retry-After", answer.retry_after)
        if answer.body:
            self.finish(answer.body, set_content_type=answer.media)
        else:
            self.finish()

    _is_said_elsewhere = False

    def _log(self) -> None:
        """Jupyter logs each 5xx as an error; a broker that is away is said once, by the room."""
        if not self._is_said_elsewhere:
            super()._log()

    def write_error(self, status_code: int, **details: Any) -> None:
        """A problem document in place of Jupyter's own page; it never shows an exception's text."""
        if status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            words = "a mistake of the selfsched extension; the log of Jupyter's server has the details"
            self.answer(trouble(status_code, OwnCode.INTERNAL, words))
        elif status_code == HTTPStatus.FORBIDDEN and self._is_let_in:
            self.answer(trouble(status_code, OwnCode.NO_RIGHT, _NO_RIGHT_WORDS))
        else:
            self.answer(trouble(status_code, OwnCode.JUPYTER_REFUSED, _REFUSED_WORDS))

    async def while_connected(self, work: Awaitable[Answer]) -> Answer | None:
        """Wait for an answer as long as somebody waits for it; None: nobody does any more."""
        self._work = asyncio.ensure_future(work)
        try:
            return await self._work
        except asyncio.CancelledError:
            if not self._is_gone:
                raise
            return None

    _work: asyncio.Future[Answer] | None = None
    _is_gone = False

    def on_connection_close(self) -> None:
        """The browser has gone, or a proxy cut the connection."""
        super().on_connection_close()
        self._is_gone = True
        if self._work is not None:
            self._work.cancel()


class HelloHandler(SelfschedHandler):
    """`GET hello`: who we are to which broker, or what to do."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer it."""
        found = await self.room.found()
        said = await self.room.get(call_of("GET", "accounts/me", ""), None)
        account, problem = None, None
        try:
            if said.is_news:
                account = parse(AccountView, said.body)
            else:
                told = parse(Problem, said.body)
                problem = ProblemWords(code=told.code, detail=told.detail or told.title)
        except InvalidMessage as error:
            problem = ProblemWords(code=OwnCode.OTHER_VERSION, detail=str(error))
        url = str(found.address) if found.address is not None else None
        broker = ShownBroker(url=url, kind=found.kind)
        hello = Hello(version=__version__, broker=broker, account=account, problem=problem)
        self.answer(Answer(status=HTTPStatus.OK, body=hello.model_dump_json().encode()))


class BrokerHandler(SelfschedHandler):
    """`broker/PATH`: a call of the broker, if it is among those that are allowed."""

    @web.authenticated
    @authorized
    async def get(self, _: str) -> None:
        """Forward a view."""
        await self._forward()

    @web.authenticated
    @authorized
    async def post(self, _: str) -> None:
        """Forward an order or a question."""
        await self._forward()

    @web.authenticated
    @authorized
    async def put(self, _: str) -> None:
        """Say that there is none of this."""
        await self._forward()

    delete = patch = put

    async def _forward(self) -> None:
        method = self.request.method or ""
        before = f"{self.base_url}selfsched/api/broker/"
        try:
            call = call_of(
                method,
                self.request.path[len(before) :],  # as it came, nothing in it decoded
                self.request.query,
                body=self.request.body,
                key=self.request.headers.get("Idempotency-Key"),
            )
        except NotForwarded as refused:
            self.answer(trouble(refused.status, refused.code, refused.detail))
            return
        if method == "GET":
            work = self.room.get(call, tag_in(self.request.headers.get("If-None-Match")))
            answer = await self.while_connected(work)
        else:
            answer = await self.room.order(call)
        if answer is not None:
            self.answer(answer)


class WhatIfHandler(SelfschedHandler):
    """`POST what-if`: when a run would be done if it were started now."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Answer it."""
        answer = await self.while_connected(answer_to(self.room, self.request.body))
        if answer is not None:
            self.answer(answer)


class RunsHandler(SelfschedHandler):
    """`GET runs`: this user's runs on this machine, newest first."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer it."""
        try:
            runs = await self.room.runs()
        except InvalidSettings as error:
            self.answer(trouble(HTTPStatus.SERVICE_UNAVAILABLE, OwnCode.SETTINGS, str(error)))
            return
        self.answer(Answer(status=HTTPStatus.OK, body=_RUNS.dump_json(runs)))


class OutputHandler(SelfschedHandler):
    """`GET runs/NAME/output?from=N`: what a run has printed, from a position on."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Answer it."""
        position = self.get_query_argument("from", "0")
        if not _POSITION.fullmatch(position):
            words = "from is `next` of the page before, or 0"
            self.answer(trouble(HTTPStatus.BAD_REQUEST, OwnCode.NOT_FORWARDED, words))
            return
        try:
            parent = await self.room.runs_directory()
            page = await asyncio.to_thread(read_output, parent, name, int(position))
        except InvalidSettings as error:
            self.answer(trouble(HTTPStatus.SERVICE_UNAVAILABLE, OwnCode.SETTINGS, str(error)))
        except NoSuchRun:
            words = "there is no such run on this machine: it may have been tidied away"
            self.answer(trouble(HTTPStatus.NOT_FOUND, OwnCode.NO_SUCH_RUN, words))
        else:
            self.answer(Answer(status=HTTPStatus.OK, body=page.model_dump_json().encode()))


class NothingHandler(SelfschedHandler):
    """Any other address below `selfsched/api/`."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Say so."""
        self.answer(trouble(HTTPStatus.NOT_FOUND, OwnCode.NOT_FORWARDED, "the extension has no such address"))

    post = put = delete = patch = get
