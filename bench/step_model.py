"""How well step times are predicted: `python -m bench.step_model --data FILE.csv [--json]`.

The file holds measured step times, a row each: application, cluster, hardware (the kind of node;
clusters of one hardware are left out together), gradient_mb, placement (`2+2`: replicas on each
node), local_batch, step_s, sync_s. A case is one application on one cluster at one local batch.
The placements of the seen counts on one node (and, for `1,2,1+1`, one visit across two nodes) are
shown to each model; every other measured placement is predicted. The prior of ours is learned
from other applications only (`left_out: application`), and once more from other applications on
other hardware (`left_out: hardware`). Errors are relative, as fractions.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench._step_rivals import Array, Point, nearest, perfect, published
from selfsched.core.events import StepTiming
from selfsched.core.performance import Z_LEVELS, SeenStep, StepTimeModel, documented_prior
from selfsched.core.population import Population, Visited, fit_population
from selfsched.core.step_form import Spot
from selfsched.core.step_knowledge import StepKnowledge
from selfsched.protocol import HardwarePrior

SEEN: dict[str, tuple[tuple[int, ...], ...]] = {
    "1": ((1,),),
    "1,2": ((1,), (2,)),
    "1,2,4": ((1,), (2,), (4,)),
    "1,2,1+1": ((1,), (2,), (1, 1)),
}
LEVELS = (0.5, 0.8, 0.95)
RIVALS: dict[str, Callable[[Sequence[Point], Sequence[Point]], Array]] = {
    "published": published,
    "nearest": nearest,
    "perfect": perfect,
}


class DataError(Exception):
    """The file cannot be read as measured step times."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One application on one cluster at one local batch."""

    application: str
    cluster: str
    hardware: str
    gradient_bytes: int
    local_batch: int
    points: tuple[Point, ...]

    def split(self, seen: str) -> tuple[list[Point], list[Point]]:
        """(shown, to be predicted); shown is empty where a placement of `seen` was not measured."""
        names = SEEN[seen]
        first = {p.per_node: p for p in reversed(self.points)}
        if any(name not in first for name in names):
            return [], []
        return [first[name] for name in names], [p for p in self.points if p.per_node not in names]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """One row of the contract."""

    seen: str
    nodes: str
    left_out: str
    model: str
    n: int
    median: float
    p90: float
    coverage50: float | None
    coverage80: float | None
    coverage95: float | None
    coverage80_worst_application: float | None


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What a model said of one placement, and what came."""

    application: str
    several: bool
    error: float
    held: tuple[bool, ...] | None
    """Whether the interval of each level held; None: the model gives none."""


def read_cases(path: Path) -> list[Case]:
    """The cases of a file, in its order.

    Raises:
        DataError: it is missing, lacks a column, or holds what is no number.
    """
    found: dict[tuple[str, ...], list[Point]] = defaultdict(list)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                key = tuple(
                    row[name] for name in ("application", "cluster", "hardware", "gradient_mb", "local_batch")
                )
                per_node = tuple(sorted((int(part) for part in row["placement"].split("+")), reverse=True))
                point = Point(per_node=per_node, step_s=float(row["step_s"]), sync_s=float(row["sync_s"]))
                if not 0 < point.step_s < math.inf or not 0 <= point.sync_s < math.inf:
                    raise ValueError(f"a step of {row['step_s']} s, {row['sync_s']} s of it synchronising")
                found[key].append(point)
        if not found:
            raise ValueError("no rows")
        return [
            Case(
                application=key[0], cluster=key[1], hardware=key[2],
                gradient_bytes=round(float(key[3]) * 1e6), local_batch=int(key[4]), points=tuple(points),
            )
            for key, points in found.items()
        ]  # fmt: skip
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} holds no measured step times: {error!r}") from error


class Priors:
    """What our model is told about hardware, learned without the case's application."""

    def __init__(self, cases: Sequence[Case], left_out: str) -> None:
        self._visited = [
            (case.application, case.hardware, _visited(case)) for case in sorted(cases, key=_batch)
        ]
        self._left_out = left_out
        self._fitted: dict[tuple[str, str], Population] = {}
        self.fit_seconds: list[float] = []

    def of(self, case: Case) -> HardwarePrior:
        """From other applications only; with `hardware` left out, on other hardware only."""
        without = case.hardware if self._left_out == "hardware" else ""
        key = (case.application, without)
        if key not in self._fitted:
            known = [v for a, h, v in self._visited if a != case.application and h != without]
            started = time.perf_counter()
            self._fitted[key] = fit_population(known)
            self.fit_seconds.append(time.perf_counter() - started)
        return self._fitted[key].prior(case.hardware)


def _batch(case: Case) -> int:
    return case.local_batch


def _visited(case: Case) -> Visited:
    logs: dict[Spot, list[float]] = defaultdict(list)
    for point in case.points:
        logs[_spot(point)].append(float(np.log(point.step_s)))
    return Visited(
        job=case.application,
        hardware=case.hardware,
        gradient_bytes=case.gradient_bytes,
        steps=tuple((spot, float(np.mean(values))) for spot, values in logs.items()),
    )


def _spot(point: Point) -> Spot:
    return Spot(devices=point.replicas, nodes=point.nodes, fullest=point.per_node[0])


def predictions(cases: Sequence[Case], model: str, seen: str, priors: Priors) -> Iterator[Predicted]:
    """What `model` says of all that is not seen, against what was measured."""
    for case in cases:
        shown, targets = case.split(seen)
        if not shown or not targets:
            continue
        truth = np.array([p.step_s for p in targets])
        held: list[tuple[bool, ...]] | None = None
        if model == "ours":
            quantiles = _ours(case, shown, targets, priors.of(case))
            medians, low, high = quantiles[0], quantiles[1::2], quantiles[2::2]
            held = [tuple(row) for row in ((low <= truth) & (truth <= high)).T.tolist()]
        else:
            medians = RIVALS[model](shown, targets)
        for index, target in enumerate(targets):
            yield Predicted(
                application=case.application,
                several=target.nodes > 1,
                error=abs(float(medians[index]) / truth[index] - 1),
                held=None if held is None else held[index],
            )


def _ours(case: Case, shown: Sequence[Point], targets: Sequence[Point], prior: HardwarePrior) -> Array:
    """Quantiles of each target: the median, then low and high ends of each of `LEVELS`."""
    seen = [SeenStep(devices=p.replicas, seconds=p.step_s, sigma_log=0.0, spot=_spot(p)) for p in shown]
    model = StepTimeModel(seen, prior=prior, gradient_bytes=case.gradient_bytes)
    spots = {_spot(point): None for point in targets}
    found = model.quantiles(list(spots), [0.0, *(sign * z for z in Z_LEVELS for sign in (-1, 1))])
    column = {spot: index for index, spot in enumerate(spots)}
    chosen: Array = found[:, [column[_spot(point)] for point in targets]]
    return chosen


def score(found: Sequence[Predicted], *, seen: str, nodes: str, left_out: str, model: str) -> Scores:
    """One row from the predictions of its class; not empty."""
    errors = np.array([p.error for p in found])
    coverage: list[float | None] = [None] * len(LEVELS)
    worst = None
    if found[0].held is not None:
        held = np.array([p.held for p in found])
        coverage = [float(x) for x in held.mean(axis=0)]
        of: dict[str, list[bool]] = defaultdict(list)
        for p in found:
            if p.held is not None:
                of[p.application].append(p.held[1])
        worst = min(float(np.mean(values)) for values in of.values())
    return Scores(
        seen=seen, nodes=nodes, left_out=left_out, model=model, n=len(found),
        median=float(np.median(errors)), p90=float(np.quantile(errors, 0.9)),
        coverage50=coverage[0], coverage80=coverage[1], coverage95=coverage[2],
        coverage80_worst_application=worst,
    )  # fmt: skip


def classes(cases: Sequence[Case], left_out: str, priors: Priors) -> Iterator[Scores]:
    """Every row of the contract with this left out that the file has data for."""
    for seen in SEEN:
        for model in ("ours", *RIVALS):
            found = list(predictions(cases, model, seen, priors))
            if found:
                for nodes, several in (("one", False), ("several", True)):
                    part = [p for p in found if p.several is several]
                    if part:
                        yield score(part, seen=seen, nodes=nodes, left_out=left_out, model=model)


def update_ms() -> float:
    """One batch of ten steps taken in, and the forecast's step asked for: median milliseconds."""
    knowledge = StepKnowledge(documented_prior("cpu"))
    knowledge.know_gradient_bytes(10**8)
    took = []
    for batch in range(300):
        timings = [
            StepTiming(
                step=10 * batch + i, seconds=0.1 + 0.001 * (i % 3), cycle_seconds=0.1 + 0.001 * (i % 3)
            )
            for i in range(10)
        ]
        started = time.perf_counter()
        knowledge.add(2, timings)
        knowledge.step(2)
        took.append(time.perf_counter() - started)
    return round(1000 * float(np.median(took[100:])), 3)


def refit_ms() -> float:
    """A job's model conditioned anew on three counts, prior given, asked for sixteen: median."""
    prior = documented_prior("Tesla-T4")
    took = []
    for turn in range(20):
        seen = [SeenStep(devices=k, seconds=(0.1 + 0.001 * turn) / k**0.9, sigma_log=0.01) for k in (1, 2, 4)]
        started = time.perf_counter()
        StepTimeModel(seen, prior=prior, gradient_bytes=10**8).curve(range(1, 17))
        took.append(time.perf_counter() - started)
    return round(1000 * float(np.median(took)), 1)


def table(rows: Sequence[Scores]) -> str:
    """The rows for a reader."""

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.0f}"

    lines = [
        f"{'left out':12} {'seen':8} {'nodes':8} {'model':10} {'n':>6} {'median %':>9} {'p90 %':>8}"
        f" {'cover 50':>9} {'80':>4} {'95':>4} {'worst 80':>9}"
    ]
    lines += [
        f"{row.left_out:12} {row.seen:8} {row.nodes:8} {row.model:10} {row.n:6} {100 * row.median:9.1f}"
        f" {100 * row.p90:8.1f} {percent(row.coverage50):>9} {percent(row.coverage80):>4}"
        f" {percent(row.coverage95):>4} {percent(row.coverage80_worst_application):>9}"
        for row in rows
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or the JSON of the contract; 2: the file cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m bench.step_model", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="measured step times (CSV)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        cases = read_cases(options.data)
    except DataError as error:
        print(error, file=sys.stderr)
        return 2
    rows, fit_seconds = [], []
    for left_out in ("application", "hardware"):
        priors = Priors(cases, left_out)
        rows += list(classes(cases, left_out, priors))
        fit_seconds += priors.fit_seconds
    costs = {
        "update_ms": update_ms(),
        "refit_ms": refit_ms(),
        "population_fit_s": round(max(fit_seconds, default=0.0), 2),
    }
    if options.json:
        print(json.dumps({"classes": [asdict(row) for row in rows], **costs}))
    else:
        print(table(rows))
        print("   ".join(f"{name} {value}" for name, value in costs.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
