"""How the commands reach a broker: a running one through its administrators' socket, else the
books themselves, through the same application without a network.

Either way the caller is the Unix account that runs the command, and the same rules hold.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter

from selfsched.errors import BrokerError, BrokerUnreachable, InvalidMessage, Refused
from selfsched.protocol import Message, Problem, ProblemCode, parse
from selfsched_broker.listening import READY_FILE, Addresses, read_ready_file
from selfsched_broker.settings import BrokerSettings

M = TypeVar("M", bound=Message)
_TIMEOUT_SECONDS = 10.0
_WRONG_USE = (ProblemCode.INVALID, ProblemCode.IMPOSSIBLE, ProblemCode.NOT_FOUND)


class Door(Protocol):
    """Carries a request to a broker."""

    def send(self, method: str, path: str, body: str | None) -> httpx.Response:
        """The answer, read whole."""
        ...


class Office:
    """The calls of the commands.

    Args:
        door: carries them.
        place: which broker answers, in words.
    """

    def __init__(self, door: Door, place: str) -> None:
        self._door = door
        self.place = place

    def one(self, kind: type[M], method: str, path: str, message: Message | None = None) -> M:
        """A call with one message as its answer.

        Raises:
            SelfschedError: the broker's no.
        """
        return parse(kind, self._content(method, path, message))

    def many(self, kind: type[M], path: str) -> list[M]:
        """A listing.

        Raises:
            SelfschedError: the broker's no.
        """
        found: list[M] = TypeAdapter(list[kind]).validate_json(self._content("GET", path, None))  # type: ignore[valid-type]
        return found

    def _content(self, method: str, path: str, message: Message | None) -> bytes:
        answer = self._door.send(method, f"/v1{path}", message.to_json() if message else None)
        if answer.is_success:
            return answer.content
        try:
            said = parse(Problem, answer.content)
        except InvalidMessage:
            raise BrokerUnreachable(f"no broker of ours: status {answer.status_code}") from None
        words = said.detail or said.title
        if said.code in _WRONG_USE:
            raise Refused(words)
        raise BrokerError(words, code=said.code, status=said.status)


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


def books_place(settings: BrokerSettings) -> str:
    """Where the books are, in words; never the address of a store, which may hold a password."""
    kind = "the store that the settings name" if settings.store else "the books"
    return f"{kind} (state directory {settings.state_dir})"


class _Socket:
    """A running broker."""

    def __init__(self, path: str) -> None:
        self._path = path

    def send(self, method: str, path: str, body: str | None) -> httpx.Response:
        transport = httpx.HTTPTransport(uds=self._path, trust_env=False)
        try:
            with httpx.Client(transport=transport, base_url="http://broker", trust_env=False) as client:
                return client.request(method, path, content=body, timeout=_TIMEOUT_SECONDS)
        except httpx.HTTPError as error:
            raise BrokerUnreachable(f"the broker at {self._path} does not answer: {error}") from error


class _Books:
    """The books of a broker that does not run."""

    def __init__(self, settings: BrokerSettings) -> None:
        from selfsched_broker.serving import open_service

        self._service = open_service(settings)

    def send(self, method: str, path: str, body: str | None) -> httpx.Response:
        return asyncio.run(self._send(method, path, body))

    async def _send(self, method: str, path: str, body: str | None) -> httpx.Response:
        from selfsched_broker.api.call import Backstage
        from selfsched_broker.api.polls import Polls
        from selfsched_broker.app import build_app
        from selfsched_broker.desk import Desk
        from selfsched_broker.management import Management

        with ThreadPoolExecutor(1) as workers:
            polls = Polls(asyncio.get_running_loop())
            backstage = Backstage(
                desk=Desk(self._service),
                management=Management(self._service),
                polls=polls,
                workers=workers,
                longest_wait_seconds=0.0,
            )
            app = build_app(backstage)

            async def as_me(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
                await app({**scope, "state": {"peer_uid": os.geteuid()}}, receive, send)

            transport = httpx.ASGITransport(as_me)
            async with httpx.AsyncClient(transport=transport, base_url="http://broker") as client:
                return await client.request(method, path, content=body)

    def close(self) -> None:
        self._service.close()


@contextmanager
def open_office(settings: BrokerSettings) -> Iterator[Office]:
    """The running broker's office, or that of the books where none runs.

    Raises:
        Refused: there are no books there, or they are another user's.
        StoreUnusable: the books cannot be used.
    """
    state = settings.state_dir
    running = _running(state / READY_FILE)
    if running is not None:
        place = f"the broker at {running.address} (state directory {state})"
        yield Office(_Socket(running.admin_socket), place)
        return
    if not settings.store and not (state / "books.sqlite").exists():
        _refuse_no_books(state)
    books = _Books(settings)
    try:
        yield Office(books, f"{books_place(settings)}; no broker runs there")
    finally:
        books.close()


def _running(ready_file: Path) -> Addresses | None:
    addresses = read_ready_file(ready_file)
    if addresses is None or not Path(addresses.admin_socket).exists():
        return None
    try:
        os.kill(addresses.pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return addresses


def _refuse_no_books(state: Path) -> None:
    try:
        state.stat()
        os.listdir(state)
    except PermissionError:
        raise Refused(f"{state} is not yours to read: run this as root or as the broker's user") from None
    except OSError:
        pass
    raise Refused(
        f"there is no broker at {state}: start one with `selfsched-broker serve --state-dir DIR`, "
        "or say --state-dir or SELFSCHED_BROKER_STATE_DIR"
    )
