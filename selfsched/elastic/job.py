"""What a run is, as its client writes it down for the supervisor: `job.json`.

This module imports neither torch nor Lightning.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from selfsched.core.lines import to_exact_json
from selfsched.elastic.private_files import open_private, writing_private
from selfsched.errors import Refused

FILE_NAME = "job.json"


def installed_version() -> str:
    """Of this package, for those who read later what it wrote."""
    try:
        return metadata.version("selfsched")
    except metadata.PackageNotFoundError:
        return "not installed"


def working_directory() -> Path:
    """Where this process works.

    Raises:
        Refused: the directory was removed under it.
    """
    try:
        return Path.cwd()
    except OSError as error:
        raise Refused("the working directory is gone: change to one that is there") from error


class JobDescription(BaseModel):
    """One run: what to train, on how many devices, and who decides on which."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_directory: Path
    """The run's own directory, 0700: checkpoints, sockets, logs, and the payload if any."""
    name: str | None = None
    """The same name is the same job when it is started again; None: a new job each time."""
    program: Literal["command", "payload"]
    """`selfsched run -- command`, or the pickled `payload.pkl` of `selfsched.Trainer`."""
    command: tuple[str, ...] = ()
    package: Literal["lightning.pytorch", "pytorch_lightning"] = "lightning.pytorch"
    """What the zygote imports beforehand; for a payload also what its ranks train with."""
    working_directory: Path
    import_path: tuple[str, ...] = ()
    """`sys.path` of the caller; for payloads only."""

    min_devices: int = Field(default=1, ge=1)
    max_devices: int = Field(default=1, ge=1)
    batch_devices: int | None = Field(default=None, ge=1)
    validation: Literal["whole", "sharded"] = "whole"
    accelerator: Literal["cpu", "gpu"] | None = None
    """What kind of devices it is for; None: GPUs where there are any, else CPUs."""
    job_seed: int = 0
    plan: str | None = None
    """A fixed list of allocations (`2@0,1@7`) that stands in for a broker."""
    profile: bool = False
    """Visit each device count for a moment and end; stands in for a broker."""
    broker: str | None = None
    """Address of the broker; None: as `selfsched.settings` finds one."""
    without_broker: bool = False
    """Run on `max_devices` of this machine, unarbitrated."""

    without_zygote: bool = False
    """Start every rank as a fresh process."""

    fixed: bool = False
    """Any program at all, run once on fixed devices, never cut (`resume: never`)."""
    stated_seconds: float | None = Field(default=None, gt=0)
    """For `fixed`: how long the program says it needs."""
    wait_seconds: float | None = Field(default=None, ge=0)
    """How long to wait for the first devices; None: as long as it takes."""
    priority: float = Field(default=1.0, gt=0)

    detached: bool = False
    """It goes on when its user's process is gone."""
    notebook: str | None = None
    """Path of the notebook it was started from, as its Jupyter server names it."""
    kernel_id: str | None = None
    """That notebook's kernel."""
    started_at_unix: float | None = None
    """When its user started it."""
    python_version: str | None = None
    """Of the process that pickled the payload, such as `3.12`: another one cannot read it."""
    selfsched_version: str | None = None
    """Of the package that wrote this."""

    def write(self) -> None:
        """Write it into the run's directory, private to the user.

        Raises:
            Refused: the disk is full, or the directory cannot be written to.
        """
        with writing_private(self.run_directory / FILE_NAME) as file:
            file.write(to_exact_json(self).encode())

    @classmethod
    def read(cls, run_directory: Path) -> JobDescription:
        """The description that a client wrote into the run's directory.

        Raises:
            Refused: another user could have written it; it says what is run.
            OSError, ValueError: there is none, or it is damaged or another version's.
        """
        with open_private(run_directory / FILE_NAME) as file:
            return cls.model_validate(json.loads(file.read()))
