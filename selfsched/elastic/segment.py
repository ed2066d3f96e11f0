"""The contract between the supervisor and its ranks, for one segment.

A *segment* is a stretch of a job on one fixed set of devices. The supervisor writes a
`SegmentSpec` to a file in the run's directory and starts one process per device with the
usual `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `NODE_RANK`, `MASTER_ADDR`, `MASTER_PORT`, and
`_SELFSCHED_SEGMENT` = the path of that file. From there on

- **up** (rank -> supervisor) go events, one JSON object a line, over a Unix stream socket
  at `SegmentSpec.events_socket`: a socket path survives any command in between
  (`bash -c`, `uv run`), an inherited descriptor would not. Its end of file is also how
  the supervisor notices a death that nobody reported.
- **down** (supervisor -> ranks) goes nothing but a *control block*: a small memory-mapped
  file that the supervisor writes and every rank reads at each step in well under a
  microsecond, with no system call. Instants in it are CLOCK_BOOTTIME seconds, which all
  processes of one machine share and which goes on during suspend.

The ranks still agree among themselves at which step they leave (see `hooks`): the block
only says that, why, and until when.

This module imports neither torch nor Lightning.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from enum import IntEnum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from selfsched.core.events import (  # re-exported: the other half of the contract
    CheckpointSaved as CheckpointSaved,
)
from selfsched.core.events import (
    FitFinished as FitFinished,
)
from selfsched.core.events import (
    FitStarted as FitStarted,
)
from selfsched.core.events import (
    Left as Left,
)
from selfsched.core.events import (
    Progressed as Progressed,
)
from selfsched.core.events import (
    RankRaised as RankRaised,
)
from selfsched.core.events import (
    RankRefused as RankRefused,
)
from selfsched.core.events import (
    RankStarted as RankStarted,
)
from selfsched.core.events import (
    StepsTimed as StepsTimed,
)
from selfsched.core.events import (
    StepTiming as StepTiming,
)
from selfsched.core.events import (
    StretchTimed as StretchTimed,
)
from selfsched.core.events import (
    Warned as Warned,
)
from selfsched.core.events import (
    event_from_line as event_from_line,
)
from selfsched.core.events import (
    event_to_line as event_to_line,
)
from selfsched.core.lines import to_exact_json

SEGMENT_VARIABLE = "_SELFSCHED_SEGMENT"


def boottime() -> float:
    """Seconds since boot, suspend included (monotonic where there is no CLOCK_BOOTTIME)."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class SegmentSpec(_Frozen):
    """What a rank must know to take its part in a segment. One file for all ranks."""

    run_directory: Path
    """The run's own directory, 0700, same uid: checkpoints, sockets, logs."""
    ordinal: int = Field(ge=0)
    """Number of this segment within the run, from 0."""
    world_size: int = Field(ge=1)
    job_seed: int = 0
    """Seed of the job: data order and, with step and rank, the noise of each segment."""
    min_devices: int = Field(default=1, ge=1)
    max_devices: int = Field(default=1, ge=1)
    planned_devices: tuple[int, ...] = ()
    """The device counts of a fixed plan, all within the limits; empty: there is none."""
    batch_devices: int | None = None
    """Devices the global batch refers to; None: those the script names, else 1."""
    validation: Literal["whole", "sharded"] = "whole"
    cut_at: tuple[int, int] | None = None
    """(fit ordinal from 1, global step): leave by the plan there, with no order needed."""
    threads: int = Field(default=1, ge=1)
    """CPU threads for each rank."""
    accelerator: Literal["cpu", "gpu"] = "cpu"
    events_socket: Path
    control_block: Path
    resume: bool = False
    """Whether a checkpoint of an earlier segment may exist in `run_directory`."""

    def write(self, path: Path) -> None:
        """Write the spec for its ranks, private to the user."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(to_exact_json(self))

    @classmethod
    def from_environment(cls, environment: dict[str, str] | None = None) -> SegmentSpec | None:
        """The spec of this process, or None when no launcher started it."""
        path = (os.environ if environment is None else environment).get(SEGMENT_VARIABLE)
        return cls.model_validate(json.loads(Path(path).read_text())) if path else None


class Order(IntEnum):
    """What the supervisor wants of the ranks."""

    GO_ON = 0
    YIELD = 1
    """Checkpoint at the next breakable step, then leave (exit code 75)."""
    STOP = 2
    """The same, ordered by the user: the run ends there."""


class ControlBlock:
    """The supervisor's standing word to its ranks: an order and two instants.

    One writer, many readers, no lock: the order is written last, a torn read of an
    instant can only be seen before its order is. Instants are CLOCK_BOOTTIME seconds.
    """

    _FORMAT = struct.Struct("<qdd")

    def __init__(self, path: Path, *, create: bool = False) -> None:
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            if create:
                os.ftruncate(descriptor, self._FORMAT.size)
            self._map = mmap.mmap(descriptor, self._FORMAT.size)
        finally:
            os.close(descriptor)
        if create:
            self._FORMAT.pack_into(self._map, 0, Order.GO_ON, float("inf"), float("inf"))

    def order(self, order: Order, *, leave_by: float = float("inf")) -> None:
        """Order the ranks to leave; `leave_by` is the instant at which they must be gone."""
        struct.pack_into("<d", self._map, 8, leave_by)
        struct.pack_into("<q", self._map, 0, order)

    def extend(self, lease_ends_at: float) -> None:
        """Say until when the devices may be used at all, renewed with each report."""
        struct.pack_into("<d", self._map, 16, lease_ends_at)

    def read(self) -> tuple[Order, float, float]:
        """(order, leave_by, lease_ends_at)."""
        order, leave_by, lease_ends_at = self._FORMAT.unpack_from(self._map, 0)
        return Order(order), leave_by, lease_ends_at

    def close(self) -> None:
        self._map.close()
