"""What the broker's look-ahead costs and how right it is: `python -m bench.look_ahead [--json] [--quick]`.

`cost`: wall time of a forecast of all jobs and of a what-if of three variants, the median of five, over
random scenes of 4, 16 and 64 jobs, with newcomers.
`accuracy`: random labs (`_look_ahead_lab`) are simulated to their end by the broker's own code. On the way
all live jobs are foreseen again and again from the books; what came is held against it, and against "as
now": what the job's bid says of the devices it has, as if these stayed. Of a job that waits, "as now" says
nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from rich.console import Console
from rich.table import Table

from bench._look_ahead_lab import Held, random_record, random_scene, run_lab
from selfsched_broker.core.look_ahead import Variant, foresee, foresee_variants

POLICIES = ("selfsched", "themis")
SIZES = ((4, 4), (16, 8), (64, 32))
"""(jobs, devices) of the scenes whose cost is measured."""
RECORDED_JOBS = 40
"""Of the record from which newcomers are drawn."""
REPEATS = 5
LABS = ((2, 16), (4, 24), (8, 40))
"""(devices, jobs) of the labs that are simulated."""
SEEDS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Wall time, median of `REPEATS`, in milliseconds."""

    jobs: int
    devices: int
    policy: str
    all_ms: float
    what_if_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """Of many forecasts of one kind; a figure of "as now" is None for jobs that wait."""

    lab: str
    """`open` or `closed`."""
    policy: str
    jobs: str
    """`run` or `wait`."""
    forecasts: int
    error: float
    """Median of |median forecast - what came| / what came, of the time to the end."""
    as_now_error: float | None
    bias: float
    """Median of median forecast / what came: below 1, it says too little."""
    coverage: float
    """Part where the end came between 10 and 90 %: 0.8 expected."""
    as_now_coverage: float | None
    start_error_s: float | None
    """Of jobs that wait: median of |median start - what came|, in seconds."""
    start_coverage: float | None


def cost(jobs: int, devices: int, policy: str) -> Cost:
    """Time it."""
    scene = replace(random_scene(1, jobs, devices, policy), record=random_record(2, RECORDED_JOBS, devices))
    asker, other = scene.players[-1], scene.players[0]
    new = replace(asker, job="new", number=jobs + 1, held=0, age_seconds=0.0, fraction_done=0.0)
    variants = [
        Variant(asker=asker),
        Variant(asker=asker, without=frozenset({other.job})),
        Variant(asker=new, arrives=True),
    ]
    return Cost(
        jobs=jobs, devices=devices, policy=policy,
        all_ms=_median_ms(lambda: foresee(scene)),
        what_if_ms=_median_ms(lambda: foresee_variants(scene, variants)),
    )  # fmt: skip


def _median_ms(what: Callable[[], object]) -> float:
    what()
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        what()
        taken.append(time.perf_counter() - began)
    return 1e3 * statistics.median(taken)


def accuracy(lab: str, policy: str, jobs: str, held: Sequence[Held]) -> Accuracy:
    """Sum up forecasts of one kind.

    Args:
        lab: `open` or `closed`.
        policy: by which it was divided and played.
        jobs: `run` or `wait`.
        held: at least one.
    """
    now = [(one.as_now, one.ends_in) for one in held if one.as_now is not None]
    starts = [(one.starts, one.started_in) for one in held if one.starts is not None]
    return Accuracy(
        lab=lab, policy=policy, jobs=jobs, forecasts=len(held),
        error=statistics.median(abs(one.ahead[1] - one.ends_in) / one.ends_in for one in held),
        as_now_error=statistics.median(abs(q[1] - came) / came for q, came in now) if now else None,
        bias=statistics.median(one.ahead[1] / one.ends_in for one in held),
        coverage=_covered((one.ahead, one.ends_in) for one in held),
        as_now_coverage=_covered(now) if now else None,
        start_error_s=statistics.median(abs(q[1] - came) for q, came in starts) if starts else None,
        start_coverage=_covered(starts) if starts else None,
    )  # fmt: skip


def _covered(pairs: Iterable[tuple[tuple[float, float, float], float]]) -> float:
    # Ends and starts fall on instants of the clock: a second's rounding is no miss.
    return statistics.fmean(low - 1 <= came <= high + 1 for (low, _, high), came in pairs)


def measure(*, quick: bool) -> tuple[list[Cost], list[Accuracy]]:
    """All of it."""
    sizes, labs, seeds = (SIZES[:1], ((2, 8),), 1) if quick else (SIZES, LABS, SEEDS)
    costs = [cost(jobs, devices, policy) for policy in POLICIES for jobs, devices in sizes]
    rows = []
    for lab in ("open", "closed"):
        for policy in POLICIES:
            held: list[Held] = []
            for devices, jobs in labs:
                for seed in range(1, seeds + 1):
                    held += run_lab(devices, seed, policy, closed=lab == "closed", jobs=jobs)
                print(f"{lab} {policy} {devices} devices: {len(held)} forecasts", file=sys.stderr)
            for waits in (False, True):
                some = [one for one in held if one.waits == waits]
                if some:
                    rows.append(accuracy(lab, policy, "wait" if waits else "run", some))
    return costs, rows


def tables(costs: Sequence[Cost], rows: Sequence[Accuracy]) -> list[Table]:
    """For people."""
    first = Table("jobs", "devices", "policy", "all", "what-if of 3", title="Cost, ms")
    for one in costs:
        first.add_row(
            str(one.jobs), str(one.devices), one.policy, f"{one.all_ms:.1f}", f"{one.what_if_ms:.1f}"
        )
    second = Table(
        "lab", "policy", "jobs that", "forecasts", "error", "as now", "bias", "10-90", "as now",
        "start error", "start 10-90", title="Time to the end: median relative error, part within 10-90 %",
    )  # fmt: skip
    for row in rows:
        start = "" if row.start_error_s is None else f"{row.start_error_s:.0f} s"
        second.add_row(
            row.lab, row.policy, row.jobs, str(row.forecasts), f"{row.error:.1%}", _percent(row.as_now_error),
            f"{row.bias:.2f}", f"{row.coverage:.0%}", _percent(row.as_now_coverage), start,
            _percent(row.start_coverage),
        )  # fmt: skip
    return [first, second]


def _percent(part: float | None) -> str:
    return "" if part is None else f"{part:.1%}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.look_ahead", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    parser.add_argument("--quick", action="store_true", help="a few small labs")
    options = parser.parse_args(arguments)
    costs, rows = measure(quick=options.quick)
    if options.json:
        print(
            json.dumps({"cost": [asdict(c) for c in costs], "accuracy": [asdict(r) for r in rows]}, indent=1)
        )
    else:
        for table in tables(costs, rows):
            Console(width=130).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
