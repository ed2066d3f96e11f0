"""A broker as a process of its own, as a person starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

PROGRAM = (sys.executable, "-m", "selfsched_broker")


def environment(tmp: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Nothing of ours from outside, and places of a test's own."""
    kept = {name: value for name, value in os.environ.items() if "SELFSCHED" not in name}
    places = {
        "XDG_RUNTIME_DIR": str(tmp / "run"),
        "XDG_STATE_HOME": str(tmp / "xdg"),
        "SELFSCHED_LOCK_DIR": str(tmp / "locks"),
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }
    for name in ("run", "xdg", "locks"):
        (tmp / name).mkdir(mode=0o700, exist_ok=True)
    return kept | places | dict(extra or {})


def command(tmp: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `selfsched-broker` to its end."""
    return subprocess.run(
        [*PROGRAM, *arguments], env=environment(tmp, extra), capture_output=True, text=True, timeout=60
    )


@dataclass
class BrokerProcess:
    """A broker that listens."""

    process: subprocess.Popen[str]
    addresses: dict[str, Any]

    def client(self) -> httpx.Client:
        """An administrator's."""
        transport = httpx.HTTPTransport(uds=self.addresses["admin_socket"])
        return httpx.Client(transport=transport, base_url="http://broker", timeout=20)

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(30)


@contextmanager
def broker_process(tmp: Path, *arguments: str, **extra: str) -> Iterator[BrokerProcess]:
    """Start a broker and wait until it has said where it listens; killed at the end."""
    ready = tmp / "ready.json"
    ready.unlink(missing_ok=True)
    process = subprocess.Popen(
        [*PROGRAM, "serve", "--ready-file", str(ready), *arguments],
        env=environment(tmp, extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        give_up_at = time.monotonic() + 40
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > give_up_at:
                process.kill()
                raise AssertionError(f"no broker: {process.communicate()[0]}")
            time.sleep(0.02)
        yield BrokerProcess(process, json.loads(ready.read_text()))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
