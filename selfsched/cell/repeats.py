"""What each restart of a run prints anew: its libraries' greetings and warnings, said once in a cell.

A segment is a new process, so what torch and Lightning say before the first step comes again with
each. A line that an earlier segment has already printed to standard error before its first step is
left out; numbers in it (times, ranks, processes) do not count. All of it stays in the run's
`output.log`. Pure.
"""

from __future__ import annotations

import re

MOST_KEPT = 500
_NUMBERS = re.compile(r"\d+")


class Repeats:
    """Knows what was said before the first step of earlier segments."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._fresh: set[str] = set()
        """Said by the segment that starts now."""
        self._is_starting = True
        self._is_cut = False
        """Whether the last piece ended within a line."""

    def segment_began(self) -> None:
        """What comes now is said before its first step."""
        self._known |= self._fresh
        self._fresh = set()
        self._is_starting = True

    def stepped(self) -> None:
        """Whatever comes from now on is of the training itself."""
        self._is_starting = False

    def without(self, text: str) -> str:
        """A piece of standard error without the whole lines that are repeated."""
        if not self._is_starting:
            return text
        kept = []
        for line in text.splitlines(keepends=True):
            begins, self._is_cut = not self._is_cut, not line.endswith("\n")
            if not (begins and line.endswith("\n") and self._is_repeated(line)):
                kept.append(line)
        return "".join(kept)

    def _is_repeated(self, line: str) -> bool:
        plain = _NUMBERS.sub("0", line).strip()
        if plain and len(self._known) + len(self._fresh) < MOST_KEPT:
            self._fresh.add(plain)
        return bool(plain) and plain in self._known
