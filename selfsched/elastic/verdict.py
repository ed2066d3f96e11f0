"""How a segment ended, judged from its ranks' exits and last words. Pure.

When one rank fails, the others fail after it: their collectives break, and then we end
them. What the user must see is the *first* cause, once. In order of what explains most:

1. a rank *refused* (nothing was trained);
2. a rank *raised* something of its own;
3. a rank *died* without a word (a signal nobody here sent);
4. a rank *exited* with a code and no report: its output holds the reason;
5. a rank raised because a collective broke, or its loader's worker was killed, with no
   other rank to blame.

1, 2 and 4 are the program's: trying again would give the same. 3 and 5 are *faults*: the
run goes on from its newest complete checkpoint.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from selfsched.core.events import Left, RankRaised, RankRefused
from selfsched.errors import EXIT_FAILED, EXIT_WRONG_USE, EXIT_YIELDED

_BROKEN_COLLECTIVE = (
    "connection closed by peer", "connection reset by peer", "connection refused", "broken pipe",
    "gloo", "nccl", "processgroup", "process group", "tcpstore", "socket timeout", "store->get",
)
_WORKER_KILLED = (
    "is killed by signal: killed", "dataloader worker (pid(s)", "pin memory thread exited unexpectedly",
)
_PORT_TAKEN = ("eaddrinuse", "address already in use", "errno: 98")


@dataclass(frozen=True)
class RankEnd:
    """What is known of one rank whose process is gone."""

    rank: int
    status: int
    """Exit code, or minus the signal."""
    was_ended_by_us: bool = False
    left: Left | None = None
    raised: RankRaised | None = None
    refused: RankRefused | None = None
    last_words: str = ""
    """The end of what it printed, where that was not shown already."""
    is_shown: bool = False
    """The user has seen on its standard error what it raised."""


@dataclass(frozen=True)
class Verdict:
    """How the segment ended as a whole."""

    kind: Literal["finished", "left", "refused", "failed", "fault", "port_taken"]
    words: str = ""
    """One line: which rank, and why."""
    traceback: str = ""
    """Of the rank that raised, or its last output."""
    exit_code: int = 0
    left: Left | None = None
    out_of_memory: bool = False
    """It failed because memory ran out."""


def judge(ends: Sequence[RankEnd], *, memory_ran_out: bool = False) -> Verdict:
    """The verdict on a segment whose ranks are all gone.

    Args:
        ends: One for each rank of the segment.
        memory_ran_out: The kernel's out-of-memory killer struck here while it ran.
    """
    world = len(ends)
    if not ends:
        return Verdict("fault", "no rank could be started", exit_code=EXIT_FAILED)
    for end in ends:
        if end.refused is not None:
            return Verdict("refused", end.refused.message, exit_code=EXIT_WRONG_USE)
    # A program that ends well although a fit raised has caught it.
    raised = [end for end in ends if end.raised is not None and end.status != 0]
    if any(_mentions(end, _PORT_TAKEN) for end in raised):
        return Verdict("port_taken", "another program took the port of this segment's ranks")
    own = [end for end in raised if not (_mentions(end, _BROKEN_COLLECTIVE) or _lost_worker(end))]
    if own:
        return _raised(own[0], world)
    silent = [end for end in ends if end.status < 0 and not end.was_ended_by_us]
    if silent:
        return Verdict("fault", _death(silent[0], world, memory_ran_out), exit_code=EXIT_FAILED)
    if (exited := _unreported_exit(ends)) is not None:
        return _exited(exited, world)
    if raised and not any(end.left for end in ends):
        return _came_from_outside(raised, world)
    return _orderly(ends, world)


def _raised(end: RankEnd, world: int) -> Verdict:
    assert end.raised is not None
    raised = end.raised
    what = f"{raised.type}: {raised.message}".rstrip(": ")
    if raised.out_of_memory:
        what = f"out of memory: {what}"
    shown = "" if end.is_shown else raised.traceback
    words = f"rank {end.rank} of {world} raised {what}"
    return Verdict("failed", words, shown, EXIT_FAILED, out_of_memory=raised.out_of_memory)


def _death(end: RankEnd, world: int, memory_ran_out: bool) -> str:
    who = f"rank {end.rank} of {world}"
    if memory_ran_out and end.status == -signal.SIGKILL:
        return f"{who} was killed by the system: out of memory"
    return f"{who} {_without_a_word(-end.status)}"


def _without_a_word(number: int) -> str:
    words = f"died without a word (signal {number})"
    return f"{words}, often the kernel's out-of-memory killer" if number == signal.SIGKILL else words


def _unreported_exit(ends: Sequence[RankEnd]) -> RankEnd | None:
    """A rank that exited with a code of its own and said nothing; rank 0 before others."""
    for end in ends:
        if end.status > 0 and end.status != EXIT_YIELDED and end.raised is None and not end.was_ended_by_us:
            return end
    return None


def _exited(end: RankEnd, world: int) -> Verdict:
    # A shell reports its child's death by a signal as a code above 128.
    if end.status - 128 in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT):
        words = f"rank {end.rank} of {world} {_without_a_word(end.status - 128)}"
        return Verdict("fault", words, exit_code=EXIT_FAILED)
    words = f"rank {end.rank} of {world} ended with exit code {end.status}"
    return Verdict("failed", words, end.last_words, end.status)


def _came_from_outside(raised: Sequence[RankEnd], world: int) -> Verdict:
    end = next((end for end in raised if _lost_worker(end)), raised[0])
    assert end.raised is not None
    start = "a loader's worker died" if _lost_worker(end) else "the ranks lost each other"
    words = f"{start}: rank {end.rank} of {world} raised {end.raised.type}: {end.raised.message}".rstrip(": ")
    return Verdict("fault", words, end.raised.traceback, EXIT_FAILED)


def _orderly(ends: Sequence[RankEnd], world: int) -> Verdict:
    left = next((end.left for end in ends if end.left is not None), None)
    # A shell may have swallowed the exit code; that the rank said it left is enough.
    if left is not None or any(end.status == EXIT_YIELDED for end in ends):
        return Verdict("left", exit_code=EXIT_YIELDED, left=left)
    if all(end.status == 0 for end in ends):
        return Verdict("finished")
    ended = next(end for end in ends if end.status != 0)
    return Verdict("fault", f"rank {ended.rank} of {world} did not end by itself", exit_code=EXIT_FAILED)


def _lost_worker(end: RankEnd) -> bool:
    assert end.raised is not None
    return end.raised.lost_worker or _mentions(end, _WORKER_KILLED)


def _mentions(end: RankEnd, phrases: Sequence[str]) -> bool:
    assert end.raised is not None
    text = f"{end.raised.type} {end.raised.message}".lower()
    return any(phrase in text for phrase in phrases)
