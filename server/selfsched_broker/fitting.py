"""The fit over many jobs, in a process of its own.

It takes seconds of arithmetic. In a thread of the broker it would hold up heartbeats; in a
process it can be stopped at any moment, and a fit that fails, crashes or does not come to an
end takes nothing with it. It reads the evidence from standard input, writes its lessons to
standard output, and ends: also when its broker is gone. Jobs and accounts are numbers to it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from tempfile import TemporaryFile
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError

from selfsched_broker.core.lessons import Lesson, learn
from selfsched_broker.core.past_records import JobEvidence

LONGEST_FIT_SECONDS = 600
_LOOK_SECONDS = 0.1
_GENTLE = 10
"""How much a fit gives way to everything else (`nice`)."""


class FitFailed(Exception):
    """There are no lessons. The message says why, for the log."""


class FitStopped(Exception):
    """It was told to stop."""


def fit_apart(evidence: Sequence[JobEvidence], stop: threading.Event) -> tuple[Lesson, ...]:
    """Learn from the evidence in a process of its own.

    Args:
        evidence: oldest first.
        stop: end it when this is set.

    Raises:
        FitFailed: it ended without an answer, or took too long.
        FitStopped: `stop` was set.
    """
    keys = [job.key for job in evidence]
    accounts = {account: str(number) for number, account in enumerate({job.account: 0 for job in evidence})}
    nameless = [
        replace(job, account=accounts[job.account], name=str(number)) for number, job in enumerate(evidence)
    ]
    answer = _run(_adapter(list[JobEvidence]).dump_json(nameless), stop)
    try:
        lessons: list[Lesson] = _adapter(list[Lesson]).validate_json(answer)
    except ValidationError as error:
        raise FitFailed(f"the fit gave no lessons: {error.error_count()} faults in its answer") from error
    named = {job.key: key for job, key in zip(nameless, keys, strict=True)}
    return tuple(
        replace(
            lesson,
            without=named[lesson.without] if lesson.without else "",
            jobs=tuple(named[job] for job in lesson.jobs),
        )
        for lesson in lessons
    )


def _run(question: bytes, stop: threading.Event) -> bytes:
    # Files, not pipes: a pipe holds 64 KiB, and would have to be fed while the process is waited for.
    with TemporaryFile() as given, TemporaryFile() as answer, TemporaryFile() as said:
        try:
            given.write(question)
            given.seek(0)
            process = _start(given, answer, said)
        except OSError as error:
            raise FitFailed(f"no process for the fit: {error}") from error
        code = _wait(process, stop)
        answer.seek(0)
        said.seek(0)
        if code != 0:
            last = said.read().decode(errors="replace").strip().rpartition("\n")[2][:500]
            raise FitFailed(f"the fit ended with {code}: {last}")
        return answer.read()


def _start(given: IO[bytes], answer: IO[bytes], said: IO[bytes]) -> subprocess.Popen[bytes]:
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "selfsched_broker.fitting"],
        stdin=given, stdout=answer, stderr=said, env={**os.environ, **single}, start_new_session=True,
    )  # fmt: skip


def _wait(process: subprocess.Popen[bytes], stop: threading.Event) -> int:
    """The exit code; FitStopped when it was told to stop."""
    with process:
        try:
            while not stop.is_set():
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(_LOOK_SECONDS)
        finally:
            process.kill()
    raise FitStopped


def _adapter(kind: Any) -> TypeAdapter[Any]:  # of a list of dataclasses: mypy knows no name for these
    return TypeAdapter(kind)


def main() -> None:
    """Read evidence, write lessons. A fit without an end is ended by an alarm."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.alarm(LONGEST_FIT_SECONDS)
    os.nice(_GENTLE)
    evidence = _adapter(list[JobEvidence]).validate_json(sys.stdin.buffer.read())
    sys.stdout.buffer.write(_adapter(list[Lesson]).dump_json(list(learn(evidence))))


if __name__ == "__main__":
    main()
