"""A log that turns while it is read: nothing is lost, nothing read twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from selfsched.elastic.run_directory import BoundedLog
from selfsched.elastic.tail import Tail


@pytest.fixture
def log(tmp_path: Path) -> Iterator[BoundedLog]:
    made = BoundedLog(tmp_path / "log", limit_bytes=100)
    yield made
    made.close()


@pytest.fixture
def tail(tmp_path: Path) -> Iterator[Tail]:
    made = Tail(tmp_path / "log")
    yield made
    made.close()


def rest(tail: Tail) -> bytes:
    return b"".join(iter(tail.read, b""))


def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path: Path, tail: Tail) -> None:
    assert rest(tail) == b""
    log = BoundedLog(tmp_path / "log", limit_bytes=100)
    log.write(b"first\n")
    assert rest(tail) == b"first\n"
    log.write(b"second\n")
    assert rest(tail) == b"second\n"
    log.close()


def test_a_reader_that_keeps_up_sees_all_over_many_turns(log: BoundedLog, tail: Tail) -> None:
    lines = [f"line {number:03}\n".encode() for number in range(100)]
    seen = b""
    for line in lines:
        log.write(line)
        if line[-2:-1] in b"37":  # looks now and then
            seen += rest(tail)
    assert seen + rest(tail) == b"".join(lines)


def test_a_late_reader_begins_with_the_older_file(log: BoundedLog, tail: Tail) -> None:
    for number in range(15):
        log.write(f"line {number:03}\n".encode())
    assert rest(tail).count(b"\n") == 15


def test_who_sleeps_over_two_turns_loses_the_middle_and_goes_on(log: BoundedLog, tail: Tail) -> None:
    log.write(b"first\n")
    assert rest(tail) == b"first\n"
    for number in range(60):
        log.write(f"line {number:03}\n".encode())
    seen = rest(tail)
    assert seen.startswith(b"line 000\n"), "the file that was open is read to its end"
    assert seen.endswith(b"line 059\n")
    log.write(b"last\n")
    assert rest(tail) == b"last\n"


@pytest.mark.parametrize(("count", "first"), [(1000, 0), (135, 0), (99, 4), (54, 9), (27, 12), (9, 14)])
def test_one_may_begin_before_the_end(log: BoundedLog, tail: Tail, count: int, first: int) -> None:
    for number in range(15):
        log.write(f"line {number:03}\n".encode())  # 9 bytes: 11 in the older file, 4 in the newer
    assert tail.skip_to_last(count) is (first > 0)
    assert rest(tail).startswith(f"line {first:03}\n".encode())
