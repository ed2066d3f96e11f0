"""How people write device counts and durations on a command line."""

from __future__ import annotations

import math
import re

from selfsched.errors import Refused
from selfsched.protocol import MAX_DEVICES, MAX_SECONDS

_RANGE = re.compile(r"^(\d{1,6})(?:-(\d{1,6}))?$")
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
_UNIT_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


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


def parse_duration(text: str, option: str) -> float:
    """Seconds in `90s`, `30m`, `1h30m`, `2d`; a bare number is seconds.

    Raises:
        Refused: anything else; no time at all, or more than a century.

    Example:
        >>> parse_duration("1h30m", "--time")
        5400.0
    """
    stripped = text.strip().lower()
    parts = _PART.findall(stripped)
    if re.fullmatch(r"\d+(?:\.\d+)?", stripped):
        seconds = float(stripped)
    elif parts and "".join(number + unit for number, unit in parts) == stripped:
        seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
    else:
        raise Refused(f"{option} {text!r} is no duration: write 90s, 30m, 1h30m or 2d")
    if not 0 < seconds <= MAX_SECONDS or not math.isfinite(seconds):
        raise Refused(f"{option} {text!r} must be more than nothing and less than a century")
    return seconds
