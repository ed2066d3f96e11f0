"""Full disks, broken files, wrong schemas, foreign hands (D1, D2, D6, D21, D22)."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from broker.driver import Driver
from sqlalchemy import create_engine, text

from selfsched_broker.core.books import Account
from selfsched_broker.store import files, schema, tables
from selfsched_broker.store.contract import StoreUnavailable, StoreUnusable
from selfsched_broker.store.engines import make_engine
from selfsched_broker.store.memory import MemoryStore
from selfsched_broker.store.opening import store_at
from selfsched_broker.store.sql import SqlStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "books.sqlite"


def _url(path: Path) -> str:
    return f"sqlite:///{path}"


def _filled(path: Path) -> None:
    store = SqlStore(_url(path))
    driver = Driver(store=store)
    driver.node()
    driver.register()
    store.close()
    _fold_in(path)


def _fold_in(path: Path) -> None:
    """Bring the write-ahead log into the file, so that a test can break that."""
    connection = sqlite3.connect(path)
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()


def test_files_are_private_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        store = SqlStore(_url(path))
        store.open()
        store.commit([Account(name="ann")])
        modes = {part.name: part.stat().st_mode & 0o777 for part in path.parent.iterdir()}
    finally:
        os.umask(before)
    store.close()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}
    assert {"books.sqlite", "books.sqlite-wal"} <= set(modes)


@pytest.mark.parametrize(("what", "mode"), [("directory", 0o750), ("file", 0o640)])
def test_a_store_that_others_can_read_is_refused(path: Path, what: str, mode: int) -> None:
    _filled(path)
    (path if what == "file" else path.parent).chmod(mode)
    with pytest.raises(StoreUnusable, match="can be read by others: chmod"):
        SqlStore(_url(path)).open()


def test_d6_a_second_broker_is_refused_and_told_who_has_it(path: Path) -> None:
    first = SqlStore(_url(path))
    first.open()
    with pytest.raises(StoreUnusable, match=f"process {os.getpid()}"):
        SqlStore(_url(path)).open()
    first.close()
    second = SqlStore(_url(path))
    assert second.open().broker.incarnation == 2
    second.close()


def test_d21_a_full_disk_writes_nothing_and_works_again_after(path: Path) -> None:
    store = SqlStore(_url(path))
    store.open()
    store.commit([Account(name="ann")])
    assert store._engine is not None
    # The limit is the connection's: the pool has one as long as nobody else asks.
    with store._engine.connect() as connection:
        pages = connection.exec_driver_sql("pragma page_count").scalar_one()
        connection.exec_driver_sql(f"pragma max_page_count = {pages}")
    many = [Account(name=f"account-{n}" + "x" * 50) for n in range(2000)]
    with pytest.raises(StoreUnavailable, match="full"):
        store.commit(many)
    with store._engine.connect() as connection:
        assert connection.execute(text("select count(*) from accounts")).scalar_one() == 1
        connection.exec_driver_sql("pragma max_page_count = 1000000")
    store.commit(many)
    store.close()
    again = SqlStore(_url(path))
    assert len(again.open().accounts) == 2001
    again.close()


def test_d21_heartbeats_need_no_disk(path: Path) -> None:
    store = SqlStore(_url(path))
    driver = Driver(store=store)
    driver.node()
    job = driver.register()
    driver.report(job)
    store._engine.dispose()  # type: ignore[union-attr]
    path.rename(path.with_suffix(".away"))
    driver.now += 5.0
    driver.report(job)
    assert driver.last is not None
    assert driver.last.changes
    assert not any(change.durable for change in driver.last.changes)
    store.close()


def test_d22_a_page_of_rubbish_is_found_at_the_start_and_the_file_left_alone(path: Path) -> None:
    _filled(path)
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 4] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises(StoreUnusable, match=r"corrupt .*restore the newest backup"):
        SqlStore(_url(path)).open()
    assert path.read_bytes() == content


def test_d22_what_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"these are somebody's notes, not a database\n" * 200)
    path.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match=r"corrupt .*not a database"):
        SqlStore(_url(path)).open()
    assert path.read_bytes() == before


def test_d22_an_empty_file_is_refused(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.touch(mode=0o600)
    with pytest.raises(StoreUnusable, match="empty: restore a backup"):
        SqlStore(_url(path)).open()


def test_d22_a_database_of_something_else_is_refused(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with sqlite3.connect(path) as connection:
        connection.execute("create table notes (word text)")
    connection.close()
    path.chmod(0o600)
    with pytest.raises(StoreUnusable, match="holds other tables: choose another file"):
        SqlStore(_url(path)).open()


def test_d22_a_newer_schema_is_refused(path: Path) -> None:
    _filled(path)
    with sqlite3.connect(path) as connection:
        connection.execute("update alembic_version set version_num = '9999_from_the_future'")
    connection.close()
    with pytest.raises(StoreUnusable, match="newer release"):
        SqlStore(_url(path)).open()
    with pytest.raises(StoreUnusable, match="newer release"):
        schema.migrate(_url(path))


def test_d22_a_row_that_cannot_be_read_is_refused(path: Path) -> None:
    _filled(path)
    with sqlite3.connect(path) as connection:
        connection.execute("update jobs set body = '{}'")
    connection.close()
    with pytest.raises(StoreUnusable, match="a row of Job cannot be read"):
        SqlStore(_url(path)).open()


def test_d22_an_older_schema_is_refused_until_it_is_migrated_with_a_backup(path: Path) -> None:
    _filled(path)
    with closing(sqlite3.connect(path)) as books:  # as the first release left it
        for table in ("forecasts", "evidence", "priors"):
            books.execute(f"drop table {table}")
        books.execute("update alembic_version set version_num = '0001_first_books'")
        books.commit()
    with pytest.raises(StoreUnusable, match=r"older schema 0001_first_books.*selfsched-broker migrate"):
        SqlStore(_url(path)).open()
    done = schema.migrate(_url(path))
    assert (done.before, done.after) == ("0001_first_books", "0002_forecasts_and_priors")
    assert done.backup is not None
    assert done.backup.stat().st_mode & 0o777 == 0o600
    assert schema.migrate(_url(path)).backup is None
    store = SqlStore(_url(path))
    books_again = store.open()
    assert set(books_again.jobs) == {"job-1"}
    assert not books_again.forecasts
    store.close()


def test_a_migration_is_refused_while_a_broker_runs(path: Path) -> None:
    store = SqlStore(_url(path))
    store.open()
    with pytest.raises(StoreUnusable, match="another broker"):
        schema.migrate(_url(path))
    store.close()


def test_a_migrated_database_is_what_the_tables_declare(tmp_path: Path) -> None:
    migrated, declared = tmp_path / "migrated.sqlite", tmp_path / "declared.sqlite"
    with make_engine(_url(migrated)).begin() as connection:
        schema.upgrade(connection)
    tables.metadata.create_all(make_engine(_url(declared)))

    def objects(path: Path) -> set[tuple[str, str]]:
        engine = create_engine(_url(path))
        with engine.connect() as connection:
            rows = connection.execute(text("select name, sql from sqlite_master where sql is not null"))
            found = {(name, " ".join(sql.split())) for name, sql in rows if name != "alembic_version"}
        engine.dispose()
        return found

    assert objects(migrated) == objects(declared)


def test_a_backup_is_a_whole_store_and_never_overwrites(path: Path, tmp_path: Path) -> None:
    store = SqlStore(_url(path))
    store.open()
    store.commit([Account(name="ann")])
    target = tmp_path / "backups"
    target.mkdir(mode=0o700)
    schema.backup(_url(path), target / "copy.sqlite")
    store.close()
    copy = SqlStore(_url(target / "copy.sqlite"))
    assert set(copy.open().accounts) == {"ann"}
    copy.close()
    with pytest.raises(StoreUnusable, match="exists already"):
        schema.backup(_url(path), target / "copy.sqlite")
    with pytest.raises(StoreUnusable, match="no database"):
        schema.backup(_url(tmp_path / "nothing.sqlite"), target / "other.sqlite")
    with pytest.raises(StoreUnusable, match="only SQLite"):
        schema.backup("postgresql://host/db", target / "other.sqlite")


def test_file_systems_are_told_by_the_deepest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/x {tmp_path}/lab nfs4 rw 0 0\n")
    assert files.file_system_of(tmp_path / "lab" / "deep", mounts) == "nfs4"
    assert files.file_system_of(tmp_path / "labour", mounts) == "ext4"
    assert files.file_system_of(tmp_path, tmp_path / "absent") is None


def test_a_directory_on_the_network_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "file_system_of", lambda path: "nfs")
    with pytest.raises(StoreUnusable, match="network file system"):
        SqlStore(_url(path)).open()


def test_a_read_only_directory_is_refused(path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    _filled(path)
    path.parent.chmod(0o500)
    with pytest.raises(StoreUnusable, match="cannot be written"):
        SqlStore(_url(path)).open()
    path.parent.chmod(0o700)


def test_an_address_leads_to_its_store(path: Path) -> None:
    assert isinstance(store_at("memory:"), MemoryStore)
    assert isinstance(store_at(_url(path)), SqlStore)
    with pytest.raises(StoreUnusable, match="needs a file"):
        store_at("sqlite://")


_BROKER = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from broker.driver import Driver
from selfsched.protocol import RegisterJob
from selfsched_broker.core import arbiter
from selfsched_broker.store.sql import SqlStore

armed = False
def die(moment):
    if armed and moment == {moment!r}:
        os.kill(os.getpid(), signal.SIGKILL)

driver = Driver(store=SqlStore({url!r}, on_moment=die))
driver.node(devices=1)
driver.do(arbiter.register, "ann", RegisterJob(name="job"))
armed = True
driver.settle()  # grants the device
"""


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "granted"), [("before_commit", False), ("after_commit", True)])
def test_d1_d2_a_broker_killed_around_the_commit_of_a_grant(path: Path, moment: str, granted: bool) -> None:
    tests = str(Path(__file__).parents[2])
    script = _BROKER.format(tests=tests, moment=moment, url=_url(path))
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    store = SqlStore(_url(path))
    driver = Driver(store=store)
    assert driver.books.broker.incarnation == 2
    assert bool(driver.books.devices_of("job-1")) is granted
    fences = {lease.fence for lease in driver.books.leases.values()}
    driver.node(devices=1, incarnation=2)
    driver.report("job-1")
    driver.live(5.0)
    assert driver.held("job-1") == ["cpu0"], "the job is not forgotten and no device is lost"
    if granted:
        assert {lease.fence for lease in driver.books.leases.values()} == fences, "the same lease goes on"
    store.close()
