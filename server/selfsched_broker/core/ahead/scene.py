"""What is played: the live jobs and the devices, taken from the books at one moment.

A job is reduced to its device counts and the median time to its end on each. On several models
a count's time is that of the mean rate over the models, each with its part of the devices;
on one model, that of the placement on the fewest nodes. A running job's times are scaled to its own
forecast, for that is younger than its bid.

A job that has not measured itself yet is not left out: it is played by its pace so far, or as
the median of the others, or by the time that stands in for unknown ends; with a wide spread.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from selfsched.protocol import BidRow, JobState, Resume
from selfsched_broker.core.ahead.draws import Z90
from selfsched_broker.core.books import Books, Job
from selfsched_broker.core.draft import Context
from selfsched_broker.core.shares import age_seconds, share_over_life

MOST_COUNTS = 12
"""Device counts of one job that are played; of more, some in even steps."""
PACE_SIGMA, GUESS_SIGMA = 0.5, 1.0
"""How sure a time is that was taken from the pace so far, or from other jobs (log)."""
_GUESSED_SCALING = 0.8
"""Speed goes with devices to this power where nothing is known."""
_LEAST_SECONDS = 1e-3
MOST_SECONDS = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Player:
    """One job as it is played. Seconds."""

    job: str
    number: int
    account: str
    weight: float
    """Of its account."""
    priority: float = 1.0
    counts: tuple[int, ...]
    """Device counts, ascending."""
    seconds: tuple[float, ...]
    """Median time to its end on each, from now."""
    low: float = 1.0
    """10 % quantile over the median."""
    high: float = 1.0
    """90 % quantile over the median."""
    held: int = 0
    """One of the counts, or 0."""
    restart_seconds: float = 0.0
    starting_seconds: float = 0.0
    """Until its first step on what it holds."""
    age_seconds: float = 0.0
    fraction_done: float = 0.0
    share: float = 0.0
    """Over its life, in devices."""
    movable: bool = True
    """False: keeps what it has to its end."""
    known: bool = True
    """False: it has not measured itself; its times are a guess."""

    @property
    def sigma_log(self) -> float:
        return math.log(max(self.high, 1.0)) / Z90


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """All of it."""

    players: tuple[Player, ...]
    devices: int
    policy: str
    term_seconds: float
    tick_seconds: float
    """Until the next tick."""
    made_at: float = 0.0
    """Broker time."""


def take_scene(books: Books, ctx: Context) -> Scene:
    """The books at this moment."""
    jobs = [job for job in books.live_jobs() if job.state is not JobState.PAUSED and job.order == "go_on"]
    models = Counter(
        device.model for device in books.devices.values() if not device.drained and device.sick_at is None
    )
    known = {job.id: seconds for job in jobs if (seconds := times_of(job, models, ctx.now - job.bid_at))}
    least = [next(iter(seconds.values())) for seconds in known.values()]
    guess = median(least) if least else ctx.fairness.unknown_end_seconds
    players = tuple(_player(books, ctx, job, known.get(job.id, {}), guess) for job in jobs)
    return Scene(
        players=players,
        devices=books.healthy_devices,
        policy=ctx.policy.name,
        term_seconds=max(ctx.fairness.term_seconds, 1e-3),
        tick_seconds=max(books.agenda.next_tick_at - ctx.now, 0.0),
        made_at=ctx.now,
    )


def times_of(job: Job, models: Mapping[str, int], since_seconds: float = 0.0) -> dict[int, float]:
    """Seconds to a job's end from now, by device count, from its bid; empty: nothing is measured."""
    if job.bid is None:
        return {}
    moved = since_seconds if job.state is JobState.RUNNING else 0.0
    found = times_in(job.bid.rows, models)
    here = min(found.values(), default=1.0)
    # What has been worked off since the bid, as a part: the slowest count is not nearer by less.
    part = max(1.0 - moved / max(here, _LEAST_SECONDS), 0.05)
    return {n: seconds * part for n, seconds in found.items() if n == _smallest(found) or _can(job, n)}


def times_in(rows: Iterable[BidRow], models: Mapping[str, int]) -> dict[int, float]:
    """The time of each device count in a bid's rows."""
    measured = [row for row in rows if row.remaining_seconds is not None]
    total = sum(models.values()) or 1
    found = {}
    for n in sorted({row.placement.devices for row in measured}):
        of = [row for row in measured if row.placement.devices == n]
        if len(models) < 2 or all(row.placement.model is None for row in of):
            row = min(of, key=lambda r: (r.placement.nodes, r.remaining_seconds))
            found[n] = min(max(row.remaining_seconds or 0.0, _LEAST_SECONDS), MOST_SECONDS)
            continue
        rate = 0.0
        for model, count in models.items():
            on = [r.remaining_seconds or 0.0 for r in of if r.placement.model in (None, model)]
            rate += count / total / max(min(on), _LEAST_SECONDS) if on else 0.0
        if rate > 0:
            found[n] = min(1.0 / rate, MOST_SECONDS)
    return found


def _smallest(times: Mapping[int, float]) -> int:
    return min(times)


def _can(job: Job, count: int) -> bool:
    within = job.min_devices <= count <= job.max_devices
    return within and (not job.allowed_devices or count in job.allowed_devices)


def _player(books: Books, ctx: Context, job: Job, times: dict[int, float], guess: float) -> Player:
    now, pulse = ctx.now, books.job_pulses.get(job.id)
    held = sum(h.state == "held" for h in books.active_of(job.id)) + len(books.claims_of(job.id))
    known, low, high = bool(times), 1.0, 1.0
    done = pulse.fraction_done if pulse else job.fraction_done
    if not times:
        times, sigma = _guessed(books, ctx, job, guess, done)
        low, high = math.exp(-Z90 * sigma), math.exp(Z90 * sigma)
    elif job.bid is not None:
        sigma = max((row.sigma_log for row in job.bid.rows if row.remaining_seconds is not None), default=0.0)
        low, high = math.exp(-Z90 * min(sigma, 4.0)), math.exp(Z90 * min(sigma, 4.0))
    if held and held not in times:
        times[held] = time_on(times, held)
    forecast = pulse.forecast if pulse is not None and known else None
    if held and forecast is not None and pulse is not None:
        since = now - pulse.reported_at
        low_s, middle, high_s = (
            max(_LEAST_SECONDS, q - since)
            for q in (forecast.p10_seconds, forecast.p50_seconds, forecast.p90_seconds)
        )
        measured_on = len(pulse.devices_in_use) or held
        here = times.get(measured_on, times[held])
        times = {n: min(seconds * middle / here, MOST_SECONDS) for n, seconds in times.items()}
        low, high = low_s / middle, high_s / middle
    counts = _thinned(tuple(sorted(times)), held)
    restarts = [row.restart_seconds for row in job.bid.rows] if job.bid else []
    restart = max(restarts, default=0.0)
    return Player(
        job=job.id,
        number=job.number,
        account=job.account,
        weight=books.accounts[job.account].weight if job.account in books.accounts else 1.0,
        priority=job.priority,
        counts=counts,
        seconds=tuple(times[n] for n in counts),
        low=low,
        high=high,
        held=held,
        restart_seconds=restart,
        starting_seconds=restart if held and job.state is JobState.STARTING else 0.0,
        age_seconds=age_seconds(job, now),
        fraction_done=min(done, 1.0 - 1e-9),
        share=share_over_life(books, job, now),
        movable=job.resume is Resume.ELASTIC,
        known=known,
    )


def _guessed(
    books: Books, ctx: Context, job: Job, guess: float, done: float
) -> tuple[dict[int, float], float]:
    """Times of a job that has measured nothing, and how sure they are."""
    top = min(job.max_devices, max(len(books.devices), job.min_devices))
    counts = tuple(n for n in job.allowed_devices if n <= top) or tuple(range(job.min_devices, top + 1))
    pulse, sigma = books.job_pulses.get(job.id), GUESS_SIGMA
    held = len(books.devices_of(job.id))
    seconds, on = guess, counts[0]
    if job.stated_seconds is not None:
        began = min((lease.granted_at for lease in books.leases_of(job.id)), default=ctx.now)
        seconds, sigma = max(1.0, job.stated_seconds - (ctx.now - began)), 0.1
    elif pulse is not None and held and done > 0 and pulse.running_since is not None:
        seconds, sigma, on = (1 - done) / done * (ctx.now - pulse.running_since), PACE_SIGMA, held
    return {n: max(seconds, 1.0) * (on / n) ** _GUESSED_SCALING for n in counts}, sigma


def time_on(times: Mapping[int, float], count: int) -> float:
    """Time on a count; on one that was not bid for as on the nearest below, or in proportion."""
    below = [n for n in times if n <= count]
    return times[max(below)] if below else times[min(times)] * min(times) / count


def _thinned(counts: tuple[int, ...], held: int) -> tuple[int, ...]:
    if len(counts) <= MOST_COUNTS:
        return counts
    last = len(counts) - 1
    kept = {counts[round(at * last / (MOST_COUNTS - 1))] for at in range(MOST_COUNTS)}
    return tuple(sorted(kept | ({held} if held else set())))
