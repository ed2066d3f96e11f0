"""Who may come: others like those of late, at intervals like theirs.

Nobody can know who will come; what is known is who came. In each world things go on as they did in some
stretch of the record: it begins at a random instant of it, and whoever registered after that comes as much
later now; where the record ends, another stretch begins (a moving-block bootstrap: Kuensch, Annals of
Statistics 17, 1989). So arrivals keep their own rhythm. Where they are as good as independent it is a Poisson
process of the rate of late; where forty came at once and nobody since, hardly a world has newcomers. How
often they come is itself known to one part in the root of their number only: each world's time is stretched
by a draw of that.

A newcomer is as one of those was: with its device counts, its account, and the time that its run took, or
is going to take. It bids that time: first visits are not played. A short record, or one with few jobs, tells
nothing: then nobody is expected, and it is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from selfsched.protocol import Resume
from selfsched_broker.core.ahead.player import Player
from selfsched_broker.core.books import Books, Job
from selfsched_broker.core.past_runs import held_spans, run_seconds

Floats = NDArray[np.float64]

RECORD_SECONDS = 86_400.0
"""How far back it goes."""
LEAST_SECONDS, LEAST_JOBS = 3600.0, 6
"""A record that is shorter, or of fewer jobs, tells nothing."""
MOST_JOBS = 64
"""The newest ones only."""
MOST_NEWCOMERS = 24
"""In one world."""
_MOST_STRETCHES = 8
_LEAST_LEFT = 0.05
_SEED = 1989


@dataclass(frozen=True, slots=True)
class Record:
    """Who came of late."""

    seconds: float = 0.0
    """How long it is."""
    came: tuple[tuple[float, Player], ...] = ()
    """(seconds from its beginning, the job as it would be if it came now), ascending."""

    @property
    def per_hour(self) -> float:
        """How many are expected to come within an hour; 0: it tells nothing."""
        return len(self.came) / self.seconds * 3600 if self.came else 0.0


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Who comes in which world, and when."""

    players: tuple[Player, ...]
    came_at: Floats
    """(R, J) seconds from now; infinite where one does not come."""


def record_of(books: Books, now: float, present: Mapping[str, Player]) -> Record:
    """Who has registered of late, from the books.

    Args:
        books: as they are.
        now: broker time.
        present: the live jobs as they are played, by id.
    """
    recent = sorted(
        (job for job in books.jobs.values() if now - RECORD_SECONDS <= job.registered_at < now),
        key=lambda job: job.number,
    )
    begun = max(0.0, now - RECORD_SECONDS)
    if len(recent) > MOST_JOBS:
        recent = recent[-MOST_JOBS:]
        begun = recent[0].registered_at
        recent = recent[1:]
    if now - begun < LEAST_SECONDS or len(recent) < LEAST_JOBS:
        return Record()
    known = ((job.registered_at - begun, _again(books, job, present.get(job.id))) for job in recent)
    came = tuple((at, player) for at, player in known if player is not None)
    # Whose run is not known came all the same: the others stand for them.
    return Record((now - begun) * len(came) / len(recent), _stretched(came, len(came) / len(recent)))


def _stretched(came: Iterable[tuple[float, Player]], factor: float) -> tuple[tuple[float, Player], ...]:
    return tuple((at * factor, player) for at, player in came)


def _again(books: Books, job: Job, present: Player | None) -> Player | None:
    """The job as it would be if it came now; None where nobody knows how long it takes."""
    if job.live:
        if present is None or not present.known or present.fraction_done > 1 - _LEAST_LEFT:
            return None
        whole = {
            n: s / (1 - present.fraction_done) for n, s in zip(present.counts, present.seconds, strict=True)
        }
        restart = present.restart_seconds
    else:
        whole = run_seconds(job, held_spans(books, job.id))
        restart = max((row.restart_seconds for row in (job.bid.rows if job.bid else ())), default=0.0)
    if job.resume is not Resume.ELASTIC and len(job.last_devices) in whole:
        whole = {len(job.last_devices): whole[len(job.last_devices)]}
    counts = tuple(sorted(n for n in whole if job.min_devices <= n <= job.max_devices))
    if not counts:
        return None
    owner = books.accounts.get(job.account)
    return Player(
        job="", number=0, account=job.account, weight=owner.weight if owner else 1.0, priority=job.priority,
        counts=counts, seconds=tuple(max(whole[n], 1.0) for n in counts), restart_seconds=restart,
        movable=job.resume is Resume.ELASTIC, stoppable=job.resume is not Resume.NEVER,
    )  # fmt: skip


def draw_newcomers(record: Record, worlds: int, first_number: int) -> Newcomers:
    """Who comes in each of some worlds. The same each time, and more worlds begin with the same ones.

    Args:
        record: who came of late.
        worlds: how many.
        first_number: of the first newcomer; those who are there have lower ones.
    """
    if not record.came:
        return Newcomers((), np.full((worlds, 0), np.inf))
    order = sorted(range(len(record.came)), key=lambda at: _work(record.came[at][1]))
    seats = [order[int((m + 0.5) * len(order) / MOST_NEWCOMERS)] for m in range(MOST_NEWCOMERS)]
    rank = {at: place / len(order) * MOST_NEWCOMERS for place, at in enumerate(order)}
    came_at = np.full((worlds, MOST_NEWCOMERS), np.inf)
    for world in range(worlds):
        free = np.ones(MOST_NEWCOMERS, dtype=bool)
        for seconds, at in _arrivals(record, np.random.default_rng([_SEED, world])):
            apart = np.where(free, np.abs(np.arange(MOST_NEWCOMERS) - rank[at]), np.inf)
            seat = int(apart.argmin())
            free[seat] = False
            came_at[world, seat] = seconds
    used = np.isfinite(came_at).any(axis=0)
    players = tuple(
        replace(record.came[seats[m]][1], job=f"newcomer-{m}", number=first_number + m)
        for m in np.flatnonzero(used).tolist()
    )
    return Newcomers(players, came_at[:, used])


def _work(player: Player) -> float:
    return min(n * seconds for n, seconds in zip(player.counts, player.seconds, strict=True))


def _arrivals(record: Record, rng: np.random.Generator) -> list[tuple[float, int]]:
    """(seconds from now, place in the record) of the first newcomers of one world."""
    found: list[tuple[float, int]] = []
    now = 0.0
    # As many as came would have been more or fewer by chance: the rate is known to 1 / sqrt(n) only.
    slower = len(record.came) / rng.gamma(len(record.came))
    for _ in range(_MOST_STRETCHES):
        begins = float(rng.uniform(0.0, record.seconds))
        found += [(now + at - begins, n) for n, (at, _) in enumerate(record.came) if at > begins]
        now += record.seconds - begins
    return [(seconds * slower, at) for seconds, at in found[:MOST_NEWCOMERS]]
