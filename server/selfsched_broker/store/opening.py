"""From the address of a store to the store."""

from __future__ import annotations

from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.store.contract import Store
from selfsched_broker.store.memory import MemoryStore
from selfsched_broker.store.sql import SqlStore


def store_at(url: str, bounds: LeaseOptions | None = None) -> Store:
    """The store of an address: `memory:`, or SQLAlchemy's, such as `sqlite:////path/books.sqlite`.

    Raises:
        StoreUnusable: an SQLite address without a file.
    """
    return MemoryStore(bounds=bounds) if url == "memory:" else SqlStore(url, bounds=bounds)
