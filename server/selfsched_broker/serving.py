"""A broker process: service, HTTP, this machine's own node, and an orderly end.

SIGTERM and SIGINT end it gracefully: waiting polls are answered, requests under way finish, the
store is closed. Jobs notice nothing but a broker that is away for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from selfsched.errors import InvalidSettings
from selfsched_broker.api.call import Backstage, HubDoor
from selfsched_broker.api.limits import Buckets, Budget
from selfsched_broker.api.polls import Polls
from selfsched_broker.core.policies import policy_named
from selfsched_broker.desk import Desk
from selfsched_broker.front import Front
from selfsched_broker.hub_identity import Hub
from selfsched_broker.identity import Caller
from selfsched_broker.listening import (
    READY_FILE,
    Addresses,
    Listening,
    listen,
    reserve_port,
    write_ready_file,
)
from selfsched_broker.management import Management
from selfsched_broker.own_node import Agent, OwnNode
from selfsched_broker.service import Rules, Service
from selfsched_broker.settings import BrokerSettings
from selfsched_broker.store.opening import store_at

log = logging.getLogger(__name__)
_WORKERS = 8
_WATCH_SECONDS = 0.2


@dataclass(frozen=True)
class Running:
    """A broker that listens."""

    addresses: Addresses
    service: Service
    polls: Polls
    end: Callable[[], object]
    """Ends it in order. Callable from any thread."""


@dataclass
class Ended:
    """Why a broker ended."""

    reason: str = ""
    failed: bool = False


@dataclass
class _Life:
    """What decides when to end. Shared by the signal handlers and the watch."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ended: Ended = field(default_factory=Ended)

    def end(self, reason: str, *, failed: bool = False) -> None:
        """Begin to end; the first reason counts."""
        if not self.stop.is_set():
            self.ended = Ended(reason, failed)
            self.stop.set()


def open_service(settings: BrokerSettings) -> Service:
    """The service on its store.

    Raises:
        Refused: there is no such policy.
        StoreUnusable: the store cannot be used, or another broker has it.
    """
    policy = policy_named(settings.policy)
    store = store_at(settings.store_url, settings.lease)
    rules = Rules(policy=policy, lease=settings.lease, fairness=settings.fairness)
    try:
        return Service(store, rules, failpoint=settings.failpoint)
    except BaseException:
        store.close()
        raise


def serve(
    settings: BrokerSettings, *, agent: Agent | None, ready: Callable[[Running], None] = lambda _: None
) -> Ended:
    """Serve until told to end. In the main thread, SIGTERM and SIGINT tell it.

    Args:
        settings: as read.
        agent: speaks for this machine's devices; None: other nodes report theirs.
        ready: called once it listens.

    Raises:
        Refused, StoreUnusable: it cannot begin.
    """
    if settings.jupyterhub and settings.hub is None:
        raise InvalidSettings(
            "jupyterhub is on, but JUPYTERHUB_API_URL and JUPYTERHUB_SERVICE_NAME are not set: let the "
            "Hub start the broker as one of its services, or set them as it would"
        )
    with contextlib.ExitStack() as undo:
        port = reserve_port(settings)  # first: a port in use must not leave new books behind
        if port is not None:
            undo.callback(port.close)
        service = open_service(settings)
        undo.callback(service.close)
        listening = listen(settings, port)
        undo.callback(listening.close)
        return asyncio.run(_serve(settings, service, listening, agent, ready))


async def _serve(
    settings: BrokerSettings,
    service: Service,
    listening: Listening,
    agent: Agent | None,
    ready: Callable[[Running], None],
) -> Ended:
    loop, life = asyncio.get_running_loop(), _Life()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, life.end, signal.Signals(number).name)
    polls, desk = Polls(loop), Desk(service, learn_seconds=settings.learn_seconds)
    service.listen(polls.tell)
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="broker-call") as workers, _hub(settings) as hub:
        backstage = _backstage(settings, desk, polls, workers, hub)
        front = Front(settings, listening, backstage)
        with _node(desk, agent), _learning(desk):
            service.start()
            await front.start()
            told = [path for path in (settings.state_dir / READY_FILE, settings.ready_file) if path]
            for path in told:
                write_ready_file(path, listening.addresses)
            end = functools.partial(loop.call_soon_threadsafe, life.end, "told to end")
            ready(Running(listening.addresses, service, polls, end))
            try:
                await _watch(settings, service, life, front)
            finally:
                for path in told:
                    _remove_own(path)
        polls.close()
        await front.close()
        service.unlisten(polls.tell)
    return life.ended


def _backstage(
    settings: BrokerSettings, desk: Desk, polls: Polls, workers: Executor, hub: HubDoor | None
) -> Backstage:
    return Backstage(
        hub=hub,
        desk=desk,
        management=Management(desk.service),
        polls=polls,
        workers=workers,
        longest_wait_seconds=settings.lease.ttl_seconds / 3,
        calls=Buckets(Budget(per_second=settings.calls_per_second)),
        heartbeats=Buckets(Budget(per_second=settings.reports_per_second)),
    )


async def _watch(settings: BrokerSettings, service: Service, life: _Life, front: Front) -> None:
    """Until a signal, a takeover, nobody can reach it, or nobody has needed it for a while."""
    loop = asyncio.get_running_loop()
    needed_at = loop.time()
    while not life.stop.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WATCH_SECONDS):
                await life.stop.wait()
        if service.fenced:
            life.end(service.fenced, failed=True)
        if trouble := await front.look():
            life.end(trouble, failed=True)
        if settings.idle_exit_seconds is not None:
            if _is_needed(service):
                needed_at = loop.time()
            elif loop.time() - needed_at >= settings.idle_exit_seconds:
                life.end("no job for a while")


def _is_needed(service: Service) -> bool:
    """Whether there is a live job. A look without the lock: it must not wait for an auction."""
    return bool(service.books.live_accounts())


@contextlib.contextmanager
def _node(desk: Desk, agent: Agent | None) -> Iterator[None]:
    if agent is None:
        yield
        return
    caller = Caller(account="broker", node=agent.name)
    node = OwnNode(agent, lambda report: desk.node_report(caller, agent.name, report))
    desk.service.listen(node.tell)
    node.start()
    try:
        yield
    finally:
        desk.service.unlisten(node.tell)
        node.stop()


@contextlib.contextmanager
def _hub(settings: BrokerSettings) -> Iterator[HubDoor | None]:
    if settings.hub is None:
        yield None
        return
    with contextlib.closing(Hub(settings.hub)) as hub, ThreadPoolExecutor(1, "broker-hub") as thread:
        yield HubDoor(hub, thread)


@contextlib.contextmanager
def _learning(desk: Desk) -> Iterator[None]:
    desk.learner.start()
    try:
        yield
    finally:
        desk.learner.stop()


def _remove_own(path: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        if f'"pid": {os.getpid()},' in path.read_text():
            path.unlink()
