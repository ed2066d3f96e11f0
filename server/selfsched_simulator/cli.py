"""`selfsched-broker simulate`: a trace under one or more policies, as a table or as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from selfsched.errors import Refused, SelfschedError
from selfsched_broker.core.market import Policy
from selfsched_broker.core.policies import policy_named
from selfsched_simulator.engine import Simulation, SimulationOptions
from selfsched_simulator.metrics import Figures, finished, summarise
from selfsched_simulator.trace import TraceJob, read_trace

_MOST_GPUS = 65_536


def simulate(
    trace: Annotated[Path, typer.Argument(help="CSV file: arrival_s,gpus,exclusive_s and perhaps job.")],
    policy: Annotated[str, typer.Option(help="One policy, or several with commas.")] = "themis",
    gpus: Annotated[int | None, typer.Option(help="Devices of the cluster, all on one node.")] = None,
    round_seconds: Annotated[
        float | None, typer.Option("--round", help="Decide only at multiples of so many seconds.")
    ] = None,
    restart: Annotated[float, typer.Option(help="Seconds a job loses whenever it starts.")] = 20.0,
    noise: Annotated[float, typer.Option(help="Log-standard deviation of claimed remaining times.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the noise and of the policy's draws.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, and nothing else.")] = False,
    cluster: Annotated[str | None, typer.Option(help="Not supported yet.")] = None,
    steptimes: Annotated[Path | None, typer.Option(help="Not supported yet.")] = None,
    convergence: Annotated[Path | None, typer.Option(help="Not supported yet.")] = None,
    throughput: Annotated[Path | None, typer.Option(help="Not supported yet.")] = None,
) -> None:
    """Replay a trace in virtual time against the broker's own decisions.

    Example: selfsched-broker simulate trace.csv --policy themis,fifo --gpus 32 --round 120
    """
    try:
        later = {
            "cluster": cluster,
            "steptimes": steptimes,
            "convergence": convergence,
            "throughput": throughput,
        }
        _refuse_later(later)
        options = _options(gpus, round_seconds, restart, noise, seed)
        policies = _policies(policy)
        jobs = read_trace(trace, gpus=options.gpus)
        figures = run_all(jobs, policies, options)
    except SelfschedError as error:
        Console(stderr=True).print(f"simulate: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(error.exit_code) from None
    if as_json:
        rows = [dataclasses.asdict(row) for row in figures]
        typer.echo(json.dumps(rows[0] if len(rows) == 1 else {"runs": rows}))
    else:
        console = Console()
        (console if console.is_terminal else Console(width=100)).print(_table(figures))


def run_all(
    jobs: Sequence[TraceJob], policies: Sequence[Policy], options: SimulationOptions
) -> list[Figures]:
    """Simulate a trace under each policy; a bar on the terminal's stderr shows how far it is."""
    console = Console(stderr=True)
    figures = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        for policy in policies:
            task = bar.add_task(policy.name, total=len(jobs))
            began = time.monotonic()
            simulation = Simulation(jobs, policy, options)
            ended = simulation.run(lambda count, task=task: bar.update(task, completed=count))  # type: ignore[misc]
            wall = time.monotonic() - began
            rows = [finished(job) for job in ended]
            figures.append(summarise(rows, policy=policy.name, gpus=options.gpus, wall_seconds=wall))
    return figures


def _refuse_later(options: dict[str, str | Path | None]) -> None:
    for name, value in options.items():
        if value is not None:
            raise Refused(
                f"--{name} is not supported yet: give a rigid trace (arrival_s,gpus,exclusive_s) and --gpus"
            )


def _options(
    gpus: int | None, round_seconds: float | None, restart: float, noise: float, seed: int
) -> SimulationOptions:
    if gpus is None:
        raise Refused("--gpus is missing: say how many devices the cluster has")
    if not 1 <= gpus <= _MOST_GPUS:
        raise Refused(f"--gpus is {gpus}, it must be between 1 and {_MOST_GPUS}")
    if round_seconds is not None and not 1 <= round_seconds <= 1e6:
        raise Refused(f"--round is {round_seconds:g}, it must be between 1 and 1000000 seconds")
    if not (math.isfinite(restart) and 0 <= restart <= 1e6):
        raise Refused(f"--restart is {restart:g}, it must be between 0 and 1000000 seconds")
    if round_seconds is not None and restart >= round_seconds:
        raise Refused(
            f"--restart {restart:g} is not shorter than --round {round_seconds:g}: nothing would advance"
        )
    if not (math.isfinite(noise) and 0 <= noise <= 5):
        raise Refused(f"--noise is {noise:g}, it must be between 0 and 5")
    if seed < 0:
        raise Refused(f"--seed is {seed}, it must not be negative")
    return SimulationOptions(
        gpus=gpus, round_seconds=round_seconds, restart_seconds=restart, noise=noise, seed=seed
    )


def _policies(names: str) -> list[Policy]:
    chosen = [name.strip() for name in names.split(",")]
    if len(set(chosen)) < len(chosen):
        raise Refused(f"--policy {names!r} names a policy twice")
    return [policy_named(name) for name in chosen]


def _table(figures: Sequence[Figures]) -> Table:
    caption = "times in s; completion from arrival; rho: worst static, rho*: worst by live jobs"
    table = Table(title=f"{figures[0].jobs} jobs", caption=caption)
    columns: dict[str, Callable[[Figures], str]] = {
        "policy": lambda f: f.policy,
        "makespan": lambda f: f"{f.makespan_s:,.0f}",
        "mean": lambda f: f"{f.mean_completion_s:,.0f}",
        "median": lambda f: f"{f.median_completion_s:,.0f}",
        "rho": lambda f: f"{f.worst_rho_static:.2f}",
        "unfair": lambda f: f"{f.unfair_fraction:.1%}",
        "rho*": lambda f: f"{f.worst_rho_themis:.2f}",
        "used": lambda f: f"{f.utilisation:.0%}",
        "restarts": lambda f: f"{f.restarts_per_job:.1f}",
        "took": lambda f: f"{f.wall_s:.1f}",
    }
    for name in columns:
        table.add_column(name, justify="left" if name == "policy" else "right")
    for row in figures:
        table.add_row(*(cell(row) for cell in columns.values()))
    return table


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command("simulate")(simulate)


def main() -> None:
    """Run the command on its own."""
    app()
