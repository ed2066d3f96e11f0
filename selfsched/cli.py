"""`selfsched`: the commands of a user of a shared machine.

Options and examples stand here; what a command does is in `selfsched.commands`, loaded when
it is called, so that `selfsched --help` is quick and needs neither torch nor a broker.
Exit codes: 0 fine, 1 failed, 2 wrong use, 75 yielded (try again).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from selfsched.errors import EXIT_FAILED, EXIT_WRONG_USE, Refused, SelfschedError

INTERRUPTED = 130

app = typer.Typer(
    name="selfsched",
    help="Lightning jobs that measure themselves, predict their finish and share devices fairly.",
    epilog="Exit codes: 0 fine, 1 failed, 2 wrong use, 75 yielded (start it again to go on).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="One JSON value on standard output, nothing else there.")]
BROKER_HELP = "Address of the broker, instead of SELFSCHED_BROKER: http://HOST:PORT or unix:/PATH."
Picture = Annotated[
    Path | None,
    typer.Option("--picture", metavar="FILE.svg", help="Draw the scaling curve (.svg, .png, .pdf)."),
]
Broker = Annotated[str | None, typer.Option("--broker", metavar="ADDRESS", help=BROKER_HELP)]
VERBATIM = {"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}


def _show_version(asked: bool) -> None:
    if asked:
        import selfsched

        print(selfsched.__version__)
        raise typer.Exit


@app.callback()
def _all_commands(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")
    ] = False,
) -> None:
    from selfsched import settings

    if context.invoked_subcommand != "doctor":  # which reports a wrong setting among the rest
        settings.load()


@app.command(epilog="Example: selfsched demo --report my-report")
def demo(
    as_json: Json = False,
    quick: Annotated[bool, typer.Option("--quick", help="A shorter run, for tests.")] = False,
    report: Annotated[
        Path, typer.Option("--report", metavar="DIR", help="Where the HTML report and the logs go.")
    ] = Path("demo-report"),
) -> None:
    """Two real jobs share two CPU slots through a real broker; then an account and a report."""
    from selfsched.demo.run import run_demo

    raise typer.Exit(run_demo(report, quick=quick, as_json=as_json))


@app.command(
    context_settings=VERBATIM,
    epilog="Examples: selfsched run --devices 1-4 -- python train.py --lr 3e-4  |  "
    "selfsched run --devices 2 --fixed --time 2h -- ./any-program",
)
def run(
    command: Annotated[list[str], typer.Argument(metavar="[--] COMMAND...", help="Run verbatim.")],
    devices: Annotated[str, typer.Option("--devices", metavar="N|N-M", help="How many devices.")] = "1",
    plan: Annotated[
        str | None,
        typer.Option("--plan", metavar="2@0,1@7", help="Devices@step, played without a broker."),
    ] = None,
    fixed: Annotated[
        bool, typer.Option("--fixed", help="Any program at all: devices are leased, never moved.")
    ] = False,
    time: Annotated[
        str | None, typer.Option("--time", metavar="2h", help="With --fixed: how long it needs.")
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="30m", help="How long to wait for devices; default: for ever."),
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Give up when no device is free now.")] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="Started again under this name, it is the same job.")
    ] = None,
    priority: Annotated[float, typer.Option("--priority", help="Among your own jobs; 2 counts twice.")] = 1.0,
    batch_devices: Annotated[
        int | None,
        typer.Option("--batch-devices", help="Devices that the script's batch size is meant for."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="It outlives this terminal; Ctrl-C leaves it (see `attach`).")
    ] = False,
    broker: Broker = None,
    cell: Annotated[int | None, typer.Option("--cell", metavar="PID", hidden=True)] = None,
) -> None:
    """Run a training script on devices that may come and go."""
    from selfsched.commands.run import RunRequest, run_job

    request = RunRequest(
        command=tuple(command), devices=devices, plan=plan, fixed=fixed, time=time, wait=wait,
        no_wait=no_wait, name=name, priority=priority, batch_devices=batch_devices, broker=broker,
        detach=detach, cell=cell,
    )  # fmt: skip
    raise typer.Exit(run_job(request))


@app.command(epilog="Examples: selfsched runs  |  selfsched runs --all --json")
def runs(
    everything: Annotated[bool, typer.Option("--all", help="Not the newest twenty alone.")] = False,
    as_json: Json = False,
) -> None:
    """My runs on this machine, also those that outlive their kernel, and how they ended."""
    from selfsched.commands.runs import show_runs

    show_runs(everything=everything, as_json=as_json)


@app.command(epilog="Examples: selfsched attach  |  selfsched attach night")
def attach(
    name: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="As `runs` lists it; default: the newest detached.")
    ] = None,
) -> None:
    """Show a run again; Ctrl-C leaves it. In a notebook selfsched.attach() also brings its module back."""
    from selfsched.commands.runs import follow_run

    raise typer.Exit(follow_run(name))


@app.command(epilog="Examples: selfsched stop night  |  selfsched stop --now night")
def stop(
    name: Annotated[str, typer.Argument(metavar="RUN", help="As `runs` lists it.")],
    now: Annotated[bool, typer.Option("--now", help="At once, without a checkpoint.")] = False,
) -> None:
    """End a run of mine on this machine, with a checkpoint."""
    from selfsched.commands.runs import stop_run

    raise typer.Exit(stop_run(name, at_once=now))


@app.command(
    context_settings=VERBATIM,
    epilog="Examples: selfsched profile -- python train.py  |  "
    "selfsched profile --devices 1-4 --json -- python train.py",
)
def profile(
    command: Annotated[list[str], typer.Argument(metavar="[--] COMMAND...", help="Run verbatim.")],
    devices: Annotated[
        str | None, typer.Option("--devices", metavar="N|N-M", help="Which counts; default: all there are.")
    ] = None,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Measure a script's steps on each device count, up to a minute each, and stop."""
    from selfsched.commands.profile import show_profile

    raise typer.Exit(show_profile(tuple(command), devices, as_json=as_json, picture=picture))


@app.command(epilog="Examples: selfsched status  |  selfsched status --json | jq .jobs")
def status(as_json: Json = False, broker: Broker = None) -> None:
    """What do I have, why, and when am I done; and who holds the rest."""
    from selfsched.commands.views import show_status

    show_status(broker, as_json=as_json)


@app.command(
    epilog="Examples: selfsched forecast  |  selfsched forecast JOB --devices 1,4  |  "
    "selfsched forecast JOB --without bob  |  selfsched forecast --hours 6 --on 2 --most 4  |  "
    "selfsched forecast --like JOB"
)
def forecast(
    job: Annotated[str | None, typer.Argument(help="Name or id of a job; default: all of mine.")] = None,
    devices: Annotated[
        list[str] | None,
        typer.Option("--devices", metavar="1,2|1-4", help="What if it had so many? May be repeated."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="JOB|ACCOUNT", help="As if it had ended. May be repeated."),
    ] = None,
    hours: Annotated[
        float | None, typer.Option("--hours", metavar="H", help="A job that takes H hours, if it came now.")
    ] = None,
    on: Annotated[
        int | None, typer.Option("--on", min=1, metavar="N", help="Devices it takes them on; default: 1.")
    ] = None,
    most: Annotated[
        int | None,
        typer.Option("--most", min=1, metavar="N", help="Devices it may have; default: all, up to 8."),
    ] = None,
    like: Annotated[
        str | None, typer.Option("--like", metavar="JOB", help="A job like this one of mine, if it came now.")
    ] = None,
    past: Annotated[bool, typer.Option("--past", help="Past forecasts and what came.")] = False,
    as_json: Json = False,
    broker: Broker = None,
) -> None:
    """When will my jobs start and be done: as things are, with other devices, without others."""
    from selfsched.commands.arguments import parse_counts
    from selfsched.commands.forecast import ForecastRequest, show_forecasts, show_past_forecasts

    request = ForecastRequest(
        job=job, devices=parse_counts(devices or ()), without=tuple(without or ()),
        hours=hours, on=on, most=most, like=like,
    )  # fmt: skip
    if not past:
        show_forecasts(broker, request, as_json=as_json)
    elif request != ForecastRequest():
        raise Refused("--past lists all past forecasts of yours: it goes with --json and --broker only")
    else:
        show_past_forecasts(broker, as_json=as_json)


@app.command(epilog="Examples: selfsched explain  |  selfsched explain my-job")
def explain(
    job: Annotated[
        str | None,
        typer.Argument(help="Name or id of a job, or the directory of a run; default: the newest."),
    ] = None,
    picture: Picture = None,
    as_json: Json = False,
    broker: Broker = None,
) -> None:
    """Why a job has what it has, what a step consists of, and what more devices would bring."""
    from selfsched.commands.explain import show_explanation

    show_explanation(broker, job, as_json=as_json, picture=picture)


@app.command(context_settings=VERBATIM, epilog="Example: selfsched verify -- python train.py")
def verify(
    command: Annotated[list[str], typer.Argument(metavar="[--] COMMAND...", help="The training script.")],
    steps: Annotated[int, typer.Option("--steps", min=6, max=100_000, help="How many steps.")] = 50,
    as_json: Json = False,
) -> None:
    """Train 50 steps on 1-2-1 devices and on one, and show that nothing changed."""
    from selfsched.verify import verify_command

    raise typer.Exit(verify_command(tuple(command), steps=steps, as_json=as_json))


@app.command(
    context_settings=VERBATIM, epilog="Examples: selfsched doctor  |  selfsched doctor train.py --epochs 1"
)
def doctor(
    script: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SCRIPT [ARGUMENT...]]", help="Start it twice, up to its first fit."),
    ] = None,
    as_json: Json = False,
    broker: Broker = None,
) -> None:
    """Look at what goes wrong first, and say what to do about it."""
    from selfsched.commands.doctor import show_findings

    raise typer.Exit(show_findings(tuple(script or ()), broker, as_json=as_json))


def main() -> None:
    """Run the command line; errors of ours become one line and an exit code."""
    try:
        app()
    except SelfschedError as error:
        print(f"selfsched: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        extra = _extra_of(error)
        if extra is None:
            raise
        print(f"selfsched: {error.name} is not installed: pip install 'selfsched[{extra}]'", file=sys.stderr)
        sys.exit(EXIT_WRONG_USE)
    except KeyboardInterrupt:
        print("selfsched: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # `selfsched status | head`: the reader left, which is its right.
        sys.stderr.close()
        sys.exit(EXIT_FAILED)


def _extra_of(error: ModuleNotFoundError) -> str | None:
    """The extra that brings a missing package; None for one that none of them brings."""
    package = (error.name or "").split(".")[0]
    extras: dict[str, tuple[Any, ...]] = {
        "train": ("torch", "lightning", "pytorch_lightning"),
        "broker": ("fastapi", "uvicorn", "sqlalchemy", "alembic", "highspy"),
        "demo": ("sklearn", "nbclient", "nbformat", "ipykernel", "matplotlib"),
    }
    return next((extra for extra, packages in extras.items() if package in packages), None)
