"""The demo itself: start a broker, let two accounts train, watch, account, report."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from selfsched.client import BrokerClient
from selfsched.commands.printing import console, plain, print_json
from selfsched.demo import evidence
from selfsched.demo.account import Account, Evidence, account_for, story_of
from selfsched.demo.broker import TERM_SECONDS, DemoBroker, start_broker
from selfsched.demo.processes import Child, Processes
from selfsched.demo.report import write_report
from selfsched.demo.result import DemoStory
from selfsched.demo.telling import account_in_words
from selfsched.demo.watch import Watch
from selfsched.errors import EXIT_FAILED, EXIT_FINE, Refused, SelfschedError
from selfsched.launch.locks import DIRECTORY_VARIABLE
from selfsched.protocol import Outcome
from selfsched.settings import parse_address
from selfsched.witness import installation, record

EXAMPLES = Path(__file__).parents[2] / "examples"
ACCOUNTS: tuple[Account, ...] = ("notebook", "script")
_LOOK_EVERY_SECONDS = 0.5
_SETTLE_SECONDS = 15.0


@dataclass(frozen=True)
class Length:
    """How long a demo is."""

    notebook_epochs: int
    """Of three steps each."""
    script_epochs: int
    """Of 57 steps each."""
    gives_up_seconds: float


# The script comes and goes within the first quarter of the notebook's work, so that each job
# has a forecast at 25 % whose allocation holds, with more than 20 s to go.
FULL = Length(notebook_epochs=280, script_epochs=8, gives_up_seconds=500)
QUICK = Length(notebook_epochs=70, script_epochs=3, gives_up_seconds=260)


class DemoFailed(SelfschedError):
    """A part of the demo failed; the message ends with the last lines of its log."""


def run_demo(report: Path, *, quick: bool, as_json: bool) -> int:
    """Run the demo, write its report and print its account.

    Returns:
        The exit code: whether both jobs finished, saw each sample once and left nothing leased.

    Raises:
        Refused: this machine or installation cannot run it.
        DemoFailed: a part failed.
    """
    check_machine()
    signal.signal(signal.SIGTERM, _interrupt)
    say = _speaker(as_json)
    state = Path(tempfile.mkdtemp(prefix="selfsched-demo-"))
    keep = False
    try:
        story = _Demo(state, QUICK if quick else FULL, say).run()
        keep = not all_well(story)
    except Refused:
        raise
    except SelfschedError as error:
        keep = True
        raise DemoFailed(f"{error}\nAll logs are in {state}") from error
    finally:
        if not keep:
            shutil.rmtree(state)
    path = write_report(story, report)
    for text in account_in_words(story):
        say(text)
    say(f"Report: {path.absolute()}")
    if keep:
        say(f"All logs are in {state}")
    if as_json:
        print_json(story.result.model_dump(mode="json"))
    return EXIT_FAILED if keep else EXIT_FINE


def check_machine() -> None:
    """Refuse where the demo cannot be run.

    Raises:
        Refused: another system, too few cores, or no examples.
    """
    if not sys.platform.startswith("linux"):
        raise Refused("the demo needs Linux: its devices are CPU slots")
    if _cores() < 2:
        raise Refused("the demo needs two cores for its two CPU slots; this process may use one only")
    if not (EXAMPLES / "digits.ipynb").exists():
        raise Refused(f"the demo's examples are not in {EXAMPLES}: run it from a clone of the repository")


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def all_well(story: DemoStory) -> bool:
    """Whether both jobs finished, saw each sample once, and left nothing leased."""
    jobs = story.result.jobs
    done = len(jobs) == len(ACCOUNTS) and all(job.finished and job.samples_seen_once for job in jobs)
    return done and story.live_leases == 0


def _speaker(as_json: bool) -> Callable[[str], None]:
    """Prints for people: on standard error when standard output is for a program."""
    if as_json:
        return lambda line: print(line, file=sys.stderr, flush=True)
    shown = console()
    return lambda line: shown.print(plain(line), soft_wrap=True)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


class _Demo:
    """One demo under way: everything it makes lies in `state`, which a failed one leaves behind."""

    def __init__(self, state: Path, length: Length, say: Callable[[str], None]) -> None:
        self._state = state
        self._length = length
        self._say = say
        self._began_at = time.time()
        self._children: dict[str, Child] = {}

    def run(self) -> DemoStory:
        with Processes(str(self._state), self._state) as processes, ExitStack() as stack:
            broker = start_broker(processes, self._state, ACCOUNTS)
            self._children["broker"] = broker.child
            self._say(f"A broker leases two CPU slots at {broker.address}, in terms of {TERM_SECONDS:.0f} s.")
            clients = {
                account: stack.enter_context(BrokerClient(parse_address(broker.address), token=token))
                for account, token in broker.tokens.items()
            }
            watch = Watch(clients, self._say)
            self._train(processes, broker, watch)
            return self._tell(watch)

    def _train(self, processes: Processes, broker: DemoBroker, watch: Watch) -> None:
        """Both jobs, from their start to their end."""
        self._say(
            "Account notebook executes examples/digits.ipynb in a Jupyter kernel, on one to two devices."
        )
        notebook = [sys.executable, "-m", "selfsched.demo.notebook", str(EXAMPLES / "digits.ipynb"),
                    str(self._state / "digits.ipynb"), str(self._length.notebook_epochs)]  # fmt: skip
        self._children["notebook"] = processes.start(
            "notebook", notebook, self._environment(broker, "notebook")
        )
        self._watch_until(watch, lambda: self._script_may_start(watch))
        self._say("Account script runs examples/chars.py, on one device.")
        script = [sys.executable, "-m", "selfsched", "run", "--devices", "1", "--name", "chars", "--",
                  sys.executable, str(EXAMPLES / "chars.py"),
                  "--epochs", str(self._length.script_epochs)]  # fmt: skip
        self._children["script"] = processes.start("script", script, self._environment(broker, "script"))
        self._watch_until(
            watch, lambda: all(self._children[account].exit_code() == 0 for account in ACCOUNTS)
        )

    def _environment(self, broker: DemoBroker, account: Account) -> dict[str, str]:
        """What an account's processes see: its own token, runs and witness, one broker."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SELFSCHED_")}
        if locks := os.environ.get(DIRECTORY_VARIABLE):
            kept[DIRECTORY_VARIABLE] = locks
        kept |= {
            "SELFSCHED_BROKER": broker.address,
            "SELFSCHED_TOKEN_FILE": str(broker.token_files[account]),
            "SELFSCHED_RUNS_DIR": str(self._state / "runs" / account),
        }
        return installation.install(self._state / "witness" / account, kept)

    def _script_may_start(self, watch: Watch) -> bool:
        seen = watch.seen.get("notebook")
        return seen is not None and seen.view.step > 0

    def _watch_until(self, watch: Watch, done: Callable[[], bool]) -> None:
        """Look again and again; a part that ends otherwise than it should ends the demo.

        Raises:
            DemoFailed: with the last lines of the log of what failed.
        """
        while True:
            watch.look()
            if done():
                return
            for name, child in self._children.items():
                code = child.exit_code()
                if code is not None and (code != EXIT_FINE or name == "broker"):
                    raise DemoFailed(
                        f"{name} ended with exit code {code}; its last words ({child.log}):\n{child.tail()}"
                    )
            if time.time() - self._began_at > self._length.gives_up_seconds:
                tails = "\n".join(f"--- {child.log}\n{child.tail()}" for child in self._children.values())
                raise DemoFailed(f"not done after {self._length.gives_up_seconds:.0f} s\n{tails}")
            time.sleep(_LOOK_EVERY_SECONDS)

    def _tell(self, watch: Watch) -> DemoStory:
        """The whole story, once both jobs are done."""
        live_leases = self._wait_for_empty(watch)
        jobs = [self._evidence(account, watch) for account in ACCOUNTS]
        first_at = min(job.registered_at for job in jobs)
        return DemoStory(
            result=account_for(jobs),
            jobs=tuple(story_of(job, first_at) for job in jobs),
            decisions=watch.decisions(first_at),
            wall_s=round(time.time() - self._began_at, 1),
            started=time.strftime("%d %B %Y, %H:%M", time.localtime(self._began_at)),
            machine=f"{platform.system()}, {_cores()} cores, Python {platform.python_version()}",
            live_leases=live_leases,
        )

    def _wait_for_empty(self, watch: Watch) -> int:
        """Devices still held, once the broker had time to see that all are empty."""
        give_up_at = time.monotonic() + _SETTLE_SECONDS
        while (held := watch.held_devices()) and time.monotonic() < give_up_at:
            time.sleep(_LOOK_EVERY_SECONDS)
        watch.look()
        return held

    def _evidence(self, account: Account, watch: Watch) -> Evidence:
        seen = watch.seen[account]
        told = evidence.read_run(self._state / "runs" / account)
        return Evidence(
            account=account,
            name=seen.view.name,
            registered_at=told.history.registered_at_unix or seen.registered_at,
            finished=seen.view.outcome is Outcome.FINISHED,
            record=record.read(self._state / "witness" / account),
            forecasts=told.forecasts,
            rho=tuple(seen.rho),
            reasons=seen.view.reasons,
            steps=told.steps,
        )
