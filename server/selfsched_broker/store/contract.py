"""The contract of a store: where the books are kept so that a killed broker loses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from selfsched_broker.core.books import Books, Change


class StoreError(Exception):
    """Base of what a store raises."""


class StoreUnavailable(StoreError):
    """Nothing was written (disk full, locked, connection lost); the same commit may be tried again."""


class StoreFenced(StoreError):
    """Another broker has taken over this store; this one must stop deciding."""


class StoreConflict(StoreError):
    """A constraint refused the commit: a device twice, a fence that is not the lease's. A bug."""


class StoreUnusable(StoreError):
    """Corrupt, of a newer or older schema, or not private. The message says what to do."""


class Store(Protocol):
    """Keeps durable records.

    Threads: calls come one at a time (the service holds its lock).
    Atomicity: `commit` writes all of its changes or none; when it returns, they survive
    kill -9. Within the same transaction it checks that the broker's incarnation is still the
    one that opened the store (else StoreFenced), that a lease's fence never changes, and by
    constraints that no device has two live holdings or two open claims (else StoreConflict).
    Records whose kind is not durable are ignored; an `Erase` removes a row, after all that is written.
    Copies: records are frozen, so nothing is copied.
    """

    def open(self) -> Books:
        """Read everything, raise the incarnation by one, durably, and return the books."""
        ...

    def commit(self, changes: Sequence[Change]) -> None:
        """Write the durable ones among the changes in one transaction."""
        ...

    def close(self) -> None: ...
