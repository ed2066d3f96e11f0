"""Connections to the database, set up the way the books need them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.pool import ConnectionPoolEntry

from selfsched_broker.store.contract import StoreUnusable

_BUSY_SECONDS = 5.0


def make_engine(url: str) -> Engine:
    """An engine whose transactions hold the write lock from their beginning."""
    if sqlite_path(url) is None:
        return create_engine(url, pool_pre_ping=True)
    engine = create_engine(url, connect_args={"check_same_thread": False, "timeout": _BUSY_SECONDS})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def _set_up_sqlite(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def sqlite_path(url: str) -> Path | None:
    """The file of an SQLite address; None for another database.

    Raises:
        StoreUnusable: an SQLite address without a file.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return None
    if not parsed.database or parsed.database == ":memory:":
        raise StoreUnusable("an SQLite store needs a file: sqlite:////path/to/books.sqlite")
    return Path(parsed.database)
