"""What is played: the live jobs and the devices, taken from the books at one moment.

A job is reduced to its device counts and the median time to its end on each. On several models
a count's time is that of the mean rate over the models, each with its part of the devices;
on one model, that of the placement on the fewest nodes. A running job's times are scaled to its own
forecast, for that is younger than its bid; the others are as policies see them, corrected by the pace
seen and by what the account claimed before.

A job that has not measured itself yet is not left out: it is played by its pace so far, or as its
account's last run of that name, or as the median of the others or of those that finished last; with a wide
spread. Where there is none of these, the time for unknown ends stands in for it, and its own end is not told.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from selfsched.protocol import JobState, Resume
from selfsched_broker.core.ahead.draws import Z90
from selfsched_broker.core.ahead.newcomers import Record, record_of
from selfsched_broker.core.ahead.player import Player, time_on
from selfsched_broker.core.books import Books, Job
from selfsched_broker.core.draft import Context, Draft
from selfsched_broker.core.fairness import Row, is_measured, measured_rows
from selfsched_broker.core.grants import can_be_resized, is_repaid
from selfsched_broker.core.market import Contender, FairnessOptions, repay_factor
from selfsched_broker.core.markets import Stakes, build_market
from selfsched_broker.core.past_runs import held_spans, last_finished, run_seconds
from selfsched_broker.core.shares import age_seconds, share_over_life

MOST_COUNTS = 12
"""Device counts of one job that are played; of more, some in even steps."""
PACE_SIGMA, GUESS_SIGMA = 0.5, 1.0
"""How sure a time is that was taken from the pace so far or an earlier run, or from other jobs (log)."""
STATED_SIGMA = 0.1
MOST_PAST_RUNS = 50
"""Jobs that finished last, from which it is told how long others may take."""
_GUESSED_SCALING = 0.8
"""Speed goes with devices to this power where nothing is known."""
_LEAST_SECONDS = 1e-3
MOST_SECONDS = 1e9
_USUAL = FairnessOptions()
MOST_SIGMA = 4.0


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
    repay_factor: float = _USUAL.repay_factor
    repay_min_seconds: float = _USUAL.repay_min_seconds
    """A move is repaid after so many restarts, and at least so long."""
    record: Record = field(default_factory=Record)
    """Who came of late, for those who may come."""


def take_scene(books: Books, ctx: Context) -> Scene:
    """The books at this moment."""
    jobs = [job for job in books.live_jobs() if job.state is not JobState.PAUSED and job.order == "go_on"]
    models = Counter(
        device.model for device in books.devices.values() if not device.drained and device.sick_at is None
    )
    draft = Draft(books, ctx)
    seen = {c.job: c for c in build_market(draft, "tick", Stakes({}), jobs).contenders} if models else {}
    known = {job.id: times_of(job, seen[job.id], models, ctx.now) for job in jobs if job.id in seen}
    usual = _Usual.of(books, known.values())
    players = tuple(_player(draft, job, known.get(job.id, Times()), usual) for job in jobs)
    return Scene(
        players=players,
        devices=books.healthy_devices,
        policy=ctx.policy.name,
        term_seconds=max(ctx.fairness.term_seconds, 1e-3),
        tick_seconds=max(books.agenda.next_tick_at - ctx.now, 0.0),
        made_at=ctx.now,
        repay_factor=ctx.fairness.repay_factor,
        repay_min_seconds=ctx.fairness.repay_min_seconds,
        record=record_of(books, ctx.now, {player.job: player for player in players}),
    )


@dataclass(frozen=True, slots=True)
class Times:
    """What is known of a job's time to its end, by device count."""

    seconds: Mapping[int, float] = field(default_factory=dict)
    """Median, from now; empty: nothing is measured."""
    sigmas: Mapping[int, float] = field(default_factory=dict)
    """Standard deviation of its logarithm."""


def times_of(job: Job, seen: Contender, models: Mapping[str, int], now: float) -> Times:
    """From its bid, corrected as the policies see it: by its pace and by what its account claimed before.

    Args:
        job: as it stands in the books.
        seen: the same as a policy sees it.
        models: healthy devices of each model.
        now: broker time.
    """
    if job.bid is None or seen.bid is None or not is_measured(job.bid):
        return Times()
    found, sigmas = times_in(measured_rows(seen), models)
    smallest, held = min(found), len(seen.kept)
    here = found.get(held)
    if here is not None and job.state is JobState.RUNNING and not _has_pace(seen, held):
        # What has been worked off since the bid, as a part.
        part = max(1.0 - (now - job.bid_at) / max(here, _LEAST_SECONDS), 0.05)
        found = {n: seconds * part for n, seconds in found.items()}
    kept = {n: seconds for n, seconds in found.items() if n == smallest or n in seen.allowed_devices}
    return Times(kept, sigmas)


def _has_pace(seen: Contender, count: int) -> bool:
    """Whether its time there is told by its fraction done, which is of now."""
    return any(place.devices == count for place, _ in seen.claim_paces)


def times_in(rows: Iterable[Row], models: Mapping[str, int]) -> tuple[dict[int, float], dict[int, float]]:
    """(time, sigma) of each device count in the rows of a bid."""
    rows = list(rows)
    total = sum(models.values()) or 1
    found, sigmas = {}, {}
    for n in sorted({row.devices for row in rows}):
        of = [row for row in rows if row.devices == n]
        best = min(of, key=lambda r: (r.nodes, r.remaining_seconds))
        sigmas[n] = min(best.sigma_log, MOST_SIGMA)
        if len(models) < 2 or all(row.model is None for row in of):
            found[n] = min(max(best.remaining_seconds, _LEAST_SECONDS), MOST_SECONDS)
            continue
        rate = 0.0
        for model, count in models.items():
            on = [row.remaining_seconds for row in of if row.model in (None, model)]
            rate += count / total / max(min(on), _LEAST_SECONDS) if on else 0.0
        found[n] = min(1.0 / rate, MOST_SECONDS) if rate > 0 else MOST_SECONDS
    return found, sigmas


@dataclass(frozen=True, slots=True)
class _Usual:
    """How long jobs take, for those of which nothing is known."""

    runs: Mapping[tuple[str, str], Mapping[int, float]]
    """Of the last run of an account's job of a name: seconds on each count."""
    seconds: float | None
    """Of any, on its fewest devices; None: there is no other job."""

    @classmethod
    def of(cls, books: Books, present: Iterable[Times]) -> _Usual:
        """From the live jobs that have measured themselves, and those that finished last."""
        runs: dict[tuple[str, str], Mapping[int, float]] = {}
        for job in last_finished(books, MOST_PAST_RUNS):
            run = run_seconds(job, held_spans(books, job.id))
            if run:
                runs.setdefault((job.account, job.name), run)
        live = [times.seconds[min(times.seconds)] for times in present if times.seconds]
        least = live or [run[min(run)] for run in runs.values()]
        return cls(runs, median(least) if least else None)


def _player(draft: Draft, job: Job, times: Times, usual: _Usual) -> Player:
    books, now, pulse = draft.books, draft.now, draft.books.job_pulses.get(job.id)
    held = sum(h.state == "held" for h in books.active_of(job.id)) + len(books.claims_of(job.id))
    known = bool(times.seconds)
    done = pulse.fraction_done if pulse else job.fraction_done
    is_stand_in = False
    if not known:
        times, is_stand_in = _guessed(books, draft.ctx, job, usual, done)
    seconds = dict(times.seconds)
    if held and held not in seconds:
        seconds[held] = time_on(seconds, held)
    low, high, common = _spread(times.sigmas, held)
    forecast = pulse.forecast if pulse is not None and known else None
    if held and forecast is not None and pulse is not None:
        since = now - pulse.reported_at
        low_s, middle, high_s = (
            max(_LEAST_SECONDS, q - since)
            for q in (forecast.p10_seconds, forecast.p50_seconds, forecast.p90_seconds)
        )
        measured_on = len(pulse.devices_in_use) or held
        here = seconds.get(measured_on, seconds[held])
        seconds = {n: min(s * middle / here, MOST_SECONDS) for n, s in seconds.items()}
        low, high = low_s / middle, high_s / middle
    counts = _counts(job, seconds, held)
    restarts = [row.restart_seconds for row in job.bid.rows] if job.bid else []
    restart = max(restarts, default=0.0)
    return Player(
        job=job.id,
        number=job.number,
        account=job.account,
        weight=books.accounts[job.account].weight if job.account in books.accounts else 1.0,
        priority=job.priority,
        counts=counts,
        seconds=tuple(seconds[n] for n in counts),
        low=low,
        high=high,
        held=held,
        restart_seconds=restart,
        starting_seconds=_starting_seconds(books, job, restart, now) if held else 0.0,
        age_seconds=age_seconds(job, now),
        fraction_done=min(done, 1.0 - 1e-9),
        share=share_over_life(books, job, now),
        movable=job.resume is Resume.ELASTIC,
        stoppable=job.resume is not Resume.NEVER,
        passed_over=job.passed_over,
        unrepaid_seconds=_unrepaid_seconds(draft, job, restart) if held else 0.0,
        doubts=tuple(_doubt(times.sigmas.get(n, common), common) for n in counts) if known else (),
        known=known,
        is_stand_in=is_stand_in,
    )


def _spread(sigmas: Mapping[int, float], held: int) -> tuple[float, float, float]:
    """(10 %, 90 % over the median, sigma) that all counts have in common: of what it has, or the least."""
    common = sigmas.get(held, min(sigmas.values(), default=0.0))
    return math.exp(-Z90 * common), math.exp(Z90 * common), common


def _doubt(sigma: float, common: float) -> float:
    """What is not known of a count besides what is common to all."""
    return math.sqrt(max(sigma**2 - common**2, 0.0))


def _counts(job: Job, seconds: Mapping[int, float], held: int) -> tuple[int, ...]:
    """The counts it may have: what cannot be resized goes on at its size."""
    size = held or len(job.last_devices)
    if job.resume is not Resume.ELASTIC and size in seconds:
        return (size,)
    return _thinned(tuple(sorted(seconds)), held)


def _starting_seconds(books: Books, job: Job, restart_seconds: float, now: float) -> float:
    """Until its first step on what it holds."""
    if job.state is not JobState.STARTING:
        return 0.0
    since = max((h.since for h in books.active_of(job.id) if h.state == "held"), default=now)
    return max(0.0, restart_seconds - (now - since))


def _unrepaid_seconds(draft: Draft, job: Job, restart_seconds: float) -> float:
    """Until its last move is repaid, if it makes steps all the time."""
    if is_repaid(draft, job):
        return 0.0
    fairness, pulse = draft.ctx.fairness, draft.books.job_pulses.get(job.id)
    steady = pulse.steady_seconds if pulse else job.steady_seconds
    cost = max(job.move_cost_seconds, restart_seconds)
    factor = repay_factor(draft.ctx.policy, fairness, resizable=can_be_resized(job))
    return max(factor * cost, fairness.repay_min_seconds) - steady


def _guessed(books: Books, ctx: Context, job: Job, usual: _Usual, done: float) -> tuple[Times, bool]:
    """(times of a job that has measured nothing, whether nothing at all tells them)."""
    top = min(job.max_devices, max(len(books.devices), job.min_devices))
    counts = tuple(n for n in job.allowed_devices if n <= top) or tuple(range(job.min_devices, top + 1))
    pulse = books.job_pulses.get(job.id)
    held = len(books.devices_of(job.id))
    run = usual.runs.get((job.account, job.name), {})
    sigma, on, is_stand_in = GUESS_SIGMA, counts[0], False
    if job.stated_seconds is not None:
        began = min((lease.granted_at for lease in books.leases_of(job.id)), default=ctx.now)
        seconds, sigma = job.stated_seconds - (ctx.now - began), STATED_SIGMA
    elif pulse is not None and held and done > 0 and pulse.running_since is not None:
        seconds, sigma, on = (1 - done) / done * (ctx.now - pulse.running_since), PACE_SIGMA, held
    elif run:
        return _as_before(run, counts, done), False
    else:
        is_stand_in = usual.seconds is None
        seconds = ctx.fairness.unknown_end_seconds if usual.seconds is None else usual.seconds
    times = {n: max(seconds, 1.0) * (on / n) ** _GUESSED_SCALING for n in counts}
    return Times(times, dict.fromkeys(times, sigma)), is_stand_in


def _as_before(run: Mapping[int, float], counts: Iterable[int], done: float) -> Times:
    """Of what is left of a run like an earlier one."""
    nearest = {n: min(run, key=lambda known: abs(known - n)) for n in counts}
    whole = {n: run[known] * (known / n) ** _GUESSED_SCALING for n, known in nearest.items()}
    left = {n: max(seconds * (1 - done), 1.0) for n, seconds in whole.items()}
    return Times(left, dict.fromkeys(left, PACE_SIGMA))


def _thinned(counts: tuple[int, ...], held: int) -> tuple[int, ...]:
    if len(counts) <= MOST_COUNTS:
        return counts
    last = len(counts) - 1
    kept = {counts[round(at * last / (MOST_COUNTS - 1))] for at in range(MOST_COUNTS)}
    return tuple(sorted(kept | ({held} if held else set())))
