"""`selfsched-broker simulate` and `replay`: jobs under one or more policies, as table, JSON, CSV, HTML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast, get_args

import typer
from rich.console import Console

from selfsched.errors import EXIT_FAILED, Refused, SelfschedError
from selfsched_broker.core.policies import DEFAULT_POLICY, policy_named
from selfsched_simulator.cluster import one_node
from selfsched_simulator.logs import Format, LogOptions, Wider
from selfsched_simulator.metrics import Scale
from selfsched_simulator.options import SimulationOptions
from selfsched_simulator.output import as_json, as_table, write_jobs
from selfsched_simulator.runs import INTERRUPTED, Run, native_output_aside, run_all
from selfsched_simulator.scenario import Scenario, Words, build_replay, build_scenario

_EXIT_INTERRUPTED = 130
# Over months a running job reports only when its remaining time has changed by so much.
_LOG_REPORT_CHANGE = 0.05
_DEFAULTS = Words()

Policies = Annotated[str, typer.Option(help="One policy, or several with commas.")]
Gpus = Annotated[int | None, typer.Option(help="Devices of the cluster, side by side.")]
ClusterText = Annotated[
    str | None, typer.Option("--cluster", help="NODESxDEVICES:MODEL, as 16x4:aws; several with commas.")
]
Round = Annotated[float | None, typer.Option("--round", help="Decide only at multiples of so many seconds.")]
Term = Annotated[float | None, typer.Option(help="Seconds of a term, without --round (300).")]
Report = Annotated[
    float | None, typer.Option(help="How old a report may be when the broker decides, in seconds (10).")
]
Restart = Annotated[float, typer.Option(help="Seconds a job loses whenever it starts.")]
Noise = Annotated[float, typer.Option(help="Log-standard deviation of claimed remaining times.")]
Seed = Annotated[int, typer.Option(help="Of the noise, the faults and the policy's draws.")]
Limit = Annotated[float, typer.Option(help="Seconds of real time after which a run ends as it is.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, and nothing else.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Write a line for each job to this file.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write one page with pictures to this file.")]


def simulate(
    trace: Annotated[Path, typer.Argument(help="CSV file; its columns tell what kind of jobs they are.")],
    policy: Policies = DEFAULT_POLICY,
    gpus: Gpus = None,
    cluster: ClusterText = None,
    round_seconds: Round = None,
    term: Term = None,
    restart: Restart = _DEFAULTS.restart,
    noise: Noise = 0.0,
    row_noise: Annotated[float, typer.Option(help="The same for each placement by itself.")] = 0.0,
    seed: Seed = 1,
    seeds: Annotated[int, typer.Option(help="Repeat with so many seeds; mean and spread.")] = 1,
    steptimes: Annotated[Path | None, typer.Option(help="Measured step times, for elastic jobs.")] = None,
    convergence: Annotated[Path | None, typer.Option(help="Iterations of epochs, for elastic jobs.")] = None,
    throughput: Annotated[Path | None, typer.Option(help="Steps per second, for mixed models.")] = None,
    requested: Annotated[
        bool, typer.Option("--requested", help="Elastic jobs run on the replicas they request only.")
    ] = False,
    visits: Annotated[
        bool, typer.Option("--visits", help="Jobs know their speed only after a first visit.")
    ] = False,
    report: Report = None,
    mtbf: Annotated[float | None, typer.Option(help="Mean seconds between failures of a node.")] = None,
    repair: Annotated[float, typer.Option(help="Seconds a failed node is gone.")] = _DEFAULTS.repair,
    failures: Annotated[Path | None, typer.Option(help="CSV of failures: node,at_s,repair_s.")] = None,
    checkpoint: Annotated[
        float, typer.Option(help="Seconds of work between checkpoints: what a failure can cost.")
    ] = _DEFAULTS.checkpoint,
    lost: Annotated[float, typer.Option(help="Part of the jobs' reports that never arrive.")] = 0.0,
    late: Annotated[float, typer.Option(help="Mean delay of a report that arrives, in seconds.")] = 0.0,
    limit: Limit = _DEFAULTS.limit,
    json_output: AsJson = False,
    csv_file: Csv = None,
    html_file: Html = None,
) -> None:
    """Replay a trace in virtual time against the broker's own decisions.

    Example: selfsched-broker simulate trace.csv --policy themis,fifo --gpus 32 --round 120
    """
    words = Words(
        gpus=gpus, cluster=cluster, steptimes=steptimes, convergence=convergence, throughput=throughput,
        requested=requested, visits=visits, round_seconds=round_seconds, term=term, report=report,
        restart=restart, noise=noise, row_noise=row_noise, seed=seed, seeds=seeds, mtbf=mtbf, repair=repair,
        failures=failures, lost=lost, late=late, checkpoint=checkpoint, limit=limit,
    )  # fmt: skip
    try:
        scenario = build_scenario(trace, words)
        runs = run_policies(scenario, policy)
        show(scenario, runs, json_output=json_output, csv_file=csv_file, html_file=html_file)
    except SelfschedError as error:
        fail("simulate", error)
    leave(runs)


def replay(
    log: Annotated[
        Path, typer.Argument(help="sacct --parsable2 output, Philly-style CSV, or a broker's books.sqlite.")
    ],
    policy: Policies = DEFAULT_POLICY,
    gpus: Gpus = None,
    cluster: ClusterText = None,
    kind: Annotated[
        str | None,
        typer.Option("--format", help="philly, slurm or own; told by the file itself if left out."),
    ] = None,
    wider: Annotated[str, typer.Option(help="Jobs wider than the cluster: cap or leave-out.")] = "cap",
    first: Annotated[int | None, typer.Option(help="Only so many jobs, the first submitted.")] = None,
    elastic: Annotated[
        float | None,
        typer.Option(help="Jobs run on fewer devices, too, as if they scaled with this exponent (0 to 1)."),
    ] = None,
    round_seconds: Round = None,
    term: Term = None,
    report: Report = None,
    restart: Restart = _DEFAULTS.restart,
    noise: Noise = 0.0,
    seed: Seed = 1,
    limit: Limit = _DEFAULTS.limit,
    json_output: AsJson = False,
    csv_file: Csv = None,
    html_file: Html = None,
) -> None:
    """Replay a log of jobs that have run: what would this broker have done with them?

    A broker's own books know its devices; any other log needs --gpus or --cluster.

    Example: selfsched-broker replay sacct.txt --policy fifo,selfsched --cluster 16x8:a100 --html page.html
    """
    every = term or round_seconds or SimulationOptions(cluster=one_node(1)).term_seconds
    words = Words(
        gpus=gpus, cluster=cluster, round_seconds=round_seconds, term=term,
        report=every if report is None else report, report_change=_LOG_REPORT_CHANGE, skips_calm_ticks=True,
        restart=restart,
        noise=noise, seed=seed, limit=limit,
    )  # fmt: skip
    try:
        options = LogOptions(wider=_wider(wider), first=first, elastic=elastic)
        scenario = build_replay(log, words, options, _format(kind))
        runs = run_policies(scenario, policy)
        show(scenario, runs, json_output=json_output, csv_file=csv_file, html_file=html_file)
    except SelfschedError as error:
        fail("replay", error)
    leave(runs)


def _wider(word: str) -> Wider:
    if word not in get_args(Wider):
        raise Refused(f"--wider is {word!r}, it must be cap or leave-out")
    return cast(Wider, word)


def _format(word: str | None) -> Format | None:
    if word is not None and word not in get_args(Format):
        raise Refused(f"--format is {word!r}, it must be one of {', '.join(get_args(Format))}")
    return cast(Format | None, word)


def run_policies(scenario: Scenario, names: str) -> list[Run]:
    """Simulate under each policy of a list.

    Raises:
        Refused: there is no such policy, or one is named twice.
    """
    chosen = [name.strip() for name in names.split(",")]
    if len(set(chosen)) < len(chosen):
        raise Refused(f"--policy {names!r} names a policy twice")
    for name in chosen:
        policy_named(name)
    with native_output_aside():
        return run_all(scenario, [lambda name=name: policy_named(name) for name in chosen])  # type: ignore[misc]


def show(
    scenario: Scenario,
    runs: Sequence[Run],
    *,
    json_output: bool,
    csv_file: Path | None,
    html_file: Path | None,
) -> None:
    """Print the result and write what files were asked for."""
    jobs = len(scenario.trace.jobs)
    scale = Scale(kind=scenario.trace.kind, devices=scenario.options.cluster.devices, jobs=jobs)
    if csv_file is not None:
        write_jobs(csv_file, runs, scale)
    if html_file is not None:
        from selfsched_simulator.page import write_page

        write_page(html_file, scenario, runs, scale)
    if json_output:
        rows = [as_json(run) for run in runs]
        typer.echo(json.dumps(rows[0] if len(rows) == 1 else {"runs": rows}))
        return
    console = Console()
    console = console if console.is_terminal else Console(width=120)
    console.print(as_table(runs, jobs))
    for note in scenario.trace.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def fail(command: str, error: SelfschedError) -> None:
    """One line and an exit code."""
    Console(stderr=True).print(f"{command}: {error}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(error.exit_code)


def leave(runs: Sequence[Run]) -> None:
    """Say what was cut short, and end with the code that belongs to it."""
    for run in runs:
        if run.partial or run.unfinished:
            why = run.partial or "the broker gave them up"
            words = (
                f"{run.figures.policy}: {why}: {run.unfinished} jobs have not ended, the result is partial"
            )
            Console(stderr=True).print(words, markup=False, highlight=False, soft_wrap=True)
    if any(run.partial == INTERRUPTED for run in runs):
        raise typer.Exit(_EXIT_INTERRUPTED)
    if any(run.partial for run in runs):
        raise typer.Exit(EXIT_FAILED)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command("simulate")(simulate)
replay_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
replay_app.command("replay")(replay)


def main() -> None:
    """Run `simulate` on its own."""
    app()
