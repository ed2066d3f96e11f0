"""What the doctor says about one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["good", "warning", "bad", "absent"]
"""`absent`: not there, and not needed by everybody."""


@dataclass(frozen=True)
class Finding:
    """One thing looked at, what was found, and what to do."""

    subject: str
    verdict: Verdict
    found: str
    advice: str = ""
    """What to do; empty where nothing is to be done."""
