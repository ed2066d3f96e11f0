"""Records of what past jobs leave behind: forecasts with what came, and what steps cost on hardware.

They are kept within bounds, in memory and in the store alike: what is beyond them is erased.
"""

from __future__ import annotations

from dataclasses import dataclass

from selfsched.protocol import Forecast, HardwarePrior, StepStatistics
from selfsched_broker.core.records import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class PastForecast(Record):
    """A forecast of a job as it was made, and what came."""

    job: str
    number: int
    """Among those kept of its job."""
    name: str
    """Of the job."""
    account: str
    made_at: float
    boot: str
    """The machine's run in which it was made, and ..."""
    boot_at: float
    """... the seconds of it: broker time stands still while no broker runs, the job does not."""
    devices: tuple[str, ...]
    fraction_done: float
    forecast: Forecast
    width: float = 1.0
    """By what its interval had been recalibrated."""
    actual_seconds: float | None = None
    """Until the job finished; None: it has not."""
    kept_devices: bool | None = None
    """Whether the job kept `devices` from then on."""

    @property
    def key(self) -> str:
        return f"{self.job}/{self.number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEvidence(Record):
    """What the steps of an account's job of one name cost, as it last said: for the hardware's prior.

    A job that is submitted again under its name goes on with what it knew, so the newest word of
    that name replaces the one before.
    """

    account: str
    name: str
    at: float
    """Of the newest word."""
    fresh_at: float
    """When it last said something that a fit should see."""
    fresh_steps: int
    """Steps behind it then."""
    statistics: tuple[StepStatistics, ...]

    @property
    def key(self) -> str:
        return f"{self.account}/{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnedPrior(Record):
    """What a fit over many jobs gave for a kind of hardware."""

    hardware: str
    without: str = ""
    """Key of the evidence that was left out, for the job that it comes from; empty: nothing was."""
    at: float
    jobs: tuple[str, ...] = ()
    """Keys of the evidence that is in it."""
    prior: HardwarePrior

    @property
    def key(self) -> str:
        return prior_key(self.hardware, self.without)


def prior_key(hardware: str, without: str = "") -> str:
    """Key of a learned prior. No name may have a bar in it."""
    return f"{hardware}|{without}"
