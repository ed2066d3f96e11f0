"""Random small labs, and what one account of them may lie about.

A lab has some devices on one or several nodes and a few accounts. Jobs arrive as a Poisson process, with
enough work that devices are scarce. Half of them are elastic (any power of two up to four or eight devices,
speed-up n^a, a from 0.6 to 0.95), half a gang of fixed size. Everybody's claims of remaining time are wrong
by a factor of log-standard deviation 0.15 that stays over a job's life: honest people err, too.

The liar is one account with its part of the jobs. Whether it lies or not, the lab of a seed is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from selfsched.protocol import Placement, Resume
from selfsched_simulator.cluster import Cluster, Layout, one_node, parse_cluster
from selfsched_simulator.trace import TraceJob

LIAR = "liar"
NOISE = 0.15
RESTART_SECONDS = 15.0
TERM_SECONDS = 300.0
LOAD = 1.15
"""Work that arrives for each device and second."""
JOBS = {2: 30, 4: 40, 8: 60, 32: 140, 128: 360}
ACCOUNTS = {2: 3, 4: 4, 8: 5, 32: 8, 128: 12}
NODE_DEVICES = 8
EARLY_SECONDS = LATE_SECONDS = 600.0
FACTOR = 3.0
DIVISIBLE = 4
"""Devices that the liar's jobs can use where splitting is looked at."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job that takes so long, and says that it takes otherwise."""

    seconds: Mapping[int, float]
    placements: Mapping[Placement, float]

    def run_seconds(self, layout: Layout) -> float:
        """The truth; infinity on a number of devices it cannot run on."""
        return self.seconds.get(sum(count for _, count in layout), math.inf)


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


def cluster_of(devices: int) -> Cluster:
    """A server of up to eight devices, or several of eight."""
    if devices <= NODE_DEVICES:
        return one_node(devices)
    return parse_cluster(f"{devices // NODE_DEVICES}x{NODE_DEVICES}")


def honest_jobs(devices: int, seed: int, jobs: int | None = None) -> list[TraceJob]:
    """The jobs of a lab as they are."""
    rng = np.random.default_rng([seed, devices])
    count, accounts = jobs or JOBS[devices], ACCOUNTS[devices]
    drawn = [_draw(rng, devices) for _ in range(count)]
    work = sum(min(n * s for n, s in seconds.items()) for seconds, _ in drawn)
    gaps = rng.exponential(work / (LOAD * devices) / count, count)
    arrivals = np.cumsum(gaps) - gaps[0]
    owners = rng.permutation(np.arange(count) % accounts)
    return [
        TraceJob(
            name=f"job-{at}",
            arrival_seconds=float(arrivals[at]),
            speed=_truth(seconds),
            gpus=min(seconds),
            alone_seconds=seconds[min(seconds)],
            account=LIAR if owners[at] == 0 else f"account-{owners[at]}",
            resume=resume,
        )
        for at, (seconds, resume) in enumerate(drawn)
    ]


def _draw(rng: np.random.Generator, devices: int) -> tuple[dict[int, float], Resume]:
    alone = float(np.clip(1500 * np.exp(0.9 * rng.standard_normal()), 120, 9000))
    most, scales = min(devices, 8 if rng.random() < 0.5 else 4), rng.uniform(0.6, 0.95)
    counts = [n for n in (1, 2, 4, 8) if n <= most]
    seconds = {n: alone / n**scales for n in counts}
    if rng.random() < 0.5:
        return seconds, Resume.ELASTIC
    gang = int(rng.choice(counts[:3]))
    return {gang: seconds[gang]}, Resume.SAME_SIZE


def _truth(seconds: Mapping[int, float]) -> Claimed:
    return Claimed(seconds, {Placement(devices=n): s for n, s in seconds.items()})


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
    piece = _truth({1: job.speed.seconds[1] / most})
    return [replace(job, name=f"{job.name}.{at}", speed=piece) for at in range(most)]


def divisible(job: TraceJob) -> TraceJob:
    """The same work on one device as an elastic job without loss by scaling, for a fair look at splitting."""
    assert isinstance(job.speed, Claimed)
    least = min(job.speed.seconds)
    alone = job.speed.seconds[least] * least
    most = min(DIVISIBLE, max(job.speed.seconds)) if least == 1 and len(job.speed.seconds) > 1 else least
    counts = [n for n in (1, 2, 4) if n <= max(most, 2)]
    speed = _truth({n: alone / n for n in counts})
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
    for drawn in honest_jobs(devices, seed, jobs):
        is_liars = drawn.account == LIAR
        job = divisible(drawn) if splits and is_liars else drawn
        pieces = LIES[lie][1](job) if lie and is_liars else [job]
        told += pieces
        if is_liars:
            names = tuple(piece.name for piece in pieces)
            origins.append(Origin(arrival_seconds=job.arrival_seconds, pieces=names))
    told.sort(key=lambda job: job.arrival_seconds)
    return Lab(cluster=cluster_of(devices), jobs=tuple(told), liars=tuple(origins))
