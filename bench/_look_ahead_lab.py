"""Labs that are simulated to their end while scenes are taken from the broker's books, and what came.

A scene is taken after what the broker decided at an instant: an arrival, an end or a tick, which is when
the broker itself looks ahead. Simulated jobs make no forecast of their own; each bids its times from its
arrival on, wrong by a factor of log-standard deviation `NOISE` that stays over its life, and says so.

A lab is *open*: jobs arrive all the time, and what is foreseen knows of none that comes later. Twice as many
arrive as are counted, and scenes are taken while the middle half of them comes: before, the broker has no
record of who comes, and after, nobody comes any more. Or it is *closed*: all jobs are there from the start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from bench._honesty_lab import NOISE, RESTART_SECONDS, TERM_SECONDS
from bench._labs import cluster_of, lab_jobs
from selfsched.protocol import Forecast
from selfsched_broker.core.ahead.draws import Z90
from selfsched_broker.core.ahead.newcomers import Record
from selfsched_broker.core.ahead.player import Player
from selfsched_broker.core.ahead.scene import Scene, take_scene
from selfsched_broker.core.draft import Context
from selfsched_broker.core.look_ahead import foresee
from selfsched_broker.core.policies import policy_named
from selfsched_simulator.engine import Simulation
from selfsched_simulator.job import Habits, SimulatedJob
from selfsched_simulator.options import SimulationOptions
from selfsched_simulator.wire import Said

REPORT_SECONDS = 30.0
EVERY_SECONDS = 400.0
"""Between two scenes of a run, at least."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """One forecast beside what came. Seconds from when it was made."""

    waits: bool
    """Whether the job had no device."""
    ahead: tuple[float, float, float]
    """10, 50 and 90 % of its end, foreseen."""
    as_now: tuple[float, float, float] | None
    """On the devices that it had; None: it had none."""
    starts: tuple[float, float, float] | None
    """Foreseen, of one that waits."""
    ends_in: float
    """What came."""
    started_in: float


@dataclass(slots=True)
class Witness:
    """Takes scenes while it listens to a simulation."""

    every: float
    within: tuple[float, float] = (0.0, math.inf)
    """Seconds from and to which scenes are taken."""
    scenes: list[Scene] = field(default_factory=list)
    simulation: Simulation | None = None
    _next_at: float = 0.0

    def hear(self, said: Said) -> None:
        """Keep the books as they are after the last decision of an instant."""
        first, last = self.within
        if said.call != "advance" or self.simulation is None or not first <= said.at_seconds <= last:
            return
        at_once = bool(self.scenes) and self.scenes[-1].made_at == said.at_seconds
        if not at_once and said.at_seconds < self._next_at:
            return
        scene = take_scene(self.simulation.books, _context(self.simulation, said.at_seconds))
        if at_once:
            self.scenes[-1] = scene
        else:
            self.scenes.append(scene)
            self._next_at = said.at_seconds + self.every


def _context(simulation: Simulation, now: float) -> Context:
    rules = simulation.rules
    return Context(
        now=now, options=rules.lease, policy=rules.policy, fairness=rules.fairness,
        rng=np.random.default_rng(0),
    )  # fmt: skip


def run_lab(devices: int, seed: int, policy: str, *, closed: bool, jobs: int) -> list[Held]:
    """Simulate one lab; all forecasts of all its scenes, beside what came."""
    if closed:
        trace = [replace(job, arrival_seconds=0.0) for job in lab_jobs(devices, seed, jobs)]
        witness = Witness(EVERY_SECONDS)
    else:
        trace = lab_jobs(devices, seed, 2 * jobs)
        arrivals = sorted(job.arrival_seconds for job in trace)
        witness = Witness(EVERY_SECONDS, (arrivals[jobs // 2], arrivals[3 * jobs // 2]))
    options = SimulationOptions(
        cluster=cluster_of(devices),
        habits=Habits(restart_seconds=RESTART_SECONDS, noise=NOISE, seed=seed),
        term_seconds=TERM_SECONDS,
        report_seconds=REPORT_SECONDS,
    )
    witness.simulation = Simulation(trace, policy_named(policy), options, listener=witness.hear)
    witness.simulation.run()
    return [held for scene in witness.scenes for held in _hold(scene, witness.simulation.jobs)]


def _hold(scene: Scene, jobs: dict[str, SimulatedJob]) -> Iterator[Held]:
    told = foresee(scene)
    for player in scene.players:
        finish, start, job = told[player.job].finish, told[player.job].start, jobs[player.job]
        if finish is None or job.finished_at is None or job.finished_at <= scene.made_at:
            continue
        seated = (at for at, devices in job.history if devices and at >= scene.made_at)
        yield Held(
            waits=not player.held,
            ahead=quantiles_of(finish),
            as_now=as_now(player),
            starts=quantiles_of(start) if start is not None and not player.held else None,
            ends_in=job.finished_at - scene.made_at,
            started_in=next(seated, scene.made_at) - scene.made_at,
        )


def quantiles_of(forecast: Forecast) -> tuple[float, float, float]:
    """10, 50 and 90 %, in seconds."""
    return forecast.p10_seconds, forecast.p50_seconds, forecast.p90_seconds


def as_now(player: Player) -> tuple[float, float, float] | None:
    """The end on the devices that it has, as if these stayed; None: it has none."""
    if not player.held:
        return None
    median = player.seconds[player.counts.index(player.held)]
    low, middle, high = (player.starting_seconds + f * median for f in (player.low, 1.0, player.high))
    return low, middle, high


def random_record(seed: int, jobs: int, devices: int) -> Record:
    """Who came of late: as much work as the devices can do, one job after the other."""
    came = random_scene(seed, jobs, devices, "").players
    work = sum(min(n * s for n, s in zip(p.counts, p.seconds, strict=True)) for p in came)
    apart = work / devices / jobs
    fresh = (replace(p, held=0, age_seconds=0.0, fraction_done=0.0) for p in came)
    return Record(jobs * apart, tuple(((at + 0.5) * apart, player) for at, player in enumerate(fresh)))


def random_scene(seed: int, jobs: int, devices: int, policy: str) -> Scene:
    """Live jobs as they might be: half of them elastic, seats taken by the first ones."""
    rng = np.random.default_rng([seed, jobs, devices])
    free, players = devices, []
    for number in range(1, jobs + 1):
        alone = float(np.clip(3000 * np.exp(0.9 * rng.standard_normal()), 60, 30_000))
        most, scaling = int(min(devices, rng.choice((2, 4, 8)))), rng.uniform(0.6, 0.95)
        elastic = rng.random() < 0.5
        counts = tuple(n for n in (1, 2, 4, 8) if n <= most) if elastic else (int(min(most, 2)),)
        held = counts[0] if counts[0] <= free else 0
        free -= held
        spread = float(np.exp(Z90 * NOISE))
        players.append(
            Player(
                job=f"job-{number}", number=number, account=f"account-{number % 5}", weight=1.0,
                counts=counts, seconds=tuple(alone / n**scaling for n in counts), low=1 / spread, high=spread,
                held=held, restart_seconds=RESTART_SECONDS, age_seconds=float(rng.uniform(0, 3000)),
                fraction_done=float(rng.uniform(0, 0.9)), share=devices / jobs, movable=elastic,
            )
        )  # fmt: skip
    tick = float(rng.uniform(0, TERM_SECONDS))
    return Scene(
        players=tuple(players), devices=devices, policy=policy, term_seconds=TERM_SECONDS, tick_seconds=tick
    )
