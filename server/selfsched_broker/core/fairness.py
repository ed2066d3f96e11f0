"""Shares, times alone and shared, and rho: what a job is owed and how far it is from it.

**Share.** All devices are divided among the accounts with a live job by their weights, and
an account's part among its live jobs by their priorities. So splitting a job in ten gains
nothing. Paused jobs are out of it: they want nothing, and their weight leaves the sum. The
share in a job's rho is the average over its life: the arbiter integrates `current_shares`.

**Rate**, in whole runs per second, of a job on n devices, from its standing bid:
(1 - fraction done) / remaining seconds on n. Between device counts with a row it is
linear; below the smallest count m it is rate(m) n/m (the job would run on m devices for
n/m of the time); above the largest it is that of the largest.

**Times.** Alone: 1 / rate(share). Shared on a placement: seconds since registration (pauses
by the owner left out), plus the restart if anything changes, plus what remains. Shared with
nothing: one term more, then the smallest placement.

**rho** = shared / alone, finish-time fairness of Themis (Mahajan et al., NSDI 2020, section
3.1); value v = 1 / rho. Alone cancels from every comparison of one job's placements: it
decides who is considered, and what people read.

Everything here is a pure function of the bid and of the broker's own clock.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from selfsched.protocol import JobState, Placement, StandingBid
from selfsched_broker.core.books import Account, Job
from selfsched_broker.core.market import Contender

# Below these a job is as good as done; they only keep the quotients finite.
_LEAST_SECONDS = 1e-6
_LEAST_FRACTION = 1e-9
_LEAST_SHARE = 1e-9


def current_shares(jobs: Iterable[Job], accounts: Mapping[str, Account], devices: int) -> dict[str, float]:
    """The devices each live job is owed right now; the arbiter integrates it over the life.

    Args:
        jobs: the live jobs; those that are paused get 0 and weigh nothing.
        accounts: by name; an account that is not there weighs 1.
        devices: healthy devices of the cluster.

    Returns:
        Devices (a fraction) by job id; those of jobs that are not paused sum to `devices`.
    """
    everyone = list(jobs)
    active = [job for job in everyone if job.state not in (JobState.PAUSED, JobState.ENDED)]
    weights = {job.account: 1.0 for job in active}
    weights |= {name: accounts[name].weight for name in weights if name in accounts}
    parts = _parts([(job.id, job.account, weights[job.account], job.priority) for job in active])
    return {job.id: devices * parts.get(job.id, 0.0) for job in everyone}


def current_share(job: str, jobs: Iterable[Job], accounts: Mapping[str, Account], devices: int) -> float:
    """What one live job is owed right now, in devices (see `current_shares`)."""
    return current_shares(jobs, accounts, devices).get(job, 0.0)


def weight_parts(contenders: Iterable[Contender]) -> dict[str, float]:
    """Each contender's part of the whole weight, summing to 1; times the devices: its share now."""
    return _parts([(c.job, c.account, c.account_weight, c.priority) for c in contenders])


def _parts(stakes: Sequence[tuple[str, str, float, float]]) -> dict[str, float]:
    priorities: dict[str, float] = defaultdict(float)
    weights: dict[str, float] = {}
    for _, account, weight, priority in stakes:
        priorities[account] += priority
        weights[account] = weight
    total = sum(weights[account] for account in sorted(weights))
    return {job: weight / total * priority / priorities[account] for job, account, weight, priority in stakes}


class Row(NamedTuple):
    """A measured row of a bid. A tuple: the auction of a large cluster makes some hundred thousand."""

    devices: int
    nodes: int
    model: str | None
    remaining_seconds: float
    restart_seconds: float
    sigma_log: float = 0.0
    """Of the logarithm of `remaining_seconds`."""
    information_seconds: float = 0.0
    """What it would save, on average, to have measured this placement before choosing one."""


def is_measured(bid: StandingBid | None) -> bool:
    """Whether the job can bid at all; if not it needs its first visit."""
    return bid is not None and any(row.remaining_seconds is not None for row in bid.rows)


def measured_rows(contender: Contender) -> tuple[Row, ...]:
    """The rows a contender can be judged by, fewest devices first.

    The times are those it bids, corrected by its account's record (`track_record`) and the progress
    that was seen (`metering`). A job
    whose end is unknown bids to the limit it states, or to what stands in for one; its
    rows are taken as they are.
    """
    if contender.bid is None:
        return ()
    sure, factor, factors = contender.claim_sigma_log, contender.claim_factor, contender.claim_factors
    rows = []
    # One plain loop: on a large cluster an auction reads some hundred thousand rows.
    for row in contender.bid.rows:
        claimed, placement = row.remaining_seconds, row.placement
        if claimed is None:
            continue
        seen = _seen_seconds(contender, placement) if contender.claim_paces else None
        rows.append(
            Row(
                placement.devices,
                placement.nodes,
                placement.model,
                claimed * factor * factors.get(placement.devices, 1.0) if seen is None else seen,
                row.restart_seconds,
                row.sigma_log if sure is None else sure,
                # Where the pace was seen a visit is worth nothing: it has been tried.
                row.information_seconds * factor if seen is None else 0.0,
            )
        )
    rows.sort(key=_by_size)
    return tuple(rows)


def _by_size(row: Row) -> tuple[int, int, str]:
    return row.devices, row.nodes, row.model or ""


def _seen_seconds(contender: Contender, placement: Placement) -> float | None:
    """What is left there at the pace that the broker saw."""
    for known, run_seconds in contender.claim_paces:
        alike = (known.devices, known.nodes) == (placement.devices, placement.nodes)
        if alike and placement.model in (None, known.model):
            return run_seconds * max(0.0, 1.0 - contender.fraction_done)
    return None


def rate(rows: Sequence[Row], fraction_done: float, devices: float) -> float:
    """Whole runs per second on a number of devices, which may be a fraction.

    Of several placements of one count the fastest speaks for it.
    """
    undone = max(1.0 - fraction_done, _LEAST_FRACTION)
    rates: dict[int, float] = {}
    for row in rows:
        runs = undone / max(row.remaining_seconds, _LEAST_SECONDS)
        rates[row.devices] = max(runs, rates.get(row.devices, 0.0))
    counts = sorted(rates)
    if devices <= counts[0]:
        return rates[counts[0]] * devices / counts[0]
    for below, above in itertools.pairwise(counts):
        if devices <= above:
            along = (devices - below) / (above - below)
            return (1 - along) * rates[below] + along * rates[above]  # never 0, as a difference may be
    return rates[counts[-1]]


def alone_seconds(contender: Contender, rows: Sequence[Row]) -> float:
    """Time of the whole run on the job's share alone (T_alone)."""
    return 1.0 / rate(rows, contender.fraction_done, max(contender.share, _LEAST_SHARE))


def shared_seconds(
    contender: Contender, rows: Sequence[Row], placement: Row | None, *, moves: bool, term_seconds: float
) -> float:
    """Time of the whole run if the job goes on from here on a placement (T_shared).

    Args:
        contender: the job.
        rows: its measured rows.
        placement: one of them; None: nothing for one term, then the smallest placement.
        moves: whether getting there costs a restart.
        term_seconds: length of a term.
    """
    if placement is None:
        again = rows[0].restart_seconds + rows[0].remaining_seconds
        return contender.age_seconds + term_seconds + again
    restart = restart_cost(rows, placement) if moves else 0.0
    return contender.age_seconds + restart + placement.remaining_seconds


def part_of_term(payment: float, rho_kept: float, rho_won: float) -> float:
    """f: the part of its term that a winner is owed where payments are charged (`charging`).

    Args:
        payment: c.
        rho_kept: rho on what it keeps if it wins nothing; its value is 1 / rho.
        rho_won: rho on what it won.
    """
    kept, won = 1 / max(rho_kept, 1e-300), 1 / max(rho_won, 1e-300)
    if not won > kept or not math.isfinite(won):
        return 1.0
    return min(1.0, max(0.0, (payment * won - kept) / (won - kept)))


def restart_cost(rows: Sequence[Row], placement: Row) -> float:
    """What moving to a placement costs.

    A job bids 0 for the count it is on. Other devices of that count cost a restart all the
    same: the largest it names.
    """
    return placement.restart_seconds or max(row.restart_seconds for row in rows)


def held_row(rows: Sequence[Row], devices: int, nodes: int, model: str | None) -> Row | None:
    """The row that fits best what a job holds; None if there is none for that count."""
    fitting = [row for row in rows if row.devices == devices and row.model in (None, model)]
    return min(fitting, key=lambda row: abs(row.nodes - max(nodes, 1)), default=None)
