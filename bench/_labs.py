"""Random jobs for benches: small labs, and a machine room. Nothing is measured here.

*Labs* (`lab_jobs`) have some devices on one or several nodes and a few accounts. Jobs arrive as a Poisson
process, with enough work that devices are scarce. Half of them are elastic (any power of two up to four or
eight devices, speed-up n^a, a from 0.6 to 0.95), half a gang of fixed size.

The *room* (`mixed_jobs`) has 16 devices on two nodes; how much work arrives and how much of it is elastic is
the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from selfsched.protocol import Placement, Resume
from selfsched_simulator.cluster import Cluster, Layout, one_node, parse_cluster
from selfsched_simulator.speeds import by_count
from selfsched_simulator.trace import Trace, TraceJob

FIRST_ACCOUNT = "liar"
"""Of each lab; the others are numbered."""
LOAD = 1.15
"""Work that arrives in a lab for each device and second."""
LAB_JOBS = {2: 30, 4: 40, 8: 60, 32: 140, 128: 360}
LAB_ACCOUNTS = {2: 3, 4: 4, 8: 5, 32: 8, 128: 12}
NODE_DEVICES = 8
ROOM, ROOM_DEVICES = "2x8", 16
MEDIAN_SECONDS, SPREAD = 1500.0, 1.1
"""In the room, of the time on one device, or of a gang's: lognormal."""
GANG_SIZES, GANG_PARTS = (1, 2, 4, 8), (0.5, 0.25, 0.17, 0.08)
ELASTIC_COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job that takes so long, and says that it takes so long or otherwise."""

    seconds: Mapping[int, float]
    placements: Mapping[Placement, float]

    def run_seconds(self, layout: Layout) -> float:
        """The truth; infinity on a number of devices it cannot run on."""
        return self.seconds.get(sum(count for _, count in layout), math.inf)


def cluster_of(devices: int) -> Cluster:
    """A server of up to eight devices, or several of eight."""
    if devices <= NODE_DEVICES:
        return one_node(devices)
    return parse_cluster(f"{devices // NODE_DEVICES}x{NODE_DEVICES}")


def lab_jobs(devices: int, seed: int, jobs: int | None = None) -> list[TraceJob]:
    """Jobs of a small lab: short of devices, half of them elastic, of a few accounts.

    Args:
        devices: one of `LAB_JOBS`.
        seed: of the draws.
        jobs: how many arrive, if not as usual.
    """
    rng = np.random.default_rng([seed, devices])
    count, accounts = jobs or LAB_JOBS[devices], LAB_ACCOUNTS[devices]
    drawn = [_draw(rng, devices) for _ in range(count)]
    work = sum(min(n * s for n, s in seconds.items()) for seconds, _ in drawn)
    gaps = rng.exponential(work / (LOAD * devices) / count, count)
    arrivals = np.cumsum(gaps) - gaps[0]
    owners = rng.permutation(np.arange(count) % accounts)
    return [
        TraceJob(
            name=f"job-{at}",
            arrival_seconds=float(arrivals[at]),
            speed=truth(seconds),
            gpus=min(seconds),
            alone_seconds=seconds[min(seconds)],
            account=FIRST_ACCOUNT if owners[at] == 0 else f"account-{owners[at]}",
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


def truth(seconds: Mapping[int, float]) -> Claimed:
    return Claimed(seconds, {Placement(devices=n): s for n, s in seconds.items()})


def mixed_jobs(jobs: int, seed: int, *, load: float, elastic: float) -> Trace:
    """Jobs of a shared machine room. The same draws of a seed whatever is asked.

    Args:
        jobs: how many arrive.
        seed: of the draws.
        load: work that arrives, over what `ROOM_ROOM_DEVICES` can do.
        elastic: part of the jobs that may be resized.
    """
    rng = np.random.default_rng(seed)
    draws = [
        (
            rng.exponential(), rng.normal(), rng.random(), rng.choice(GANG_SIZES, p=GANG_PARTS),
            rng.uniform(0.6, 0.95),
        )
        for _ in range(jobs)
    ]  # fmt: skip
    seconds = [float(MEDIAN_SECONDS * np.exp(SPREAD * normal)) for _, normal, *_ in draws]
    work = sum(
        time * (1 if chance < elastic else size)
        for time, (_, _, chance, size, _) in zip(seconds, draws, strict=True)
    )
    gap = work / jobs / ROOM_DEVICES / load
    now, rows = 0.0, []
    for number, (wait, _, chance, size, exponent) in enumerate(draws):
        is_elastic = chance < elastic
        # An elastic job's time is that on one device: it has as much work as a gang of the same draw.
        times = {n: seconds[number] / n**exponent for n in ELASTIC_COUNTS} if is_elastic else {}
        gpus = 2 if is_elastic else int(size)
        times = times or {gpus: seconds[number]}
        rows.append(
            TraceJob(
                name=f"job-{number:03d}", arrival_seconds=now, gpus=gpus, alone_seconds=times[gpus],
                speed=by_count(times, parse_cluster(ROOM)),
                resume=Resume.ELASTIC if is_elastic else Resume.SAME_SIZE,
            )
        )  # fmt: skip
        now += float(wait) * gap
    return Trace(kind="elastic" if elastic else "rigid", jobs=tuple(rows))
