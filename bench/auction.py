"""How long an auction takes and how good it is: `python -m bench.auction [--json] [--quick]`.

Random markets (gangs, odd tables, several models, some devices held) are divided by the policy's
own code. `seconds` is the division with payments for all: from the options of the jobs to the
devices on nodes; `ruling_seconds` the whole auction, from bids to an award with its reason for
everybody. `proved_gap` is the bound that comes with each auction. `small` compares 200 random
markets with integer programming over everything; `payment_error` payments with solving again
without each winner. Peers, on the same questions in the same run: integer programming (HiGHS)
over everything, and a greedy by gain for a device.

`--picture FILE` draws how time grows with size. Everything runs on one core if the numerical
libraries are told so (OMP_NUM_THREADS=1).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench._auction_markets import Size
from bench._auction_score import (
    MOST_PEER_OPTIONS,
    PEER_SECONDS,
    PaymentError,
    Run,
    Small,
    measure,
    run_payment_error,
    run_small,
)
from selfsched_simulator.runs import native_output_aside

SMALL_INSTANCES = 200
LADDER = (
    Size(8, 1, 1, 5),
    Size(64, 8, 2, 40),
    Size(512, 64, 3, 128),
    Size(1024, 128, 3, 256),
    Size(4096, 512, 3, 1024),
    Size(16_384, 2048, 3, 4096),
    Size(65_536, 8192, 3, 16_384),
)
PAYMENTS = (
    (Size(64, 8, 2, 40), 99),
    (Size(128, 16, 2, 64), 12),
    (Size(256, 32, 3, 128), 12),
    (Size(512, 64, 3, 256), 12),
    (Size(1024, 128, 3, 512), 8),
)
"""Sizes, and how many winners' payments are checked there."""
MOST_GPUS = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The contract of `bench.auction --json`."""

    gpus: int
    jobs: int
    seconds: float
    compile_s: float
    """Nothing is compiled."""
    with_payments: bool
    proved_gap: float
    peak_mib: float
    small: Small | None
    payment_error: list[PaymentError] | None
    runs: list[Run]
    """The size that was asked for, then (not with `--quick`) smaller and larger ones."""


def run(size: Size, seed: int, *, quick: bool) -> Result:
    """Measure one size, and unless `quick` the rest."""
    ladder = [] if quick else [other for other in LADDER if other != size]
    # A process never returns what it once had: smaller ones first, so that peaks are their own.
    runs = {each: measure(each, seed) for each in sorted([*ladder, size], key=lambda s: s.gpus)}
    payments = [] if quick else [run_payment_error(each, seed, winners) for each, winners in PAYMENTS]
    return Result(
        gpus=size.gpus,
        jobs=size.jobs,
        seconds=runs[size].seconds,
        compile_s=0.0,
        with_payments=True,
        proved_gap=runs[size].proved_gap,
        peak_mib=runs[size].peak_mib,
        small=None if quick else run_small(seed, SMALL_INSTANCES),
        payment_error=None if quick else payments,
        runs=[runs[size], *(runs[other] for other in ladder)],
    )


def table(result: Result) -> str:
    """What people read."""
    lines = [
        "    devices    jobs  options    division      (cpu)     auction      (cpu)   proved gap   memory |"
        " integer programming     greedy: time, loss"
    ]
    for row in sorted(result.runs, key=lambda r: r.gpus):
        milp = "not tried" if row.options > MOST_PEER_OPTIONS else f"> {PEER_SECONDS:g} s"
        if row.milp_seconds is not None:
            milp = f"{row.milp_seconds:.3f} s"
        lines.append(
            f"  {row.gpus:9,} {row.jobs:7,} {row.options:8,}"
            f" {row.seconds:9.3f} s {row.cpu_seconds:8.3f} s"
            f" {row.ruling_seconds:9.3f} s {row.ruling_cpu_seconds:8.3f} s"
            f" {row.proved_gap:11.4%} {row.peak_mib:5.0f} MiB | {milp:>19}"
            f" {row.greedy_seconds:10.3f} s {row.greedy_loss:8.2%}"
        )
    if result.small is not None:
        small = result.small
        lines.append(
            f"small markets ({small.instances}): mean gap {small.gap_mean:.5%}, 99th percentile"
            f" {small.gap_p99:.4%}, proved {small.proved_fraction:.0%}; 64 devices, 40 jobs:"
            f" {small.optimum_ms_median:.0f} ms (median) to the proved optimum"
        )
    for error in result.payment_error or []:
        how = f"settled, {error.settle_ms:.0f} ms a winner" if error.settled else "from prices"
        lines.append(
            f"payments, {error.devices} devices, {error.jobs} jobs: |error in c| {error.mean:.4f} on average,"
            f" {error.max:.4f} at most ({how}; from prices alone {error.by_prices_mean:.4f})"
        )
    return "\n".join(lines)


def draw(result: Result, path: str) -> None:
    """Time over size, both logarithmic."""
    from matplotlib.figure import Figure

    runs = sorted(result.runs, key=lambda r: r.gpus)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    gpus = [row.gpus for row in runs]
    axes.loglog(gpus, [row.seconds for row in runs], "o-", label="division with payments")
    axes.loglog(gpus, [row.ruling_seconds for row in runs], "s-", label="whole auction")
    tried = [row for row in runs if row.milp_seconds is not None]
    axes.loglog(
        [row.gpus for row in tried],
        [row.milp_seconds or 0.0 for row in tried],
        "^--",
        label="integer programming over everything",
    )
    axes.set_xlabel("devices")
    axes.set_ylabel("seconds")
    axes.legend()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or with `--json` one object."""
    parser = argparse.ArgumentParser(prog="python -m bench.auction", description=__doc__)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    parser.add_argument("--quick", action="store_true", help="this size alone, without the rest")
    parser.add_argument("--picture", metavar="FILE", help="draw time over size (.svg, .png)")
    options = parser.parse_args(arguments)
    size = Size(options.gpus, options.nodes, options.models, options.jobs)
    if min(size.gpus, size.nodes, size.models, size.jobs) < 1 or not size.models <= size.nodes <= size.gpus:
        parser.error("counts must be at least 1, no node may be empty and no model without a node")
    if size.gpus > MOST_GPUS or size.gpus > 128 * size.nodes:
        parser.error(f"at most {MOST_GPUS} devices, and 128 on a node")
    with native_output_aside():
        result = run(size, options.seed, quick=options.quick)
    if options.picture:
        draw(result, options.picture)
    print(json.dumps(asdict(result)) if options.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
