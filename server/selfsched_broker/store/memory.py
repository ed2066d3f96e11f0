"""The books kept in memory only: for simulation and tests, and for a broker that may forget."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from selfsched_broker.core.books import (
    TABLES,
    Answer,
    Auction,
    Audit,
    Books,
    Broker,
    Change,
    Claim,
    Erase,
    Forget,
    Holding,
    Lease,
    Record,
)
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.store.contract import StoreConflict, StoreFenced
from selfsched_broker.store.retention import within_bounds

_HISTORY = (Answer, Auction, Audit)


@dataclass(slots=True)
class MemoryDisk:
    """What outlives a `MemoryStore`: a second one on the same disk is the broker after a restart."""

    broker: Broker = field(default_factory=lambda: Broker(incarnation=0))
    rows: dict[type[Record], dict[str, Record]] = field(default_factory=dict)
    live_holdings: dict[str, str] = field(default_factory=dict)
    open_claims: dict[str, str] = field(default_factory=dict)
    highest_fence: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class MemoryStore:
    """A `contract.Store` without a file. Safe from several threads."""

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        bounds: LeaseOptions | None = None,
        *,
        keeps_history: bool = True,
    ) -> None:
        # Without its history months of decisions pass in the memory of a day (simulation).
        self._keeps_history = keeps_history
        self._disk = disk or MemoryDisk()
        self._bounds = bounds or LeaseOptions()
        self._incarnation = 0

    def open(self) -> Books:
        """The books as last committed, under the next incarnation."""
        disk = self._disk
        with disk.lock:
            self._incarnation = disk.broker.incarnation + 1
            disk.broker = replace(disk.broker, incarnation=self._incarnation)
            books = Books(broker=disk.broker)
            rows = [row for kind in TABLES for row in disk.rows.get(kind, {}).values()]
        books.apply(within_bounds(rows, self._bounds, disk.broker.clock))
        return books

    def commit(self, changes: Sequence[Change]) -> None:
        """Take the durable changes, all or none."""
        durable = [change for change in changes if change.durable]
        with self._disk.lock:
            if self._disk.broker.incarnation != self._incarnation:
                raise StoreFenced("another broker has taken over this store")
            self._check(durable)
            for change in durable:
                if self._keeps_history or not isinstance(change, _HISTORY):
                    self._write(change)
            if not self._keeps_history:
                for forgotten in (change for change in changes if isinstance(change, Forget)):
                    self._disk.rows.get(forgotten.kind, {}).pop(forgotten.forgotten, None)

    def close(self) -> None:
        """Nothing to let go of."""

    def _check(self, changes: Sequence[Change]) -> None:
        """Refuse what the tables' constraints would refuse, before anything is written."""
        live, claimed = dict(self._disk.live_holdings), dict(self._disk.open_claims)
        highest = self._disk.highest_fence
        # What ends makes room for what begins in the same commit.
        for change in sorted(changes, key=_is_taking):
            if isinstance(change, Holding):
                _occupy(live, change.device, change.key, change.live)
            elif isinstance(change, Claim):
                _occupy(claimed, change.device, change.key, change.state == "open")
            elif isinstance(change, Lease):
                before = self._disk.rows.get(Lease, {}).get(change.id)
                if isinstance(before, Lease) and before.fence != change.fence:
                    raise StoreConflict(f"the fence of {change.id} would change")
                if before is None and change.fence <= highest:
                    raise StoreConflict(f"fence {change.fence} was given before")
                highest = max(highest, change.fence)

    def _write(self, change: Change) -> None:
        disk = self._disk
        if isinstance(change, Broker):
            disk.broker = change
            return
        if isinstance(change, Erase):
            disk.rows.get(change.kind, {}).pop(change.forgotten, None)
            return
        disk.rows.setdefault(type(change), {})[change.key] = change
        if isinstance(change, Lease):
            disk.highest_fence = max(disk.highest_fence, change.fence)
        elif isinstance(change, Holding):
            _point(disk.live_holdings, change.device, change.key, change.live)
        elif isinstance(change, Claim):
            _point(disk.open_claims, change.device, change.key, change.state == "open")


def _is_taking(change: Change) -> bool:
    if isinstance(change, Holding):
        return change.live
    return isinstance(change, Claim) and change.state == "open"


def _occupy(index: dict[str, str], device: str, key: str, on: bool) -> None:
    if on and index.get(device, key) != key:
        raise StoreConflict(f"{device} is taken by {index[device]}, {key} cannot have it too")
    _point(index, device, key, on)


def _point(index: dict[str, str], device: str, key: str, on: bool) -> None:
    if on:
        index[device] = key
    elif index.get(device) == key:
        del index[device]
