"""What policies and settings do: `python -m bench.policies [--traces FOLDER] [--only PART] [--json]`.

*Sensitivity*: random labs of sixteen devices (Poisson arrivals, lognormal durations, gangs and
elastic jobs), one setting varied at a time, under the default policy and under `themis`; means over
the seeds. Needs no data.

With `--traces FOLDER`, where `rigid_120_32gpu.csv` and `rigid_220_64gpu.csv` lie:

*Policies*: every policy on the gangs of 120 and 220 jobs, with remaining times known and, for those that
use them, wrong by a fixed factor.

*Frontier*: the default policy on the 120 gangs with its weights for fairness and for the end of all
work varied: what a smaller worst rho costs; `--picture FILE` draws it.

With `--steptimes FILE --convergence FILE` besides, the tables of measured step times and of iterations:

*Elastic*: the default policy and `themis` on each `elastic_pollux_N.csv` of the folder: 16 nodes of four T4,
rounds of 60 s, a restart of 30 s.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench._policies_lab import Case, cases, figures_of
from selfsched_broker.core.policies import POLICIES, policy_named
from selfsched_broker.core.policies.selfsched import Selfsched, Weights
from selfsched_simulator.runs import run_all
from selfsched_simulator.scenario import Words, build_scenario

KNOWS: dict[str, str] = {
    "selfsched": "remaining times, their spread", "themis": "remaining times",
    "srtf": "remaining times", "fifo": "nothing", "las": "work attained",
    "maxmin": "rates by model", "goodput": "rates by count",
}  # fmt: skip
USES_TIMES = ("selfsched", "themis", "srtf")
GANGS = (("rigid_120_32gpu.csv", 32), ("rigid_220_64gpu.csv", 64))
NOISE, NOISE_SEEDS = 0.2, 10
ELASTIC = "elastic_pollux_[0-9].csv"
ELASTIC_POLICIES = ("selfsched", "themis")
PARTS = ("sensitivity", "policies", "frontier", "elastic")
FRONTIER = tuple(
    Weights(late_from=late_from, late_power=power, critical=critical)
    for late_from, power in ((1.0, 6.0), (1.3, 6.0), (1.3, 12.0))
    for critical in (0.0, 1.0, 3.0, 10.0, 30.0)
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a table; times in seconds, means over seeds."""

    part: str
    """One of `PARTS`."""
    setting: str
    value: str
    policy: str
    knows: str
    seeds: int
    makespan_s: float
    mean_completion_s: float
    worst_rho_static: float
    unfair_fraction: float
    worst_rho_themis: float
    utilisation: float
    restarts_per_job: float


def sensitivity(quick: bool) -> Iterator[Line]:
    """One setting varied at a time."""
    for case in cases(quick):
        for policy in case.policies:
            yield _line("sensitivity", case.setting, case.value, policy, case.seeds, figures_of(case, policy))


def on_traces(folder: Path, quick: bool) -> Iterator[Line]:
    """Every policy on the gangs."""
    for name, gpus in GANGS[:1] if quick else GANGS:
        for policy in ("selfsched", "srtf") if quick else POLICIES:
            for noise in (0.0, NOISE) if policy in USES_TIMES and not quick else (0.0,):
                seeds = NOISE_SEEDS if noise else 1
                words = Words(gpus=gpus, round_seconds=120.0, noise=noise, seeds=seeds)
                (run,) = run_all(build_scenario(folder / name, words), [lambda: policy_named(policy)])  # noqa: B023
                yield _line("policies", name, f"noise {noise:g}", policy, seeds, asdict(run.figures))


def frontier(folder: Path, quick: bool) -> Iterator[Line]:
    """The default policy with other weights."""
    name, gpus = GANGS[0]
    scenario = build_scenario(folder / name, Words(gpus=gpus, round_seconds=120.0))
    for weights in FRONTIER[:1] if quick else FRONTIER:
        (run,) = run_all(scenario, [lambda: Selfsched(weights)])  # noqa: B023
        value = (
            f"late_from {weights.late_from:g}, power {weights.late_power:g}, critical {weights.critical:g}"
        )
        yield _line("frontier", name, value, "selfsched", 1, asdict(run.figures))


def elastic(folder: Path, steptimes: Path, convergence: Path) -> Iterator[Line]:
    """Jobs whose step times were measured, with another number of devices whenever that is better."""
    words = Words(
        cluster="16x4:aws", steptimes=steptimes, convergence=convergence, round_seconds=60.0, restart=30.0
    )
    for path in sorted(folder.glob(ELASTIC)):
        scenario = build_scenario(path, words)
        for policy in ELASTIC_POLICIES:
            (run,) = run_all(scenario, [lambda: policy_named(policy)])  # noqa: B023
            yield _line("elastic", path.name, "", policy, 1, asdict(run.figures))


def _line(part: str, setting: str, value: str, policy: str, seeds: int, figures: dict[str, float]) -> Line:
    names = (
        "makespan_s", "mean_completion_s", "worst_rho_static", "unfair_fraction", "worst_rho_themis",
        "utilisation", "restarts_per_job",
    )  # fmt: skip
    return Line(
        part=part, setting=setting, value=value, policy=policy, knows=KNOWS[policy], seeds=seeds,
        **{name: float(figures[name]) for name in names},
    )  # fmt: skip


def table_of(lines: Sequence[Line]) -> Table:
    """For people."""
    table = Table(title="times in s; rho: worst static, rho*: worst by live jobs; unfair: above 1.05")
    for name in (
        "setting",
        "value",
        "policy",
        "makespan",
        "mean",
        "rho",
        "unfair",
        "rho*",
        "used",
        "restarts",
    ):
        table.add_column(name, justify="left" if name in ("setting", "value", "policy") else "right")
    last = ""
    for line in lines:
        if last and line.setting != last:
            table.add_section()
        last = line.setting
        table.add_row(
            line.setting, line.value, line.policy, f"{line.makespan_s:,.0f}",
            f"{line.mean_completion_s:,.0f}", f"{line.worst_rho_static:.2f}", f"{line.unfair_fraction:.1%}",
            f"{line.worst_rho_themis:.2f}", f"{line.utilisation:.0%}", f"{line.restarts_per_job:.1f}",
        )  # fmt: skip
    return table


def draw(lines: Sequence[Line], path: Path) -> None:
    """Makespan over the worst rho by live jobs: the default policy by its weights, beside all others."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    curves: dict[str, list[Line]] = {}
    for line in lines:
        if line.part == "frontier":
            curves.setdefault(line.value.rpartition(",")[0], []).append(line)
    for name, points in curves.items():
        axes.plot([p.worst_rho_themis for p in points], [p.makespan_s for p in points], "o-", label=name)
        for point in points:
            weight = point.value.rpartition(" ")[2]
            where = (point.worst_rho_themis, point.makespan_s)
            axes.annotate(weight, where, textcoords="offset points", xytext=(5, 4), fontsize=7)
    others = [x for x in lines if x.setting == GANGS[0][0] and x.value == "noise 0" and x.part == "policies"]
    for other in others:
        if other.policy != "selfsched" and other.worst_rho_themis < 4:
            axes.plot(other.worst_rho_themis, other.makespan_s, "k^")
            where = (other.worst_rho_themis, other.makespan_s)
            axes.annotate(other.policy, where, textcoords="offset points", xytext=(5, -9), fontsize=8)
    axes.set_xlabel("worst rho by live jobs")
    axes.set_ylabel("makespan (s)")
    axes.set_title("120 gangs on 32 devices; small figures: the weight of the end of all work", fontsize=9)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 2 for a folder without the traces."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.policies", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="where the traces of gangs lie")
    parser.add_argument("--steptimes", type=Path, metavar="FILE", help="step times of the elastic traces")
    parser.add_argument("--convergence", type=Path, metavar="FILE", help="iterations of the elastic traces")
    parser.add_argument("--only", choices=PARTS, help="this part and no other")
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the frontier (needs --traces)")
    parser.add_argument("--quick", action="store_true", help="a few small runs")
    options = parser.parse_args(arguments)
    refused = _refusal(options)
    if refused:
        print(refused, file=sys.stderr)
        return 2
    lines: list[Line] = []
    for part in _parts(options):
        for line in part:
            print(f"{line.part}: {line.setting} {line.value} {line.policy}", file=sys.stderr)
            lines.append(line)
    if options.picture is not None:
        draw(lines, options.picture)
    if options.json:
        print(json.dumps({"runs": [asdict(line) for line in lines]}, indent=1))
    else:
        Console(width=130).print(table_of(lines))
    return 0


def _refusal(options: argparse.Namespace) -> str:
    """What is wrong with the arguments; empty: nothing."""
    folder, tables = options.traces, (options.steptimes, options.convergence)
    for name, _ in GANGS if folder is not None and options.only not in ("sensitivity", "elastic") else ():
        if not (folder / name).is_file():
            return f"there is no {name} in {folder}"
    if (tables[0] is None) != (tables[1] is None):
        return "--steptimes and --convergence go together"
    for table in tables:
        if table is not None and not table.is_file():
            return f"there is no {table}"
    if options.only not in (None, "sensitivity") and folder is None:
        return f"--only {options.only} needs --traces FOLDER"
    if options.only == "elastic" and tables[0] is None:
        return "--only elastic needs --steptimes FILE and --convergence FILE"
    return ""


def _parts(options: argparse.Namespace) -> Iterator[Iterator[Line]]:
    folder: Path | None = options.traces
    if options.only in (None, "sensitivity"):
        yield sensitivity(options.quick)
    if folder is None:
        return
    if options.only in (None, "policies"):
        yield on_traces(folder, options.quick)
    if options.only in (None, "frontier"):
        yield frontier(folder, options.quick)
    if options.only in (None, "elastic") and options.steptimes is not None:
        yield elastic(folder, options.steptimes, options.convergence)


__all__ = ["Case", "Line", "elastic", "frontier", "main", "on_traces", "sensitivity", "table_of"]

if __name__ == "__main__":
    sys.exit(main())
