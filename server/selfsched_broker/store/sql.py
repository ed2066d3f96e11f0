"""The books in a database: SQLite now, written so that PostgreSQL takes the same statements.

One commit is one transaction: it begins by taking the write lock (`BEGIN IMMEDIATE`: a deferred
one that reads first fails at once when another writer came between), checks that this broker
still is the one that opened the store, writes, and is synced to disk before it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from sqlalchemy import Connection, Engine, Table, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError

from selfsched_broker.core.books import Books, Broker, Change, Claim, Erase, Holding, Lease, Record
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.store import schema, tables
from selfsched_broker.store.contract import (
    StoreConflict,
    StoreError,
    StoreFenced,
    StoreUnavailable,
    StoreUnusable,
)
from selfsched_broker.store.engines import make_engine, sqlite_path
from selfsched_broker.store.files import FileLock, prepare_directory, prepare_file
from selfsched_broker.store.retention import within_bounds

Moment = Literal["before_commit", "after_commit"]
_CORRUPT = ("malformed", "not a database", "file is encrypted")
_KEYS_AT_ONCE = 500
"""In one statement: databases bound the number of its parameters."""
_RESTORE = "nothing was changed; restore the newest backup over it"


class SqlStore:
    """A `contract.Store` in a database.

    Args:
        url: SQLAlchemy's, such as `sqlite:////var/lib/selfsched/books.sqlite`.
        bounds: how much of what has ended is read back.
        exclusive: take the file lock of an SQLite store; off only where a test needs two.
        on_moment: called within each commit, so that a test can kill the process there.
    """

    def __init__(
        self,
        url: str,
        *,
        bounds: LeaseOptions | None = None,
        exclusive: bool = True,
        on_moment: Callable[[Moment], None] = lambda moment: None,
    ) -> None:
        self._url = url
        self._bounds = bounds or LeaseOptions()
        self._path = sqlite_path(url)
        self._lock = FileLock(self._path) if self._path is not None and exclusive else None
        self._on_moment = on_moment
        self._engine: Engine | None = None
        self._incarnation = 0

    def open(self) -> Books:
        """Read everything, raise the incarnation by one, durably, and return the books.

        Raises:
            StoreUnusable: the file is not private, another broker's, corrupt, of another
                schema, or on the network. The message says what to do.
            StoreUnavailable: the database does not answer.
        """
        try:
            return self._open()
        except StoreError:
            self.close()
            raise

    def _open(self) -> Books:
        fresh = False
        if self._path is not None:
            prepare_directory(self._path)
            if self._lock is not None:
                self._lock.take()
            fresh = prepare_file(self._path)
        self._engine = make_engine(self._url)
        with self._transaction("cannot open the store") as connection:
            self._check(connection, fresh=fresh)
            broker = _read_broker(connection) or Broker(incarnation=0)
            broker = replace(broker, incarnation=broker.incarnation + 1)
            rows = [row for kind in tables.TABLE_OF for row in _read_all(connection, kind)]
            _upsert(connection, tables.broker, [tables.to_row(broker)])
        self._incarnation = broker.incarnation
        books = Books(broker=broker)
        books.apply(within_bounds(rows, self._bounds, broker.clock))
        return books

    def _check(self, connection: Connection, *, fresh: bool) -> None:
        if self._path is not None and not fresh:
            verdict = connection.exec_driver_sql("PRAGMA quick_check").scalars().all()
            if verdict != ["ok"]:
                raise StoreUnusable(f"{self._path} is corrupt ({verdict[0]}): {_RESTORE}")
        if fresh or (self._path is None and schema.revision(connection) is None):
            schema.upgrade(connection)
        schema.check(connection, str(self._path or "the database"))

    def commit(self, changes: Sequence[Change]) -> None:
        """Write the durable ones among the changes in one transaction."""
        durable = [change for change in changes if change.durable]
        if not durable:
            return
        with self._transaction("cannot write to the store") as connection:
            current = connection.execute(select(tables.broker.c.incarnation)).scalar_one()
            if current != self._incarnation:
                raise StoreFenced(
                    f"another broker (incarnation {current}) has taken over from {self._incarnation}"
                )
            _check_fences(connection, [c for c in durable if isinstance(c, Lease)])
            for change in durable:
                if isinstance(change, Broker):
                    _upsert(connection, tables.broker, [tables.to_row(change)])
            for kind, table in tables.TABLE_OF.items():
                _write(connection, table, [change for change in durable if type(change) is kind])
            _erase(connection, [change for change in durable if isinstance(change, Erase)])
            self._on_moment("before_commit")
        self._on_moment("after_commit")

    def close(self) -> None:
        """Let go of the connections and of the file lock."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None
        if self._lock is not None:
            self._lock.release()

    @contextmanager
    def _transaction(self, what: str) -> Iterator[Connection]:
        """One transaction; the database's errors become the contract's."""
        if self._engine is None:
            raise StoreUnavailable("the store is not open")
        try:
            with self._engine.begin() as connection:
                yield connection
        except IntegrityError as error:
            raise StoreConflict(f"a constraint of the store refused the commit: {error.orig}") from error
        except DBAPIError as error:
            if any(sign in str(error.orig) for sign in _CORRUPT):
                raise StoreUnusable(f"{self._path} is corrupt ({error.orig}): {_RESTORE}") from error
            raise StoreUnavailable(f"{what}: {error.orig}") from error


def _read_broker(connection: Connection) -> Broker | None:
    body = connection.execute(select(tables.broker.c.body)).scalar_one_or_none()
    found = _parse(Broker, body) if body is not None else None
    assert found is None or isinstance(found, Broker)
    return found


def _read_all(connection: Connection, kind: type[Record]) -> list[Record]:
    bodies = connection.execute(select(tables.TABLE_OF[kind].c.body)).scalars()
    return [_parse(kind, body) for body in bodies]


def _parse(kind: type[Record], body: str) -> Record:
    try:
        return tables.from_body(kind, body)
    except ValueError as error:
        raise StoreUnusable(f"a row of {kind.__name__} cannot be read: {_RESTORE}") from error


def _check_fences(connection: Connection, leases: Sequence[Lease]) -> None:
    """A fence is fixed for a lease's life, and a new one is higher than all before."""
    if not leases:
        return
    table = tables.leases
    found = connection.execute(
        select(table.c.key, table.c.fence).where(table.c.key.in_([lease.id for lease in leases]))
    )
    known = {row.key: row.fence for row in found}
    highest = connection.execute(select(func.max(table.c.fence))).scalar_one() or 0
    for lease in leases:
        if known.get(lease.id, lease.fence) != lease.fence:
            raise StoreConflict(f"the fence of {lease.id} would change")
        if lease.id not in known and lease.fence <= highest:
            raise StoreConflict(f"fence {lease.fence} was given before")


def _write(connection: Connection, table: Table, records: Sequence[Record]) -> None:
    """What ends is written before what begins: the unique indexes are checked row by row."""
    ending = [record for record in records if not _is_taking(record)]
    taking = [record for record in records if _is_taking(record)]
    for group in (ending, taking):
        if group:
            _upsert(connection, table, [tables.to_row(record) for record in group])


def _erase(connection: Connection, erased: Sequence[Erase]) -> None:
    for kind in {erase.kind for erase in erased}:
        table = tables.TABLE_OF[kind]
        keys = [erase.forgotten for erase in erased if erase.kind is kind]
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            connection.execute(delete(table).where(table.c.key.in_(keys[start : start + _KEYS_AT_ONCE])))


def _is_taking(record: Record) -> bool:
    if isinstance(record, Holding):
        return record.live
    return isinstance(record, Claim) and record.state == "open"


def _upsert(connection: Connection, table: Table, rows: Sequence[dict[str, object]]) -> None:
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = insert(table)
    keys = [column.name for column in table.primary_key]
    others = {c.name: statement.excluded[c.name] for c in table.columns if c.name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=others), list(rows))
