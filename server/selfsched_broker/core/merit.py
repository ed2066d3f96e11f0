"""What a policy goes by, of one job, and how its owner is told (`reasons`, where a policy has such words).

A merit is made of the job's own figures and of its place among all. Of another job a reader learns
whether it is shorter, how late it is against its fair time (public, as shares and rho are), or that the
end of all work depends on it; never a time that it bid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Merit:
    """Why a job comes before others, or after them."""

    kind: Literal["short", "late", "critical"]
    """What weighs most of it."""
    remaining_seconds: float
    """By its own bid, as the policy takes it."""
    place: int
    """Among all jobs by what remains; the shortest has 1."""
    jobs: int
    lateness: float
    """What it will have taken over its fair time."""
    late_from: float
    """The lateness that outweighs shortness."""


def because(merit: Merit) -> str:
    """What speaks for a job."""
    if merit.kind == "late":
        return f"late: {_lateness(merit)} its fair time, and from {merit.late_from:g} on lateness comes first"
    if merit.kind == "critical":
        return f"when all work is done depends on yours: {_seconds(merit)} remain"
    return f"short jobs first: {_seconds(merit)} remain, {_place(merit)}"


def against(ours: Merit, theirs: Merit, who: str) -> str:
    """Why another job has what this one does not.

    Args:
        ours: of the job whose owner reads it.
        theirs: of the other.
        who: the other, in words.
    """
    if theirs.kind == "late" and theirs.lateness > ours.lateness:
        return f"{who} is late: {_lateness(theirs)} its fair time, yours {ours.lateness:.2f} times"
    if theirs.kind == "critical" and ours.kind != "critical":
        return f"when all work is done depends on the job of {who}; of yours {_seconds(ours)} remain"
    if theirs.place < ours.place:
        return f"the job of {who} is shorter: of yours {_seconds(ours)} remain, {_place(ours)}"
    return (
        "all jobs together make more of the devices like this; of yours"
        f" {_seconds(ours)} remain, {_place(ours)}, and {_lateness(ours)} its fair time"
    )


def _lateness(merit: Merit) -> str:
    return f"it will have taken {merit.lateness:.2f} times"


def _seconds(merit: Merit) -> str:
    return f"{merit.remaining_seconds:,.0f} s" if merit.remaining_seconds >= 10 else "less than 10 s"


def _place(merit: Merit) -> str:
    if merit.place == 1:
        return f"the shortest of {merit.jobs}" if merit.jobs > 1 else "the only job"
    if merit.place == merit.jobs:
        return f"the longest of {merit.jobs}"
    return f"the {_ordinal(merit.place)} shortest of {merit.jobs}"


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
