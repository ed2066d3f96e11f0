"""What `bench.auction` measures: time, gaps, payments, and what plainer ways reach on the same questions."""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from bench._auction_markets import Size, options_of, random_market
from selfsched_broker.core.auction import hold_auction
from selfsched_broker.core.options import Options
from selfsched_broker.core.partition import EXACT_PAYMENTS, divide_options, settle, solve_options
from selfsched_broker.core.solver.exact import Effort, solve_milp
from selfsched_broker.core.solver.packing import Board
from selfsched_broker.core.solver.problem import Problem, Solution
from selfsched_broker.core.solver.rounding import fallbacks
from selfsched_broker.core.solver.search import fill

T = TypeVar("T")
REPEATS = 5
# What an integer programme over everything is given before it counts as too slow.
PEER_SECONDS = 20.0
MOST_PEER_OPTIONS = 40_000
_PROVED = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One size. Gaps are fractions of the geometric mean value: exp(gap in log value per job) - 1."""

    gpus: int
    nodes: int
    models: int
    jobs: int
    options: int
    seconds: float
    """The division from its options to devices on nodes and payments, median."""
    cpu_seconds: float
    """The same by the process's own clock: on a busy machine `seconds` counts the others' work too."""
    ruling_seconds: float
    """The whole auction, from bids to an award with its reason for everybody, median."""
    ruling_cpu_seconds: float
    proved_gap: float
    peak_mib: float
    milp_seconds: float | None
    """Integer programming over all options, no payments; None: not tried, or too slow."""
    milp_gap: float | None
    """What it finds over what the auction finds."""
    greedy_seconds: float
    greedy_loss: float
    """What a greedy loses against the auction."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Small:
    """Random small markets against the MILP optimum."""

    instances: int
    gap_mean: float
    gap_p99: float
    optimum_ms_median: float
    """Of those with 64 devices and 40 jobs: milliseconds to the proved optimum."""
    proved_fraction: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PaymentError:
    """|error in c| against solving again without each winner."""

    devices: int
    jobs: int
    winners: int
    mean: float
    max: float
    by_prices_mean: float
    """The same for what the prices tell, before any exact payment."""
    settled: bool
    """Whether the auction computes exact payments at this size."""
    settle_ms: float
    """Milliseconds for each winner that is settled."""


def measure(size: Size, seed: int) -> Run:
    """Time one size, and its peers on the plain product of values (no guaranteed shares)."""
    market = random_market(np.random.default_rng(seed), size)
    options = options_of(market)
    division = divide_options(options)
    began = time.process_time()
    seconds = [_timed(lambda: divide_options(options))[0] for _ in range(REPEATS)]
    cpu_seconds = (time.process_time() - began) / REPEATS
    began = time.process_time()
    rulings = [_timed(lambda: hold_auction(market))[0] for _ in range(REPEATS)]
    ruling_cpu_seconds = (time.process_time() - began) / REPEATS
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    plain, ours = solve_options(replace(options, urgency=np.zeros(size.jobs)), Effort())
    greedy_seconds, greedy = _timed(lambda: greedy_gain(plain))
    milp_seconds = milp_gain = None
    if len(plain.gain) <= MOST_PEER_OPTIONS:
        milp_seconds, milp_gain = _timed(lambda: optimum(plain))
    return Run(
        gpus=size.gpus,
        nodes=size.nodes,
        models=size.models,
        jobs=size.jobs,
        options=len(plain.gain),
        seconds=statistics.median(seconds),
        cpu_seconds=cpu_seconds,
        ruling_seconds=statistics.median(rulings),
        ruling_cpu_seconds=ruling_cpu_seconds,
        proved_gap=math.expm1(max(0.0, division.bound - division.gain) / size.jobs),
        peak_mib=peak,
        milp_seconds=milp_seconds if milp_gain is not None else None,
        milp_gap=None if milp_gain is None else math.expm1((milp_gain - ours.gain) / size.jobs),
        greedy_seconds=greedy_seconds,
        greedy_loss=math.expm1((ours.gain - greedy) / size.jobs),
    )


def optimum(problem: Problem) -> float | None:
    """By integer programming over all options; None: not within the time."""
    everything = np.ones(len(problem.gain), bool)
    effort = Effort(milp_seconds=PEER_SECONDS, milp_nodes=10**6)
    chosen, bound = solve_milp(problem, everything, effort)
    if chosen is None:
        return None
    gain = float(problem.gain[chosen].sum())
    return gain if bound - gain <= _PROVED else None


def greedy_gain(problem: Problem) -> float:
    """The most gain for a device first, as long as it fits; then whatever single move still helps."""
    board, idle = Board(problem), fallbacks(problem)
    for job in range(problem.jobs):
        board.take(job, int(idle[job]))
    size = np.tile(np.arange(1, problem.width + 1), problem.models)
    asked = np.maximum((problem.bundles @ size)[problem.bundle], 1)
    worth = (problem.gain - problem.gain[idle][problem.job]) / asked
    for option in np.argsort(-worth, kind="stable").tolist():
        job = problem.job_of(option)
        if worth[option] > 0 and board.chosen[job] == idle[job]:
            board.try_swap(job, option)
    fill(board)
    return board.gain()


def run_small(seed: int, instances: int) -> Small:
    """Gap of the geometric mean value, exp((S_best - S) / J) - 1, over mixed families."""
    rng = np.random.default_rng(seed)
    gaps, times, proved = [], [], 0
    for at in range(instances):
        nodes, models, jobs = FAMILIES[at % len(FAMILIES)]
        size = Size(8 * nodes, nodes, models, jobs)
        options = options_of(random_market(rng, size, held=float(rng.choice([0.0, 0.6]))))
        plain = replace(options, urgency=np.zeros(jobs))
        seconds, (problem, ours) = _timed(partial(solve_options, plain, Effort()))
        best = optimum(problem)
        if best is None:
            raise RuntimeError(f"the oracle did not prove instance {at} within {PEER_SECONDS:g} s")
        if (size.gpus, jobs) == (64, 40):
            times.append(1000 * seconds)
        gaps.append(max(0.0, math.expm1((best - ours.gain) / jobs)))
        proved += ours.gap <= _PROVED
    return Small(
        instances=instances,
        gap_mean=statistics.fmean(gaps),
        gap_p99=float(np.quantile(gaps, 0.99)),
        optimum_ms_median=statistics.median(times),
        proved_fraction=proved / instances,
    )


FAMILIES = ((1, 1, 5), (8, 2, 40), (2, 1, 12), (8, 4, 40), (4, 2, 20), (8, 1, 40), (8, 1, 8), (6, 3, 30))
"""(nodes of eight devices, models, jobs)."""


def run_payment_error(size: Size, seed: int, winners: int) -> PaymentError:
    """Payments of some winners against the best division of everything among the others."""
    rng = np.random.default_rng(seed)
    options = options_of(random_market(rng, size))
    # Both ends of a difference must be optimal, or it is noise.
    utmost = Effort(few_jobs=size.jobs, milp_seconds=PEER_SECONDS, milp_nodes=10**6)
    problem, solution = solve_options(options, utmost)
    priced = divide_options(options, effort=utmost).harm
    settles = size.gpus <= EXACT_PAYMENTS
    taken, exact = _timed(lambda: dict(settle(options, problem, solution)) if settles else {})
    sample = sorted(priced)
    if len(sample) > winners:
        sample = sorted(rng.choice(sample, winners, replace=False).tolist())
    at = {standing.job: number for number, standing in enumerate(options.standings)}
    errors, rough = [], []
    for name in sample:
        job = at[name]
        true = _payment(_true_harm(options, problem, solution, job), options.standings[job].weight)
        by_prices = _payment(priced[name], options.standings[job].weight)
        paid = _payment(exact[name], options.standings[job].weight) if settles else by_prices
        errors.append(abs(paid - true))
        rough.append(abs(by_prices - true))
    return PaymentError(
        devices=size.gpus,
        jobs=size.jobs,
        winners=len(sample),
        mean=statistics.fmean(errors),
        max=max(errors),
        by_prices_mean=statistics.fmean(rough),
        settled=settles,
        settle_ms=1000 * taken / max(len(exact), 1),
    )


def _true_harm(options: Options, problem: Problem, solution: Solution, job: int) -> float:
    """What the others lose by a winner: integer programming over all options of the others."""
    first, last = int(problem.first[job]), int(problem.first[job + 1])
    gone = np.zeros(problem.bundles.shape[1], np.int64)
    empty = int(np.flatnonzero((problem.bundles == gone).all(axis=1))[0])
    bundle, loose, anchor = problem.bundle.copy(), problem.loose.copy(), problem.anchor.copy()
    bundle[first:last], loose[first:last], anchor[first:last] = empty, empty, -1
    rest = replace(problem, bundle=bundle, loose=loose, anchor=anchor)
    others = np.arange(problem.jobs) != job
    kept = np.ones(len(problem.gain), bool)
    kept[first + 1 : last] = False
    chosen, _ = solve_milp(rest, kept, Effort(milp_seconds=PEER_SECONDS, milp_nodes=10**6))
    if chosen is None:
        raise RuntimeError("the oracle found no division without a winner")
    with_it = options.welfare[solution.chosen[others]].sum()
    return float(options.welfare[chosen[others]].sum() - with_it)


def _payment(harm: float, weight: float) -> float:
    return math.exp(-max(0.0, harm) / weight)


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    answer = work()
    return time.perf_counter() - began, answer
