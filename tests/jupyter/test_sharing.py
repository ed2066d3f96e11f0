"""One question to the broker for many panels, and nobody is shown what was before a change."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx
import pytest
from fastapi.routing import APIRoute

from selfsched.settings import BrokerAddress
from selfsched_broker.api import jobs, people
from selfsched_jupyter import sharing, upstream
from selfsched_jupyter.allowed import TABLE, BrokerCall, call_of
from selfsched_jupyter.answers import Answer, not_modified, tag_of, trouble
from selfsched_jupyter.finding import Found
from selfsched_jupyter.room import Room
from selfsched_jupyter.sharing import SharedAnswers
from selfsched_jupyter.upstream import Upstream

CLUSTER = call_of("GET", "cluster", "")
POLL = call_of("GET", "cluster", "wait_seconds=20")


@dataclass
class Broker:
    """A view that changes, and who asks for it."""

    version: int = 1
    asked: list[str | None] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    slow: asyncio.Event | None = None
    """A plain look is answered when this is set, with what was there when it was asked."""
    given_up: int = 0

    @property
    def etag(self) -> str:
        return f'"{self.version}"'

    def change(self) -> None:
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()

    def answer(self) -> Answer:
        return Answer(status=200, body=str(self.version).encode(), etag=self.etag)

    async def ask(self, call: BrokerCall, etag: str | None) -> Answer:
        self.asked.append(etag)
        answer = self.answer()
        try:
            if etag is None and self.slow is not None:
                await self.slow.wait()
            elif etag == self.etag:
                await self.changed.wait()
                answer = self.answer()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return answer


def run(work: Callable[[Broker, SharedAnswers], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        broker = Broker()
        async with asyncio.timeout(20):
            await work(broker, SharedAnswers(broker.ask))

    asyncio.run(all_of_it())


async def settle() -> None:
    """Let every task that can go on go on."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_many_who_wait_for_news_are_one_question_and_all_are_told() -> None:
    async def work(broker: Broker, shared: SharedAnswers) -> None:
        waiting = [asyncio.ensure_future(shared.get(POLL, '"1"')) for _ in range(50)]
        await settle()
        assert broker.asked == ['"1"']
        broker.change()
        assert {(await one).etag for one in waiting} == {'"2"'}
        # What the news brought need not be asked for again.
        assert (await shared.get(CLUSTER, None)).body == b"2"
        assert broker.asked == ['"1"']

    run(work)


def test_many_who_look_at_once_are_one_question() -> None:
    async def work(broker: Broker, shared: SharedAnswers) -> None:
        answers = await asyncio.gather(*(shared.get(CLUSTER, None) for _ in range(50)))
        assert {answer.body for answer in answers} == {b"1"}
        assert broker.asked == [None]
        assert (await shared.get(CLUSTER, '"1"')).status == 304

    run(work)


def test_who_asks_after_a_change_is_not_given_an_answer_from_before_it() -> None:
    async def work(broker: Broker, shared: SharedAnswers) -> None:
        broker.slow = asyncio.Event()
        early = asyncio.ensure_future(shared.get(CLUSTER, None))
        await settle()
        broker.change()
        shared.something_changed()
        late = asyncio.ensure_future(shared.get(CLUSTER, None))
        await settle()
        broker.slow.set()
        assert (await early).body == b"1"
        assert (await late).body == b"2"
        assert (await shared.get(CLUSTER, None)).body == b"2"

    run(work)


def test_news_make_every_older_answer_count_no_longer() -> None:
    async def work(broker: Broker, shared: SharedAnswers) -> None:
        jobs = call_of("GET", "jobs", "")
        assert (await shared.get(jobs, None)).body == b"1"
        waiting = asyncio.ensure_future(shared.get(POLL, '"1"'))
        await settle()
        broker.change()
        await waiting
        assert (await shared.get(jobs, None)).body == b"2"

    run(work)


def test_a_wait_that_brings_nothing_ends_in_time_and_is_not_the_others_end() -> None:
    async def work(broker: Broker, shared: SharedAnswers) -> None:
        longer = asyncio.ensure_future(shared.get(POLL, '"1"'))
        await settle()
        short = call_of("GET", "cluster", "wait_seconds=0.05")
        assert (await shared.get(short, '"1"')).status == 304
        assert not longer.done()
        broker.change()
        assert (await longer).etag == '"2"'
        assert broker.asked == ['"1"']

    run(work)


def test_the_last_who_leaves_ends_the_question() -> None:
    async def work(broker: Broker, shared: SharedAnswers) -> None:
        waiting = [asyncio.ensure_future(shared.get(POLL, '"1"')) for _ in range(3)]
        await settle()
        waiting[0].cancel()
        waiting[1].cancel()
        await settle()
        assert broker.given_up == 0
        waiting[2].cancel()
        await settle()
        assert broker.given_up == 1
        again = asyncio.ensure_future(shared.get(POLL, '"1"'))
        await settle()
        broker.change()
        assert (await again).etag == '"2"'

    run(work)


def test_a_broker_that_does_not_hold_back_is_not_asked_again_at_once() -> None:
    async def work(broker: Broker, shared: SharedAnswers) -> None:
        async def at_once(call: BrokerCall, etag: str | None) -> Answer:
            broker.asked.append(etag)
            return not_modified(etag)

        shared.ask = at_once
        short = call_of("GET", "cluster", "wait_seconds=0.3")
        assert (await shared.get(short, '"1"')).status == 304
        assert len(broker.asked) == 1

    run(work)


def test_a_view_that_changes_all_the_time_is_not_asked_for_without_end() -> None:
    async def work(broker: Broker, shared: SharedAnswers) -> None:
        async def restless(call: BrokerCall, etag: str | None) -> Answer:
            broker.asked.append(etag)
            broker.version += 1
            return broker.answer()

        shared.ask = restless
        loop = asyncio.get_running_loop()
        began_at, etag = loop.time(), '"0"'
        for _ in range(4):
            etag = (await shared.get(POLL, etag)).etag or ""
        assert len(broker.asked) <= 1 + (loop.time() - began_at) / 0.2

    run(work)


def test_trouble_ends_a_wait_and_is_told_to_all_without_asking_for_each() -> None:
    async def work(broker: Broker, shared: SharedAnswers) -> None:
        async def away(call: BrokerCall, etag: str | None) -> Answer:
            broker.asked.append(etag)
            return trouble(503, "broker_unreachable", "away")

        shared.ask = away
        answers = [await shared.get(POLL, '"1"') for _ in range(20)]
        answers += [await shared.get(CLUSTER, None) for _ in range(20)]
        assert {answer.status for answer in answers} == {503}
        assert len(broker.asked) == 1

    run(work)


def look(number: int) -> BrokerCall:
    """A view that differs from each other number's."""
    return call_of("GET", "jobs", f"ended={number}")


def says_much(size_bytes: int) -> Callable[[BrokerCall, str | None], Awaitable[Answer]]:
    async def much(call: BrokerCall, etag: str | None) -> Answer:
        return Answer(status=200, body=b" " * size_bytes, etag='"1"')

    return much


def test_what_is_kept_is_bounded_in_bytes_and_the_oldest_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharing, "MOST_KEPT_BYTES", 10_000)
    monkeypatch.setattr(sharing, "FRESH_SECONDS", 1000.0)

    async def work(broker: Broker, shared: SharedAnswers) -> None:
        shared.ask = says_much(3_000)
        for number in range(20):
            await shared.get(look(number), None)
        shared.ask = broker.ask
        assert [len((await shared.get(look(number), None)).body) for number in (19, 18, 17)] == [3_000] * 3
        assert broker.asked == []
        assert len((await shared.get(look(16), None)).body) == 1
        shared.ask = says_much(10_001)  # alone more than all that may be kept: given, not kept
        assert len((await shared.get(look(99), None)).body) == 10_001
        assert kept_bytes(shared) == 0
        shared.close()

    run(work)


def kept_bytes(shared: SharedAnswers) -> int:
    return sum(len(answer.body) for answer, _ in shared._kept.values())


def test_an_answer_that_is_no_longer_good_is_let_go_though_nobody_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharing, "FRESH_SECONDS", 0.05)
    monkeypatch.setattr(sharing, "SWEEP_SECONDS", 0.02)

    async def work(broker: Broker, shared: SharedAnswers) -> None:
        shared.ask = says_much(3_000)
        for number in range(5):
            await shared.get(look(number), None)
        while kept_bytes(shared):
            await asyncio.sleep(0.01)
        # And it goes on so. Kept by hand: between an answer and its asker the loop may let go already.
        shared._keep(("/v1/jobs", (), None, 0), await shared.ask(CLUSTER, None))
        assert kept_bytes(shared) == 3_000
        while kept_bytes(shared):
            await asyncio.sleep(0.01)

    run(work)


# --- one broker ------------------------------------------------------------------------------


def at(address: BrokerAddress, answer: Callable[[httpx.Request], Awaitable[httpx.Response]]) -> Upstream:
    transport = httpx.MockTransport(answer)  # type: ignore[arg-type]
    return Upstream(Found(kind="set", address=address, token="ss_secret"), transport=transport)


def test_a_broker_that_is_silent_is_given_up_and_said_to_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "REPLY_SECONDS", 0.05)
    monkeypatch.setattr(upstream, "CONNECT_SECONDS", 0.05)

    async def silent(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def ask() -> Answer:
        broker = at(BrokerAddress(url="http://slow:1"), silent)
        try:
            return await broker.ask(CLUSTER)
        finally:
            await broker.close()

    answer = asyncio.run(ask())
    assert answer.status == 504
    assert b"broker_unreachable" in answer.body
    assert b"http://slow:1" in answer.body
    assert b"ss_secret" not in answer.body


def test_an_answer_without_an_etag_gets_one_and_is_not_sent_twice() -> None:
    async def plain(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"[]", headers={"Content-Type": "application/json"})

    async def ask() -> Answer:
        broker = at(BrokerAddress(url="http://b:1"), plain)
        try:
            return await broker.ask(call_of("GET", "accounts/me/forecasts", ""))
        finally:
            await broker.close()

    answer = asyncio.run(ask())
    assert answer.etag == tag_of(b"[]")
    assert answer.unless_known(answer.etag).status == 304


def test_nothing_that_holds_the_token_shows_it() -> None:
    async def never(request: httpx.Request) -> httpx.Response:
        raise AssertionError

    broker = at(BrokerAddress(url="http://b:1"), never)
    assert "ss_secret" not in repr(broker.found) + repr(broker) + str(vars(broker))
    asyncio.run(broker.close())


def test_settings_are_read_again_so_that_a_renewed_token_counts_without_a_restart() -> None:
    seen = iter(["one that has expired", "a new one"])

    def look() -> Found:
        return Found(kind="none", wrong_settings=next(seen))

    async def twice() -> list[str]:
        room = Room(look)
        words = [(await room.found()).wrong_settings]
        room._look_at = 0.0  # the time to look again has come
        words.append((await room.found()).wrong_settings)
        await room.close()
        return words

    assert asyncio.run(twice()) == ["one that has expired", "a new one"]


# --- the list --------------------------------------------------------------------------------


MAY_BE_CALLED = {
    ("GET", "/jobs"), ("GET", "/jobs/{job}"), ("GET", "/cluster"), ("GET", "/auctions"), ("GET", "/policy"),
    ("GET", "/auctions/{number}"), ("GET", "/accounts/me"), ("GET", "/accounts/me/forecasts"),
    ("POST", "/jobs/{job}/control"), ("POST", "/jobs/{job}/end"),
    ("POST", "/leases/{lease}/release"),
}  # fmt: skip


def test_every_call_on_the_list_is_one_of_the_brokers() -> None:
    known = {
        (method, route.path)
        for room in (jobs, people)
        for route in room.router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    for method, path in known:
        example = re.sub(r"\{\w+\}", "7", path).removeprefix("/")
        rows = [row for row in TABLE if row.method == method and re.fullmatch(row.path, example)]
        assert len(rows) == ((method, path) in MAY_BE_CALLED)
    assert known >= MAY_BE_CALLED


def test_a_wait_is_capped_and_only_where_the_broker_holds_back() -> None:
    assert call_of("GET", "cluster", "wait_seconds=600").wait_seconds == 20.0
    assert call_of("GET", "policy", "wait_seconds=600").wait_seconds == 0.0
