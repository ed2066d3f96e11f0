"""How a segment's end is judged: the first cause, once, and whether trying again makes sense."""

from __future__ import annotations

import pytest

from selfsched.core.events import Left, RankRaised, RankRefused
from selfsched.elastic.verdict import RankEnd, judge


def raised(rank: int, message: str = "boom", kind: str = "ValueError", **more: bool) -> RankRaised:
    return RankRaised(rank=rank, type=kind, message=message, traceback="Traceback", **more)


LOST = "[gloo] Connection closed by peer [127.0.0.1]:4242"
KILLED = "DataLoader worker (pid 7) is killed by signal: Killed. "
LEFT = Left(rank=0, step=7, reason="ordered")

CASES = {
    "all end by themselves": ([RankEnd(0, 0), RankEnd(1, 0)], "finished", "", 0),
    "all leave": ([RankEnd(0, 75, left=LEFT), RankEnd(1, 75)], "left", "", 75),
    "a shell swallowed the code": ([RankEnd(0, 0, left=LEFT)], "left", "", 75),
    "a straggler was ended after the others left": (
        [RankEnd(0, 75, left=LEFT), RankEnd(1, -9, was_ended_by_us=True)], "left", "", 75,
    ),
    "one leaves, the other loses it": (
        [RankEnd(0, 75, left=LEFT), RankEnd(1, 1, raised=raised(1, LOST, "RuntimeError"))], "left", "", 75,
    ),
    "a rank refuses": (
        [RankEnd(0, 2, refused=RankRefused(rank=0, message="no fsdp")), RankEnd(1, -9, was_ended_by_us=True)],
        "refused", "no fsdp", 2,
    ),
    "a rank raises and the other loses it": (
        [RankEnd(0, 1, raised=raised(0, LOST, "RuntimeError")), RankEnd(1, 1, raised=raised(1))],
        "failed", "rank 1 of 2 raised ValueError: boom", 1,
    ),
    "memory of a device runs out": (
        [RankEnd(0, 1, raised=raised(0, "CUDA out of memory", "OutOfMemoryError", out_of_memory=True))],
        "failed", "rank 0 of 1 raised out of memory: OutOfMemoryError: CUDA out of memory", 1,
    ),
    "a rank dies and the other loses it": (
        [RankEnd(0, 1, raised=raised(0, LOST, "RuntimeError")), RankEnd(1, -9)],
        "fault", "rank 1 of 2 died without a word (signal 9), often the kernel's out-of-memory killer", 1,
    ),
    "a rank below a shell dies": (
        [RankEnd(0, 137), RankEnd(1, -9, was_ended_by_us=True)],
        "fault", "rank 0 of 2 died without a word (signal 9), often the kernel's out-of-memory killer", 1,
    ),
    "the program exits with a code": ([RankEnd(0, 3)], "failed", "rank 0 of 1 ended with exit code 3", 3),
    "the ranks lose each other": (
        [RankEnd(0, 1, raised=raised(0, LOST, "RuntimeError"))],
        "fault", f"the ranks lost each other: rank 0 of 1 raised RuntimeError: {LOST}", 1,
    ),
    "a loader's worker is killed": (
        [RankEnd(0, 1, raised=raised(0, KILLED, "RuntimeError"))],
        "fault", f"a loader's worker died: rank 0 of 1 raised RuntimeError: {KILLED}".rstrip(), 1,
    ),
    "a loader's worker is gone before its batch is fetched, and the other rank loses this one": (
        [RankEnd(0, 1, raised=raised(0, LOST, "RuntimeError")),
         RankEnd(1, 1, raised=raised(1, "", "EOFError", lost_worker=True))],
        "fault", "a loader's worker died: rank 1 of 2 raised EOFError", 1,
    ),
    "a program catches what its fit raised": ([RankEnd(0, 0, raised=raised(0))], "finished", "", 0),
    "no process could be started": ([], "fault", "no rank could be started", 1),
    "the port is taken": (
        [RankEnd(0, 1, raised=raised(0, "EADDRINUSE, address already in use", "DistNetworkError"))],
        "port_taken", "another program took the port of this segment's ranks", 0,
    ),
    "a rank never ended": ([RankEnd(0, 0), RankEnd(1, -9, was_ended_by_us=True)], "fault",
                           "rank 1 of 2 did not end by itself", 1),
}  # fmt: skip


@pytest.mark.parametrize(("ends", "kind", "words", "code"), CASES.values(), ids=CASES.keys())
def test_the_first_cause_is_named(ends: list[RankEnd], kind: str, words: str, code: int) -> None:
    verdict = judge(ends)
    assert (verdict.kind, verdict.words, verdict.exit_code) == (kind, words, code)


def test_the_kernels_out_of_memory_killer_is_named() -> None:
    verdict = judge([RankEnd(0, -9)], memory_ran_out=True)
    assert verdict.words == "rank 0 of 1 was killed by the system: out of memory"
    assert judge([RankEnd(0, -11)], memory_ran_out=True).words.endswith("(signal 11)")


def test_last_words_stand_in_for_a_traceback() -> None:
    verdict = judge([RankEnd(0, 0), RankEnd(1, 4, last_words="no such file")])
    assert verdict.traceback == "no such file"
