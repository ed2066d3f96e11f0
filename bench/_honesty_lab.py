"""What one account of a random lab (`_labs`) may lie about.

Everybody's claims of remaining time are wrong by a factor of log-standard deviation 0.15 that stays over a
job's life: honest people err, too. The liar is one account with its part of the jobs. Whether it lies or not,
the lab of a seed is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bench._labs import FIRST_ACCOUNT, Claimed, cluster_of, lab_jobs, truth
from selfsched.protocol import Resume
from selfsched_simulator.cluster import Cluster
from selfsched_simulator.trace import TraceJob

LIAR = FIRST_ACCOUNT
NOISE = 0.15
RESTART_SECONDS = 15.0
TERM_SECONDS = 300.0
EARLY_SECONDS = LATE_SECONDS = 600.0
FACTOR = 3.0
DIVISIBLE = 4
"""Devices that the liar's jobs can use where splitting is looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """A job of the liar as it would be without the lie."""

    arrival_seconds: float
    pieces: tuple[str, ...]
    """The jobs it has become: it is done when all are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lab:
    """Jobs that will arrive, and which of them are the liar's."""

    cluster: Cluster
    jobs: tuple[TraceJob, ...]
    liars: tuple[Origin, ...]


# --- lies --------------------------------------------------------------------------------

Lie = Callable[[TraceJob], list[TraceJob]]


def _claims(scale: Callable[[float], float]) -> Lie:
    """Times claimed are the true ones times a function of devices over the smallest count."""

    def lie(job: TraceJob) -> list[TraceJob]:
        true = job.speed.placements
        least = min(place.devices for place in true)
        claims = {place: s * scale(place.devices / least) for place, s in true.items()}
        assert isinstance(job.speed, Claimed)
        return [replace(job, speed=Claimed(job.speed.seconds, claims))]

    return lie


def _split(job: TraceJob) -> list[TraceJob]:
    """As many jobs as it can use devices, each on one: together as parallel and as fast as it was."""
    assert isinstance(job.speed, Claimed)
    most = max(job.speed.seconds)
    piece = truth({1: job.speed.seconds[1] / most})
    return [replace(job, name=f"{job.name}.{at}", speed=piece) for at in range(most)]


def divisible(job: TraceJob) -> TraceJob:
    """The same work on one device as an elastic job without loss by scaling, for a fair look at splitting."""
    assert isinstance(job.speed, Claimed)
    least = min(job.speed.seconds)
    alone = job.speed.seconds[least] * least
    most = min(DIVISIBLE, max(job.speed.seconds)) if least == 1 and len(job.speed.seconds) > 1 else least
    counts = [n for n in (1, 2, 4) if n <= max(most, 2)]
    speed = truth({n: alone / n for n in counts})
    return replace(job, speed=speed, gpus=1, alone_seconds=alone, resume=Resume.ELASTIC)


def _idle(job: TraceJob) -> list[TraceJob]:
    """It registers before it can start, and holds what it wins until then."""
    early = max(0.0, job.arrival_seconds - EARLY_SECONDS)
    return [replace(job, arrival_seconds=early, ready_seconds=job.arrival_seconds)]


def _late(job: TraceJob) -> list[TraceJob]:
    return [replace(job, arrival_seconds=job.arrival_seconds + LATE_SECONDS)]


LIES: dict[str, tuple[str, Lie]] = {
    "work_understated": ("a third of the remaining work", _claims(lambda _: 1 / FACTOR)),
    "work_inflated": ("three times the remaining work", _claims(lambda _: FACTOR)),
    "speed_overstated": ("n devices are sqrt n times as fast as true", _claims(lambda n: n**-0.5)),
    "speed_understated": ("n devices are sqrt n times as slow as true", _claims(lambda n: n**0.5)),
    "split": ("a job of two or four devices as so many jobs of one", _split),
    "idle": (f"registers {EARLY_SECONDS:.0f} s before it can start, holds what it wins", _idle),
    "late": (f"registers {LATE_SECONDS:.0f} s late", _late),
}
"""What each lie says, and what becomes of a job by it."""


def lab(
    devices: int, seed: int, lie: str | None = None, *, jobs: int | None = None, splits: bool = False
) -> Lab:
    """One lab.

    Args:
        devices: it has.
        seed: of its jobs.
        lie: what the liar does; None: it is honest.
        jobs: how many arrive, if not as usual.
        splits: the liar's jobs are such as lose nothing when they are split.
    """
    told: list[TraceJob] = []
    origins = []
    for drawn in lab_jobs(devices, seed, jobs):
        is_liars = drawn.account == LIAR
        job = divisible(drawn) if splits and is_liars else drawn
        pieces = LIES[lie][1](job) if lie and is_liars else [job]
        told += pieces
        if is_liars:
            names = tuple(piece.name for piece in pieces)
            origins.append(Origin(arrival_seconds=job.arrival_seconds, pieces=names))
    told.sort(key=lambda job: job.arrival_seconds)
    return Lab(cluster=cluster_of(devices), jobs=tuple(told), liars=tuple(origins))
