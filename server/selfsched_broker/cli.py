"""`selfsched-broker`: serve, install, simulate, administer.

Exit codes: 0 fine, 1 failed, 2 wrong use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from selfsched.errors import EXIT_FAILED, EXIT_WRONG_USE, Refused, SelfschedError
from selfsched_broker import account_commands, commands
from selfsched_broker.options import Json, StateDir, find_settings, say_place

_SIMULATOR = ("simulate", "replay")
app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The broker that shares devices among training jobs.",
    epilog="Exit codes: 0 fine, 1 failed, 2 wrong use.",
)
app.add_typer(account_commands.users, name="users")
app.add_typer(commands.leases, name="leases")
app.add_typer(commands.devices, name="devices")
for command in (commands.jobs, commands.auctions, commands.hardware, commands.policy, commands.audit):
    app.command()(command)


@app.command(
    epilog="Examples: selfsched-broker serve --state-dir ./broker --slots 2  |  "
    "selfsched-broker serve --socket /run/selfsched/broker.sock"
)
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0: any that is free (8470).")] = None,
    socket: Annotated[
        Path | None, typer.Option(help="Unix socket to listen on; alone, no TCP port is opened.")
    ] = None,
    slots: Annotated[int | None, typer.Option(help="CPU slots, on a machine without GPUs.")] = None,
    term: Annotated[float | None, typer.Option(help="Seconds that an award lasts (300).")] = None,
    policy: Annotated[str | None, typer.Option(help="The rule by which devices are divided.")] = None,
    private: Annotated[
        bool, typer.Option("--private", help="For you alone; ends after its last job.")
    ] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate for TLS on the TCP port.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    tls_in_front: Annotated[
        bool | None,
        typer.Option("--i-terminate-tls-in-front", help="Others can reach the port through TLS only."),
    ] = None,
    no_agent: Annotated[
        bool, typer.Option("--no-agent", help="Do not offer this machine's devices.")
    ] = False,
    ready_file: Annotated[Path | None, typer.Option(help="Written, whole, once it listens.")] = None,
    config: Annotated[Path | None, typer.Option(help="Config file (TOML).")] = None,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Run a broker in the foreground; Ctrl-C or SIGTERM ends it in order."""
    from selfsched_broker.foreground import run_broker

    given: dict[str, Any] = {
        "host": host, "port": port, "socket": socket, "slots": slots, "term_seconds": term,
        "policy": policy, "tls_cert": tls_cert, "tls_key": tls_key, "tls_in_front": tls_in_front,
        "agent": False if no_agent else None, "ready_file": ready_file, "state_dir": state_dir,
    }  # fmt: skip
    raise typer.Exit(run_broker(given, private=private, config=config, as_json=as_json))


@app.command(epilog="Example: selfsched-broker backup /backups/books.sqlite")
def backup(
    target: Annotated[Path, typer.Argument(help="A new file.")],
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Copy the books to a new file, also while the broker runs."""
    from selfsched_broker.office import books_place
    from selfsched_broker.printing import say, show_json
    from selfsched_broker.store.schema import backup as copy

    found = find_settings(state_dir)
    if state_dir is None and not as_json:
        say_place(books_place(found))
    copy(found.store_url, target)
    if as_json:
        show_json({"backup": str(target)})
    else:
        say(f"copied to {target}; to go back, stop the broker and put it in place of books.sqlite")


@app.command(epilog="Example: sudo -u selfsched selfsched-broker migrate")
def migrate(as_json: Json = False, state_dir: StateDir = None) -> None:
    """Bring the books of an older release to this one. They are backed up first."""
    from selfsched_broker.office import books_place
    from selfsched_broker.printing import say, show_json
    from selfsched_broker.store.schema import migrate as upgrade

    found = find_settings(state_dir)
    if state_dir is None and not as_json:
        say_place(books_place(found))
    done = upgrade(found.store_url)
    copy = str(done.backup) if done.backup else None
    if as_json:
        show_json({"before": done.before, "after": done.after, "backup": copy})
    elif done.before == done.after:
        say(f"nothing to do: the books are at {done.after}")
    else:
        say(f"migrated from {done.before or 'nothing'} to {done.after}; the old books: {copy or 'none'}")


@app.command(epilog="Example: sudo selfsched-broker install --dry-run")
def install(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print all that would be done, do nothing.")
    ] = False,
    slots: Annotated[int | None, typer.Option(min=1, help="CPU slots, on a machine without GPUs.")] = None,
    as_json: Json = False,
) -> None:
    """Make this machine's broker a system service: user, directories, socket, systemd unit."""
    from selfsched_broker import install as installation
    from selfsched_broker.printing import say, show_json

    steps = installation.plan(slots=slots)
    if not dry_run:
        installation.carry_out(steps)
    if as_json:
        show_json({"done": not dry_run, "steps": [str(step) for step in steps]})
        return
    if dry_run:
        for step in steps:
            say(step)
    else:
        say(f"The broker runs and listens at {installation.SOCKET}; jobs on this machine find it there.")


def _mount_simulator() -> None:
    """Add the simulator's commands. Only when one is asked for: their imports are heavy."""
    simulator = import_module("selfsched_simulator.cli")  # the layer above, known by name only
    for name in _SIMULATOR:
        app.command(name)(getattr(simulator, name))


_LATER = {"ignore_unknown_options": True, "help_option_names": []}


@app.command("simulate", context_settings=_LATER)
def _simulate(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Replay a trace in virtual time against the broker's own decisions."""
    raise AssertionError("replaced by the simulator's own command before it can run")


@app.command(
    "replay",
    context_settings=_LATER,
    epilog="Example: selfsched-broker replay sacct.txt --policy fifo,selfsched --cluster 16x8:a100",
)
def _replay(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """What this broker would have done with the jobs of a log: Slurm's, Philly's or its own."""
    raise AssertionError("replaced by the simulator's own command before it can run")


def main() -> None:
    """Run the command line; errors of ours become one line and an exit code."""
    from selfsched_broker.store.contract import StoreError

    try:
        if sys.argv[1:2] and sys.argv[1] in _SIMULATOR:
            _mount_simulator()
        app()
    except SelfschedError as error:
        print(f"selfsched-broker: {error}", file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, Refused) else EXIT_FAILED)
    except StoreError as error:
        print(f"selfsched-broker: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("fastapi", "uvicorn", "sqlalchemy", "alembic", "highspy"):
            raise
        print(
            f"selfsched-broker: {error.name} is not installed: pip install 'selfsched[broker]'",
            file=sys.stderr,
        )
        sys.exit(EXIT_WRONG_USE)


if __name__ == "__main__":
    main()
