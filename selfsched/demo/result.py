"""What a demo came to: `DemoResult` is the account that `--json` prints, `DemoStory` the rest.

Instants end in `_s` and are seconds since the job in question registered, as the contract of
`selfsched demo --json` has it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DemoSegment(_Frozen):
    """A stretch of a job on so many devices."""

    devices: int
    start_s: float
    end_s: float
    steps: int


class DemoForecast(_Frozen):
    """One forecast of a job's finish, and what came."""

    at: float
    """Fraction of its planned steps."""
    made_at_s: float
    devices: int
    """On which the job ran then."""
    assumption: Literal["as_now", "look_ahead"]
    allocation_held: bool
    """Whether the job kept these devices from then to its end."""
    predicted_finish_s: float
    low_s: float
    """10 % quantile of the finish."""
    high_s: float
    """90 % quantile."""
    actual_finish_s: float

    def error(self) -> float:
        """|predicted - actual| / (actual - made at)."""
        left = self.actual_finish_s - self.made_at_s
        return abs(self.predicted_finish_s - self.actual_finish_s) / left if left > 0 else 0.0


class DemoJob(_Frozen):
    """One job of the demo."""

    name: str
    account: Literal["notebook", "script"]
    finished: bool
    rho: float | None
    """The final one."""
    samples_seen_once: bool
    segments: tuple[DemoSegment, ...]
    forecasts: tuple[DemoForecast, ...]


class DemoResult(_Frozen):
    """The object that `selfsched demo --json` prints."""

    jobs: tuple[DemoJob, ...]
    speedup_two_devices: float | None


class LossPoint(_Frozen):
    """Loss after so many samples, and on how many devices it came about."""

    samples: int
    loss: float
    devices: int


class Decision(_Frozen):
    """Why a job was given what it has, by one auction of the broker."""

    at_s: float
    """Since the demo's first job registered."""
    auction: int
    trigger: str
    account: str
    devices: int
    reason: str


class StepParts(_Frozen):
    """What a step of a job consists of on so many devices."""

    devices: int
    steps: int
    step_seconds: float
    parts: dict[str, float]
    """Seconds by part: data, forward, backward, communication, optimiser, other."""


class JobStory(_Frozen):
    """What the report shows of a job beyond its account."""

    account: str
    registered_s: float
    """Since the demo's first job registered."""
    losses: tuple[LossPoint, ...] = ()
    steps: tuple[StepParts, ...] = ()
    reasons: tuple[str, ...] = ()
    rho_over_time: tuple[tuple[float, float], ...] = ()
    """(seconds since the job registered, rho)."""
    sample_faults: tuple[str, ...] = ()


class DemoStory(_Frozen):
    """Everything that the report is drawn from."""

    result: DemoResult
    jobs: tuple[JobStory, ...]
    decisions: tuple[Decision, ...] = ()
    wall_s: float
    started: str
    """Date and time, for people."""
    machine: str
    """What it ran on, for people."""
    live_leases: int = 0
    """At the end; anything but 0 is a fault."""
