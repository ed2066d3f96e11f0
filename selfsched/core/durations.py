"""Durations as people write them: `90s`, `30m`, `1h30m`, `2d`; a bare number is seconds."""

from __future__ import annotations

import math
import re

from selfsched.errors import Refused
from selfsched.protocol import MAX_SECONDS

_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
_UNIT_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def parse_duration(text: str, option: str) -> float:
    """Seconds in `90s`, `30m`, `1h30m`, `2d`; a bare number is seconds.

    Args:
        text: what was written.
        option: where, for the message.

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
