"""What all handlers of one Jupyter server share: the broker in use, and the answers to its views.

The broker is looked for when it is first needed, again when it stops answering or no longer
accepts us, and now and then in between: a private one begins with its user's first job, a
lab's may be set up later, a token may be renewed. That it is away is said in the server's log
when it begins and when it is over, not at each question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from selfsched_jupyter.allowed import BrokerCall
from selfsched_jupyter.answers import Answer, OwnCode, trouble
from selfsched_jupyter.finding import NO_BROKER_WORDS, Found, find
from selfsched_jupyter.runs import RunView, list_runs, parent_directory
from selfsched_jupyter.sharing import SharedAnswers
from selfsched_jupyter.upstream import Upstream

LOOK_AGAIN_SECONDS = 60.0
"""While all is well."""
LOOK_AGAIN_IN_TROUBLE_SECONDS = 2.0
"""While there is none, or it is away."""
RUNS_SECONDS = 1.0
"""The directories of runs are read no more often."""


class Room:
    """Belongs to the server's event loop.

    Args:
        look: finds the broker; it may block, and runs in a thread.
        say: tells the server's log.
        root: where the server's paths of notebooks begin.
    """

    def __init__(
        self,
        look: Callable[[], Found] = find,
        *,
        say: Callable[[str], object] = lambda _: None,
        root: Path | None = None,
    ) -> None:
        self._look = look
        self._root = root
        self._say = say
        self._is_away = False
        self._found = Found(kind="none")
        self._upstream: Upstream | None = None
        self._look_at = 0.0
        self._looking = asyncio.Lock()
        self._search: asyncio.Task[None] | None = None
        self._shared = SharedAnswers(self._ask)
        self._runs: tuple[RunView, ...] = ()
        self._runs_until = 0.0
        self._reading = asyncio.Lock()

    async def found(self) -> Found:
        """The broker in use. Who has one does not wait while it is looked for another."""
        if self._upstream is None:
            await self._look_around()
        elif self._is_time_to_look() and (self._search is None or self._search.done()):
            self._search = asyncio.ensure_future(self._look_around())
        return self._found

    def _is_time_to_look(self) -> bool:
        return asyncio.get_running_loop().time() >= self._look_at

    async def _look_around(self) -> None:
        async with self._looking:
            if not self._is_time_to_look():  # somebody else has looked meanwhile
                return
            await self._take(await asyncio.to_thread(self._look))
            pause = LOOK_AGAIN_SECONDS if self._upstream else LOOK_AGAIN_IN_TROUBLE_SECONDS
            self._look_at = asyncio.get_running_loop().time() + pause

    async def _take(self, found: Found) -> None:
        if self._upstream is not None and found == self._upstream.found:
            return
        before, self._upstream = self._upstream, Upstream(found) if found.address else None
        self._found = found
        self._shared.something_changed()
        if before is not None:
            await before.close()  # its polls end as unreachable and are asked anew, of the other one

    async def get(self, call: BrokerCall, etag: str | None) -> Answer:
        """A view, shared with whoever asks for it too."""
        return await self._shared.get(call, etag)

    async def order(self, call: BrokerCall) -> Answer:
        """A call that may change something; whatever was asked before it counts no longer."""
        try:
            return await self._ask(call, None)
        finally:
            self._shared.something_changed()

    async def ask(self, call: BrokerCall) -> Answer:
        """A question that changes nothing, and is nobody else's too."""
        return await self._ask(call, None)

    async def _ask(self, call: BrokerCall, etag: str | None) -> Answer:
        found = await self.found()
        if self._upstream is None:
            return no_broker(found)
        answer = await self._upstream.ask(call, etag=etag)
        self._note(answer)
        if answer.is_trouble:
            soon = asyncio.get_running_loop().time() + LOOK_AGAIN_IN_TROUBLE_SECONDS
            self._look_at = min(self._look_at, soon)
        return answer

    def _note(self, answer: Answer) -> None:
        """Say when the broker goes away and when it is back."""
        is_away = answer.is_away
        if is_away != self._is_away:
            self._is_away = is_away
            state = "does not answer" if is_away else "answers again"
            self._say(f"selfsched: the broker at {self._found.address} {state}")

    async def runs(self) -> tuple[RunView, ...]:
        """The runs on this machine, newest first.

        Raises:
            InvalidSettings: the settings cannot be read.
        """
        async with self._reading:
            if asyncio.get_running_loop().time() >= self._runs_until:
                self._runs = await asyncio.to_thread(lambda: list_runs(parent_directory(), root=self._root))
                self._runs_until = asyncio.get_running_loop().time() + RUNS_SECONDS
            return self._runs

    async def runs_directory(self) -> Path:
        """Where the runs lie.

        Raises:
            InvalidSettings: the settings cannot be read.
        """
        return await asyncio.to_thread(parent_directory)

    async def close(self) -> None:
        """End what is under way: the server ends."""
        self._shared.close()
        if self._search is not None:
            self._search.cancel()
        if self._upstream is not None:
            await self._upstream.close()


def no_broker(found: Found) -> Answer:
    """Why there is none to ask, and what to do."""
    if found.wrong_settings:
        return trouble(HTTPStatus.SERVICE_UNAVAILABLE, OwnCode.SETTINGS, found.wrong_settings)
    return trouble(HTTPStatus.SERVICE_UNAVAILABLE, OwnCode.NO_BROKER, NO_BROKER_WORDS)
