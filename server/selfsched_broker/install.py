"""A lab's broker as a service of this machine: user, group, directories, systemd unit.

`plan` says, as data, all that would be done; `carry_out` does it; `--dry-run` prints it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from selfsched.errors import Refused, SelfschedError
from selfsched_broker.settings import DEFAULT_STATE_DIR, SYSTEM_CONFIG

SERVICE = "selfsched-broker"
USER = "selfsched"
SOCKET = Path("/run/selfsched/broker.sock")
UNIT = Path("/etc/systemd/system/selfsched-broker.service")
LOCKS = Path("/run/lock/selfsched")
TMPFILES = Path("/etc/tmpfiles.d/selfsched.conf")
SYSTEMD = Path("/run/systemd/system")
"""There where systemd runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A command."""

    argv: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"run    {shlex.join(self.argv)}    # {self.why}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """A file, made if it is not there; `replace`: also if it is."""

    path: Path
    text: str
    mode: int = 0o644
    replace: bool = True

    def __str__(self) -> str:
        kept = "" if self.replace else " unless it exists"
        lines = "".join(f"\n         {line}" for line in self.text.rstrip().splitlines())
        return f"write  {self.path} (mode {self.mode:04o}){kept}{lines}"


Step = Run | Write


def plan(*, python: str = sys.executable, slots: int | None = None) -> tuple[Step, ...]:
    """Everything that an installation does, in order."""
    return (
        Run(
            argv=(
                "useradd",
                "--system",
                "--user-group",
                "--no-create-home",
                "--shell",
                "/usr/sbin/nologin",
                USER,
            ),
            why="the service's own user and group",
        ),
        Run(
            argv=("install", "-d", "-m", "0700", "-o", USER, "-g", USER, str(DEFAULT_STATE_DIR)),
            why="the books: for the service alone",
        ),
        Write(path=TMPFILES, text=f"d {LOCKS} 1777 root root -\n"),
        Run(argv=("systemd-tmpfiles", "--create", str(TMPFILES)), why="the device locks, sticky"),
        Write(path=SYSTEM_CONFIG, text=_config(slots), replace=False),
        Write(path=UNIT, text=_unit(python)),
        Run(argv=("systemctl", "daemon-reload"), why="systemd reads the unit"),
        Run(argv=("systemctl", "enable", "--now", SERVICE), why="start now and at every boot"),
    )


def _config(slots: int | None) -> str:
    lines = [
        "# Settings of this machine's selfsched broker; the table is in docs/administration.md.",
        f'state_dir = "{DEFAULT_STATE_DIR}"',
        f'socket = "{SOCKET}"',
        f"slots = {slots}" if slots else "# slots = 4            # CPU slots of a machine without GPUs",
        "# term_seconds = 300",
    ]
    return "\n".join(lines) + "\n"


def _unit(python: str) -> str:
    return f"""[Unit]
Description=selfsched broker: shares this machine's devices among training jobs
Documentation=https://pypi.org/project/selfsched/
After=network.target

[Service]
Type=exec
User={USER}
Group={USER}
ExecStart={python} -m selfsched_broker serve --config {SYSTEM_CONFIG}
Restart=on-failure
RestartSec=2
RuntimeDirectory=selfsched
RuntimeDirectoryMode=0755
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths={DEFAULT_STATE_DIR} {LOCKS}
PrivateTmp=no

[Install]
WantedBy=multi-user.target
"""


def carry_out(steps: Sequence[Step]) -> None:
    """Do it.

    Raises:
        Refused: not root, or no systemd.
        SelfschedError: a command failed; what was done before stays done, and doing all again is safe.
    """
    if os.geteuid() != 0:
        raise Refused("this needs root: run it with sudo, or look at it with --dry-run")
    if not SYSTEMD.exists():
        raise Refused(
            "this machine does not run systemd: see --dry-run for what is needed, and start "
            "`selfsched-broker serve` by your own means"
        )
    for step in steps:
        if isinstance(step, Write):
            _write(step)
        else:
            _run(step)


def _write(step: Write) -> None:
    if step.path.exists() and not step.replace:
        return
    step.path.parent.mkdir(parents=True, exist_ok=True)
    step.path.write_text(step.text)
    step.path.chmod(step.mode)


def _run(step: Run) -> None:
    user_exists = 9  # exit code of useradd
    try:
        done = subprocess.run(step.argv, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SelfschedError(f"{step.argv[0]} cannot be run: {error.strerror}") from error
    if done.returncode and not (step.argv[0] == "useradd" and done.returncode == user_exists):
        raise SelfschedError(f"`{shlex.join(step.argv)}` failed: {done.stderr.strip()[-500:]}")
