"""How long an auction takes and how good it is: `python -m bench.auction [--json] [--quick]`.

Random markets (elastic jobs with concave and odd tables, gangs, some holding devices already)
are divided by the policy's own code, payments included. `proved_gap` is the bound the auction
itself reports, in log value per considered job. `small` compares 200 random markets of two
kinds (one node; three nodes with packing) with the MILP optimum. `payment_error` compares
payments by counts with solving again without each winner by MILP.

The auction is exact and meant for a lab: thousands of devices are refused, not approximated.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from selfsched.protocol import BidRow, Placement, Resume, StandingBid
from selfsched_broker.core.allocation import Question, divide, solve_milp
from selfsched_broker.core.auction import hold_auction, standings_of
from selfsched_broker.core.choices import survey, write_choices
from selfsched_broker.core.fairness import weight_parts
from selfsched_broker.core.market import Contender, FairnessOptions, Market, Seat

REPEATS = 5
SMALL_INSTANCES = 200
MOST_CHOICES = 50_000
"""Jobs x nodes x counts that the exact solver is asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Small:
    """Random small markets against the MILP optimum."""

    instances: int
    gap_mean: float
    gap_p99: float
    optimum_ms_median: float
    proved_fraction: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The contract of `bench.auction --json`."""

    gpus: int
    jobs: int
    seconds: float
    compile_s: float
    with_payments: bool
    proved_gap: float
    peak_mib: float
    small: Small | None
    payment_error: list[dict[str, float]] | None


def random_market(rng: np.random.Generator, *, gpus: int, nodes: int, models: int, jobs: int) -> Market:
    """A market of elastic jobs and gangs; a third of the devices is held."""
    per_node = [gpus // nodes + (node < gpus % nodes) for node in range(nodes)]
    seats = [
        Seat(device=f"n{node:04}/{i}", node=f"n{node:04}", model=f"m{node % models}", holder=None)
        for node, count in enumerate(per_node)
        for i in range(count)
    ]
    contenders: list[Contender] = []
    held: dict[str, str] = {}
    for number in range(jobs):
        smallest = int(rng.choice([1, 1, 1, 2, 4]))
        largest = max(smallest, int(rng.choice([1, 2, 4, 8])))
        contender = _contender(rng, number, smallest, min(largest, max(per_node)))
        start = number * 3
        mine = seats[start : start + smallest]
        if (
            rng.random() < 0.5
            and len(mine) == smallest
            and len({seat.node for seat in mine}) == 1
            and smallest <= 3
        ):
            held |= {seat.device: contender.job for seat in mine}
            contender = replace(contender, at_stake=tuple(seat.device for seat in mine))
        contenders.append(contender)
    return Market(
        number=int(rng.integers(1, 10**6)),
        trigger="tick",
        seats=tuple(replace(seat, holder=held.get(seat.device)) for seat in seats),
        contenders=tuple(contenders),
        total_devices=gpus,
        # Everybody is considered: the largest question these jobs can ask.
        options=FairnessOptions(fairness_knob=0.0),
    )


def _contender(rng: np.random.Generator, number: int, smallest: int, largest: int) -> Contender:
    smallest = min(smallest, largest)
    work, power = rng.lognormal(7.5, 1.0), rng.uniform(0.1, 1.0)
    counts = tuple(range(smallest, largest + 1))
    odd = {n: 1.0 if n & (n - 1) == 0 else rng.uniform(1.0, 1.4) for n in counts}
    rows = tuple(
        BidRow(
            placement=Placement(devices=n),
            remaining_seconds=float(work / n**power * odd[n]),
            restart_seconds=float(rng.uniform(1, 60)),
        )
        for n in counts
    )
    return Contender(
        job=f"j{number:05}",
        number=number,
        account=f"u{number % 17}",
        account_weight=1.0,
        priority=float(rng.choice([1.0, 1.0, 2.0])),
        min_devices=smallest,
        max_devices=largest,
        allowed_devices=counts,
        resume=Resume.ELASTIC,
        bid=StandingBid(rows=rows),
        age_seconds=float(rng.uniform(0, 5000)),
        fraction_done=float(rng.uniform(0, 0.9)),
        share=1.0,
        waiting_seconds=float(rng.uniform(0, 600)),
    )


def question_of(market: Market) -> Question:
    """What is divided when everybody is considered."""
    owed = {job: part * market.total_devices for job, part in weight_parts(market.contenders).items()}
    standings = list(standings_of(market, owed, {}).values())
    ground = survey(market.seats, market)
    return Question(ground.seats, write_choices(standings, ground, market))


def run_small(seed: int) -> Small:
    """Gap of the geometric mean value, exp((S_best - S) / J) - 1, over mixed markets."""
    rng = np.random.default_rng(seed)
    gaps, times, proved = [], [], 0
    for at in range(SMALL_INSTANCES):
        nodes, jobs = 3 if at % 2 else 1, int(rng.integers(4, 16))
        question = question_of(random_market(rng, gpus=8 * nodes, nodes=nodes, models=1, jobs=jobs))
        ours = divide(question)
        began = time.perf_counter()
        best = solve_milp(question)[1]
        times.append(1000 * (time.perf_counter() - began))
        gaps.append(max(0.0, math.expm1((best - ours.gain) / jobs)))
        proved += ours.bound - ours.gain <= 1e-9
    return Small(
        instances=SMALL_INSTANCES,
        gap_mean=statistics.fmean(gaps),
        gap_p99=float(np.quantile(gaps, 0.99)),
        optimum_ms_median=statistics.median(times),
        proved_fraction=proved / SMALL_INSTANCES,
    )


def run_payment_error(seed: int, gpus: int = 64, jobs: int = 20) -> list[dict[str, float]]:
    """Welfare of the others without each winner: by counts against solving again by MILP."""
    rng = np.random.default_rng(seed)
    question = question_of(random_market(rng, gpus=gpus, nodes=1, models=1, jobs=jobs))
    errors = []
    for winner, others in divide(question, method="counts").without.items():
        rest = {job: choices for job, choices in question.choices.items() if job != winner}
        again = solve_milp(Question(question.seats, rest))[0]
        difference = sum(again[job].welfare - choice.welfare for job, choice in others.items())
        errors.append(abs(1.0 - math.exp(difference)))
    return [{"devices": gpus, "mean": statistics.fmean(errors), "max": max(errors)}]


def run(options: argparse.Namespace) -> Result:
    """Time the auction on one market, and unless `--quick` measure the rest."""
    rng = np.random.default_rng(options.seed)
    market = random_market(
        rng, gpus=options.gpus, nodes=options.nodes, models=options.models, jobs=options.jobs
    )
    seconds, ruling = [], hold_auction(market)
    for _ in range(REPEATS):
        began = time.perf_counter()
        ruling = hold_auction(market)
        seconds.append(time.perf_counter() - began)
    winners = [award for award in ruling.awards.values() if award.devices]
    return Result(
        gpus=options.gpus,
        jobs=options.jobs,
        seconds=statistics.median(seconds),
        compile_s=0.0,
        with_payments=all(award.payment is not None for award in winners),
        proved_gap=ruling.gap or 0.0,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        small=None if options.quick else run_small(options.seed),
        payment_error=None if options.quick else run_payment_error(options.seed),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or with `--json` one object."""
    parser = argparse.ArgumentParser(prog="python -m bench.auction", description=__doc__)
    parser.add_argument("--gpus", type=int, default=32)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--models", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    parser.add_argument("--quick", action="store_true", help="leave out `small` and `payment_error`")
    options = parser.parse_args(arguments)
    if min(options.gpus, options.nodes, options.models, options.jobs) < 1 or options.nodes > options.gpus:
        parser.error("counts must be at least 1, and no node may be empty")
    if options.jobs * options.nodes * 8 > MOST_CHOICES:
        parser.error(
            f"{options.jobs} jobs on {options.nodes} nodes are more than the exact auction is made for"
            f" (jobs x nodes x 8 <= {MOST_CHOICES}); larger clusters are not supported yet"
        )
    result = run(options)
    if options.json:
        print(json.dumps(asdict(result)))
        return 0
    paid = "payments included" if result.with_payments else "payments not computed at this size"
    print(f"auction of {result.gpus} devices among {result.jobs} jobs")
    print(f"  time           {result.seconds * 1000:8.1f} ms, {paid}")
    print(f"  proved gap     {result.proved_gap:8.3%}, peak memory {result.peak_mib:.0f} MiB")
    if result.small is not None and result.payment_error is not None:
        print(
            f"  small markets  {result.small.gap_p99:8.3%} gap (99th percentile of {result.small.instances})"
        )
        print(f"  payments       {result.payment_error[0]['max']:8.3%} largest error")
    return 0


if __name__ == "__main__":
    sys.exit(main())
