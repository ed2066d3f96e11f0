"""On what the broker's leases have put a job: the one part of its word that the books can prove.

A job holds several leases at once, and leaves devices one by one. So its placement at a moment
is all that it has a right to then, over all its leases; it changes when a lease is granted, and
when a device is left or lost. What changes at one instant is one change.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from selfsched.protocol import StepStatistics
from selfsched_broker.core.books import Books, Device


@dataclass(frozen=True, slots=True)
class Place:
    """So many devices of one model, on so many nodes."""

    hardware: str
    devices: int
    nodes: int


def place_of(entry: StepStatistics) -> Place:
    """Where the steps of an entry were made, by the job's word."""
    return Place(entry.hardware, entry.placement.devices, entry.placement.nodes)


def places_held(books: Books, jobs: Iterable[str]) -> frozenset[Place]:
    """Every placement that these jobs, each by itself, were ever leased.

    Where a job held devices of several models at once it was on none of them alone: that moment
    is left out.
    """
    return frozenset(place for job in jobs for place in _places_of(books, job))


def _places_of(books: Books, job: str) -> set[Place]:
    found: set[Place] = set()
    held: Counter[Device] = Counter()
    for moved in _moves(books, job):
        held.update(moved)
        there = [device for device, count in held.items() if count > 0]
        if len({device.model for device in there}) == 1:
            found.add(Place(there[0].model, len(there), len({device.node for device in there})))
    return found


def _moves(books: Books, job: str) -> list[Counter[Device]]:
    """What a job got (1) and lost (-1) at each instant, in order."""
    at: dict[float, Counter[Device]] = defaultdict(Counter)
    for lease in books.all_leases_of(job):
        for holding in books.all_holdings_of(lease.id):
            device = books.devices.get(holding.device)
            if device is None:
                continue
            at[lease.granted_at][device] += 1
            if holding.left_at is not None:
                at[holding.left_at][device] -= 1
    return [at[instant] for instant in sorted(at)]


def device_seconds_by_model(books: Books, job: str, now: float) -> dict[str, float]:
    """What a job was leased over its life, by device model."""
    seconds: dict[str, float] = defaultdict(float)
    for lease in books.all_leases_of(job):
        for holding in books.all_holdings_of(lease.id):
            device = books.devices.get(holding.device)
            if device is not None:
                left_at = now if holding.left_at is None else holding.left_at
                seconds[device.model] += left_at - lease.granted_at
    return dict(seconds)


def jobs_named(books: Books, wanted: Collection[tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    """Ids of the jobs in the books by (account, name), for those that are wanted.

    One that is submitted again under its name goes on with what it measured under earlier ids.
    """
    found: dict[tuple[str, str], list[str]] = {key: [] for key in wanted}
    for job in books.jobs.values():
        key = (job.account, job.name)
        if key in found:
            found[key].append(job.id)
    return found
