"""The warden: ends the ranks' sessions when their supervisor is gone, however it went.

A small process beside the supervisor, run as a bare script (`python -I warden.py`). It
reads lines `+SESSION` and `-SESSION` from its standard input. The end of that input means
that the supervisor is dead; whatever session is still registered then is killed.

`PR_SET_PDEATHSIG` already ends the ranks themselves. It is lost below a `bash -c`, and in
loader workers, which is what the warden is for.
"""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":
    # At the end: what lies beside an installed selfsched must not shadow the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def watch(descriptor: int) -> set[int]:
    """Follow the supervisor's lines to their end; the sessions registered by then."""
    registered: set[int] = set()
    with os.fdopen(descriptor, "rb", closefd=False) as lines:
        for line in lines:
            sign, number = line[:1], line[1:].strip()
            if not line.endswith(b"\n") or not number.isdigit():
                continue  # cut off in mid-line by the supervisor's death
            (registered.add if sign == b"+" else registered.discard)(int(number))
    return registered


def main() -> None:
    """Outlive the supervisor, then end what it left behind."""
    from selfsched.launch import sessions

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    left_behind = watch(0)
    sessions.kill(left_behind, within_seconds=30.0)


if __name__ == "__main__":
    main()
