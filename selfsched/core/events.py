"""Events: what a rank tells its supervisor, one JSON object a line.

They are the job's raw knowledge of itself; `job_model` turns them into a model, a forecast
and a bid. Instants in them are CLOCK_BOOTTIME seconds of the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from selfsched.core.lines import to_line


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")



class StepTiming(_Frozen):
    """One optimiser step (all its accumulation passes) as one rank saw it. Seconds."""

    step: int
    """Global step after it."""
    seconds: float
    """From the first batch's start to the last batch's end, data waits between excluded."""
    data_seconds: float | None = 0.0
    """Waits for data in it; None: not measured, and within the rest of the cycle."""
    cycle_seconds: float | None = None
    """From the last step's end to this one's, data waits, logging and callbacks included,
    validations, checkpoints and ends of epochs taken out; None: not measured."""
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    optimiser_seconds: float | None = None
    communication_seconds: float | None = None
    """Exposed communication; None where it was not sampled in this step."""
    local_samples: int = 0
    """Samples this rank processed in the step."""
    passes: int = 1
    """Accumulation passes."""
    warm_up: bool = False
    """Among the first steps of a segment: not representative."""


class RankStarted(_Frozen):
    kind: Literal["rank_started"] = "rank_started"
    rank: int
    pid: int


class StoppingRule(_Frozen):
    """A rule that ends a fit early when a value it watches says so (Lightning's `EarlyStopping`)."""

    monitor: str
    """Name of the value."""
    mode: Literal["min", "max"] = "min"
    """Whether smaller or larger is better."""
    patience: int = 3
    """Checks in a row without improvement that end the fit."""
    min_delta: float = 0.0
    """An improvement is more than this."""
    target: float | None = None
    """A value better than this ends the fit at once; None: there is no target."""
    divergence: float | None = None
    """A value worse than this ends it too."""
    finite: bool = True
    """Whether a value that is no number ends it."""
    best: float | None = None
    """Best so far; None: nothing was checked, or it is not told."""
    waited: int = 0
    """Checks without improvement so far."""


class FitStarted(_Frozen):
    """A `fit` begins or goes on. From rank 0, before the first step."""

    kind: Literal["fit_started"] = "fit_started"
    fit: int
    """Ordinal of this `fit` within the script, from 1."""
    package: str
    global_batch: int | None
    reference_devices: int | None
    step: int
    """Global step it goes on from."""
    planned_steps: int | None
    """Optimiser steps of the whole fit; None: no limit is known."""
    max_steps: int | None = None
    """The limit that counts steps alone; None: there is none, or it is within `planned_steps`."""
    epoch: int | None = None
    """Epochs done, where it goes on; None: not told, nor is the next ..."""
    batch: int | None = None
    """... and batches of the present one that are done."""
    batches_per_epoch: int | None = None
    steps_per_epoch: int | None = None
    max_epochs: int | None = None
    max_seconds: float | None = None
    elapsed_seconds: float = 0.0
    """Against `max_seconds`: training time of earlier segments."""
    max_seconds_holds: Literal["step", "epoch"] = "step"
    """At the end of what `max_seconds` ends the fit."""
    validations: int | None = None
    """Validations still to come until the planned end; None: unknown."""
    validation_batches: int | None = None
    """Batches of one validation, over all its loaders; None: unknown."""
    checkpoints_per_epoch: float | None = None
    """The user's own checkpoints; None: unknown."""
    early_stopping: bool = False
    stopping: tuple[StoppingRule, ...] = ()
    """What of early stopping is known; the first rule that holds ends the fit."""
    min_steps: int | None = None
    """No rule and no `max_seconds` ends the fit before so many steps ..."""
    min_epochs: int | None = None
    """... and epochs."""
    allowed_devices: tuple[int, ...] = (1,)
    """Device counts on which the global batch stays the same."""
    resume: Literal["elastic", "same_size", "never"] = "elastic"
    gradient_bytes: int = 0
    module: str = ""
    """Class of what is trained, with its module; empty: not told."""
    at: float = 0.0
    """CLOCK_BOOTTIME."""


class StepsTimed(_Frozen):
    """A batch of steps of rank 0, and what was dropped because the queue was full."""

    kind: Literal["steps_timed"] = "steps_timed"
    timings: tuple[StepTiming, ...]
    dropped: int = 0


class StretchTimed(_Frozen):
    """A stretch that is no step."""

    kind: Literal["stretch_timed"] = "stretch_timed"
    stretch: Literal["validation", "checkpoint_save", "checkpoint_load", "start", "warm_up", "epoch_end"]
    seconds: float
    step: int
    size_bytes: int | None = None


class Progressed(_Frozen):
    """Where the run stands; at most a few a second, and at each end of an epoch."""

    kind: Literal["progressed"] = "progressed"
    fit: int
    step: int
    epoch: int
    samples: int
    """Samples seen in this fit over all ranks and segments."""
    metrics: dict[str, float] = {}
    """Newest logged scalars (loss, validation metrics)."""
    peak_bytes: int | None = None
    """Most memory of this rank's device in use so far; None: not told (CPUs)."""
    resident_bytes: int | None = None
    """In use between two steps."""
    device_bytes: int | None = None
    """What the device has."""
    at: float = 0.0


class Checked(_Frozen):
    """Values that a stopping rule looks at, at the moment they are new: after a validation."""

    kind: Literal["checked"] = "checked"
    step: int
    values: dict[str, float]
    """By name; whatever was logged, NaN included."""


class DeviceObserved(_Frozen):
    """One GPU over a while, as the driver saw it. None: this driver or device does not say."""

    device: str
    """UUID."""
    looks: int
    """Readings it rests on; 0: it could not be read."""
    utilisation: float | None = None
    """Median share of time in which a kernel ran, 0 to 1; no measure of progress."""
    clock_ratio: float | None = None
    """Mean clock of its multiprocessors over the highest it has."""
    held_back: dict[str, float] | None = None
    """Why the driver slowed it down -> share of the looks: `heat`, `power`, `power_brake`,
    `hardware`, `reliability`, `board_limit`; empty: it did not."""
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    pcie_bytes_per_second: float | None = None
    """Both directions."""
    nvlink_bytes_per_second: float | None = None
    """Both directions, all links."""
    problem: str | None = None
    """Why it could not be read, at last; None: it could."""


class DevicesObserved(_Frozen):
    """The devices of this machine that the ranks train on, as their driver saw them; once a while,
    and soon when a reason to be held back comes or goes."""

    kind: Literal["devices_observed"] = "devices_observed"
    devices: tuple[DeviceObserved, ...]
    seconds: float
    """The while."""
    at: float = 0.0
    """CLOCK_BOOTTIME of its end."""


class CheckpointSaved(_Frozen):
    """A restart checkpoint is complete on disk."""

    kind: Literal["checkpoint_saved"] = "checkpoint_saved"
    fit: int
    step: int
    path: Path
    size_bytes: int
    seconds: float


class Left(_Frozen):
    """This rank leaves its fit after a checkpoint, by order, plan or deadline."""

    kind: Literal["left"] = "left"
    rank: int
    step: int
    reason: Literal["ordered", "planned", "deadline", "stopped"]


class FitFinished(_Frozen):
    """A `fit` came to its own end. From rank 0."""

    kind: Literal["fit_finished"] = "fit_finished"
    fit: int
    step: int
    epoch: int
    metrics: dict[str, float]
    best_model_path: str = ""
    final_path: Path | None = None


class Warned(_Frozen):
    """Said once: something is degraded. `code` names the row of the support table."""

    kind: Literal["warned"] = "warned"
    code: str
    message: str
    is_printed: bool = True
    """Whether the rank has told its user."""


class RankRefused(_Frozen):
    """The training cannot be run the way it was asked for; nothing was trained."""

    kind: Literal["rank_refused"] = "rank_refused"
    rank: int
    message: str


class RankRaised(_Frozen):
    """The user's code raised."""

    kind: Literal["rank_raised"] = "rank_raised"
    rank: int
    fit: int | None = None
    """Ordinal of the fit it came out of; None: it was raised outside of any."""
    type: str
    message: str
    traceback: str
    out_of_memory: bool = False
    lost_worker: bool = False
    """What a loader's worker had made could not be fetched from it: it is dead."""


Event = Annotated[
    RankStarted | FitStarted | StepsTimed | StretchTimed | Progressed | Checked | DevicesObserved
    | CheckpointSaved | Left | FitFinished | Warned | RankRefused | RankRaised,
    Field(discriminator="kind"),
]
_EVENT: TypeAdapter[Any] = TypeAdapter(Event)


def event_from_line(line: bytes | str) -> Any:
    """Parse one line of the events socket. Raises pydantic.ValidationError on nonsense."""
    return _EVENT.validate_json(line)


def event_to_line(event: _Frozen) -> bytes:
    """One event as a line of JSON, newline included."""
    return to_line(event)
