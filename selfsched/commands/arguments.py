"""How people write device counts and durations on a command line."""

from __future__ import annotations

import re
from collections.abc import Iterable

from selfsched.core.durations import parse_duration
from selfsched.core.whole_run import MOST_COUNTS
from selfsched.errors import Refused
from selfsched.protocol import MAX_DEVICES

__all__ = ["parse_counts", "parse_devices", "parse_duration"]

_RANGE = re.compile(r"^(\d{1,6})(?:-(\d{1,6}))?$")


def parse_devices(text: str) -> tuple[int, int]:
    """Smallest and largest number of devices.

    Raises:
        Refused: not `N` or `N-M` with 1 <= N <= M.

    Example:
        >>> parse_devices("1-4"), parse_devices("2")
        ((1, 4), (2, 2))
    """
    found = _RANGE.match(text.strip())
    if found is None:
        raise Refused(f"--devices {text!r} is no number of devices: write 2, or 1-4 for one to four")
    low, high = int(found[1]), int(found[2] or found[1])
    if not 1 <= low <= high <= MAX_DEVICES:
        raise Refused(f"--devices {text!r}: at least 1, and the smaller number first, as in 1-4")
    return low, high


def parse_counts(texts: Iterable[str]) -> tuple[int, ...]:
    """Numbers of devices out of lists and ranges, each once, in the order in which they were said.

    Args:
        texts: each like `1,2,4`, `1-4` or `2`.

    Raises:
        Refused: not that, or too many.

    Example:
        >>> parse_counts(["1,2", "4-6"])
        (1, 2, 4, 5, 6)
    """
    found: dict[int, None] = {}
    for part in (part for text in texts for part in text.split(",")):
        low, high = parse_devices(part)
        found |= dict.fromkeys(range(low, min(high, low + MOST_COUNTS) + 1))  # one too many is refused
    if len(found) > MOST_COUNTS:
        raise Refused(f"--devices: at most {MOST_COUNTS} counts in one question")
    return tuple(found)
