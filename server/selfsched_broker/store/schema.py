"""The schema's version: fresh databases, migrations with a backup first, backups."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from selfsched_broker.store.contract import StoreUnusable
from selfsched_broker.store.engines import make_engine, sqlite_path
from selfsched_broker.store.files import FileLock

_MIGRATIONS = Path(__file__).parent / "migrations"


@dataclass(frozen=True, kw_only=True, slots=True)
class Migrated:
    """What `migrate` did."""

    before: str | None
    """Revision before; None: an empty database."""
    after: str
    backup: Path | None
    """Where the old database was copied first; None when nothing had to be done."""


def head() -> str:
    """The revision this release works with."""
    found = ScriptDirectory(str(_MIGRATIONS)).get_current_head()
    assert found is not None, "there is no migration"
    return found


def upgrade(connection: Connection) -> None:
    """Bring a database to this release's revision, on an open transaction."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def revision(connection: Connection) -> str | None:
    """The revision of a database; None when it has none."""
    return MigrationContext.configure(connection).get_current_revision()


def check(connection: Connection, name: str) -> None:
    """See that a database is at this release's revision.

    Raises:
        StoreUnusable: it is older, newer, or none of ours. The message says what to do.
    """
    found = revision(connection)
    if found == head():
        return
    if found is None:
        what = "holds other tables" if inspect(connection).get_table_names() else "holds no books"
        raise StoreUnusable(f"{name} {what}: choose another file")
    if found in {script.revision for script in ScriptDirectory(str(_MIGRATIONS)).walk_revisions()}:
        raise StoreUnusable(
            f"{name} has the older schema {found}: stop the broker and run `selfsched-broker migrate`"
        )
    raise StoreUnusable(
        f"{name} has schema {found} of a newer release than this one ({head()}): install that release"
    )


def is_older(url: str) -> bool:
    """Whether there is a store with the schema of an earlier release."""
    path = sqlite_path(url)
    if path is not None and not path.exists():
        return False
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            found = revision(connection)
    except DBAPIError:
        return False
    finally:
        engine.dispose()
    known = {script.revision for script in ScriptDirectory(str(_MIGRATIONS)).walk_revisions()}
    return found is not None and found != head() and found in known


def migrate(url: str) -> Migrated:
    """Bring a store to this release's schema; an SQLite file is backed up beside it first.

    Raises:
        StoreUnusable: a broker runs on it, it is of a newer release, or it is no database.
    """
    path = sqlite_path(url)
    lock = FileLock(path) if path is not None else None
    if lock is not None:
        if path is None or not path.exists():
            raise StoreUnusable(f"there is no database at {path}")
        lock.take()
    try:
        return _migrate(url, path)
    except DBAPIError as error:
        raise StoreUnusable(f"the store cannot be read: {error.orig}") from error
    finally:
        if lock is not None:
            lock.release()


def _migrate(url: str, path: Path | None) -> Migrated:
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            before = revision(connection)
            if before == head():
                return Migrated(before=before, after=before, backup=None)
            known = {script.revision for script in ScriptDirectory(str(_MIGRATIONS)).walk_revisions()}
            if before is not None and before not in known:
                check(connection, str(path or make_url(url)))
        copy = _backup_beside(url, path, before) if path is not None else None
        with engine.begin() as connection:
            upgrade(connection)
        return Migrated(before=before, after=head(), backup=copy)
    finally:
        engine.dispose()


def _backup_beside(url: str, path: Path, before: str | None) -> Path:
    for number in range(1, 1000):
        target = path.with_name(f"{path.name}.before-migration-{before or 'none'}-{number}")
        if not target.exists():
            backup(url, target)
            return target
    raise StoreUnusable(f"too many old backups beside {path}: remove some")


def backup(url: str, target: Path) -> None:
    """Copy an SQLite store, also while a broker runs on it, to a new file of mode 0600.

    Raises:
        StoreUnusable: not SQLite (use the database's own tools), the target exists or cannot
            be written, or the source is no database.
    """
    path = sqlite_path(url)
    if path is None:
        raise StoreUnusable("only SQLite stores are copied here: use pg_dump for PostgreSQL")
    if not path.exists():
        raise StoreUnusable(f"there is no database at {path}")
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
    except FileExistsError:
        raise StoreUnusable(f"{target} exists already: a backup never overwrites") from None
    except (OSError, sqlite3.Error) as error:
        target.unlink(missing_ok=True)
        raise StoreUnusable(f"{path} cannot be copied to {target}: {error}") from error
