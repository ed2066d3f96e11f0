"""The demo's broker: a process of its own on SQLite, over HTTP on loopback, with tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfsched.client import BrokerClient
from selfsched.demo.processes import Child, Processes
from selfsched.errors import Refused, SelfschedError
from selfsched.launch.locks import DIRECTORY_VARIABLE
from selfsched.protocol import DeviceState
from selfsched.settings import parse_address

TERM_SECONDS = 30.0
SLOTS = 2
_START_SECONDS = 40.0
_COMMAND_SECONDS = 60.0
_PROGRAM = [sys.executable, "-m", "selfsched_broker.cli"]

SETTINGS = {
    "HOST": "127.0.0.1",
    "PORT": "0",
    "SLOTS": str(SLOTS),
    "TERM_SECONDS": f"{TERM_SECONDS:g}",
    # A move must be repaid before the next one; the defaults, ten restarts and a minute, are for long jobs.
    "REPAY_FACTOR": "5",
    "REPAY_MIN_SECONDS": "5",
    "MIN_AUCTION_SECONDS": "2",
}
"""As `SELFSCHED_BROKER_*`: everything else is as in a lab."""


@dataclass(frozen=True)
class DemoBroker:
    """A running broker and who may speak to it."""

    child: Child
    address: str
    tokens: Mapping[str, str]
    token_files: Mapping[str, Path]


def start_broker(processes: Processes, state: Path, accounts: Sequence[str]) -> DemoBroker:
    """Start it, wait until it offers its slots, and make the accounts.

    Raises:
        Refused: a slot of this machine is in use by something else.
        SelfschedError: it does not start.
    """
    directory = state / "broker"
    directory.mkdir(mode=0o700)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SELFSCHED_")}
    if locks := os.environ.get(DIRECTORY_VARIABLE):
        kept["SELFSCHED_BROKER_LOCK_DIR"] = locks
    environment = kept | {f"SELFSCHED_BROKER_{name}": value for name, value in SETTINGS.items()}
    environment["SELFSCHED_BROKER_STATE_DIR"] = str(directory)
    child = processes.start("broker", [*_PROGRAM, "serve"], environment)
    address = _wait_for_address(child, directory / "broker.json")
    tokens = {account: _make_account(account, environment) for account in accounts}
    files = {account: _keep(state / f"{account}.token", token) for account, token in tokens.items()}
    _wait_for_slots(address, next(iter(tokens.values())))
    return DemoBroker(child, address, tokens, files)


def _wait_for_address(child: Child, ready: Path) -> str:
    give_up_at = time.monotonic() + _START_SECONDS
    while not ready.exists():
        code = child.exit_code()
        if code is not None or time.monotonic() > give_up_at:
            how = "does not listen" if code is None else f"ended with exit code {code}"
            raise SelfschedError(f"the broker {how}; its last words ({child.log}):\n{child.tail()}")
        time.sleep(0.05)
    return str(json.loads(ready.read_text())["address"])


def _make_account(account: str, environment: Mapping[str, str]) -> str:
    """Make an account; its token."""
    _administer(["users", "add", account], environment)
    return _administer(["users", "token", account], environment).strip()


def _administer(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        [*_PROGRAM, *arguments],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
    )
    if done.returncode != 0:
        raise SelfschedError(f"selfsched-broker {' '.join(arguments)}: {done.stderr.strip()[-1000:]}")
    return done.stdout


def _keep(path: Path, token: str) -> Path:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    return path


def _wait_for_slots(address: str, token: str) -> None:
    give_up_at = time.monotonic() + _START_SECONDS / 2
    with BrokerClient(parse_address(address), token=token) as client:
        while True:
            devices = client.cluster().devices
            busy = [device.id for device in devices if device.state is not DeviceState.FREE]
            if len(devices) == SLOTS and not busy:
                return
            if time.monotonic() > give_up_at:
                what = f"in use: {', '.join(busy)}" if busy else f"only {len(devices)} there"
                raise Refused(
                    f"the demo needs {SLOTS} free CPU slots of this machine ({what}); "
                    "wait for other jobs of selfsched here to end (`selfsched status`)"
                )
            time.sleep(0.1)
