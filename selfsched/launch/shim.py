"""Become a rank's command, tied to the supervisor and to its cores.

Run as a bare script: `python -I shim.py PARENT CORES COMMAND...`. Doing this here, and not
between fork and exec in the supervisor, keeps Python code out of the child of a process
that has threads. Both settings outlive `exec`.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # At the end: what lies beside an installed selfsched must not shadow the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def main(arguments: list[str]) -> None:
    """Tie this process to its parent and cores, then exec the command."""
    from selfsched.launch.parenthood import die_with_parent, pin

    parent, cores, *command = arguments
    die_with_parent(int(parent))
    pin(tuple(int(core) for core in cores.split(",") if core))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"selfsched: {command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main(sys.argv[1:])
