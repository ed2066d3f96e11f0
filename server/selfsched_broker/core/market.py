"""What a policy is shown and what it answers: the contract between the arbiter and policies.

The arbiter turns the books into a `Market`, a policy turns the market into a `Ruling`, the
arbiter turns the ruling into leases, claims and yield orders. A policy is a pure function:
it keeps nothing between calls, and all randomness comes from the generator it is given.

Which seats there are is the arbiter's word, what becomes of them the policy's:

========== ================================================================================
trigger    seats
========== ================================================================================
tick       every free device, and every held one whose holder may be moved at all
device_free  the free devices
arrival    the free devices, and what holders have beyond their share now and have repaid;
           nobody is brought below its share
visit      as arrival, and where nothing is free what the holder furthest above its share has
           beyond it, rounded up; only first visits take held seats, nobody else does
fixed      none of a policy's
========== ================================================================================

Contenders are all live jobs that want devices (not the paused ones), those that hold and
those that do not, also in auctions where nothing of theirs is at stake: the weights of all
make the shares. A device that a job has claimed but not yet got counts as one it holds.
A job of `resume: never`, and one in the middle of its first visit, has `may_move=False`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from selfsched.protocol import Placement, Resume, StandingBid

Trigger = Literal["tick", "device_free", "arrival", "visit", "fixed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """A device that can be awarded in this auction: free, or held and up for auction."""

    device: str
    node: str
    model: str
    holder: str | None
    """Job that holds it now (it may win it again without a restart)."""
    doubtful: bool = False
    """A neighbour on its node is sick: taken only where nothing else fits as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """A live job as a policy may see it. Times in seconds, `remaining` in the bid's rows."""

    job: str
    number: int
    """Order of registration."""
    account: str
    account_weight: float
    priority: float
    min_devices: int
    max_devices: int
    allowed_devices: tuple[int, ...]
    """Device counts it can run on, ascending, at least one."""
    resume: Resume
    bid: StandingBid | None
    """None or all rows unmeasured: it needs its first visit."""
    age_seconds: float
    """Since registration, the owner's pauses excluded."""
    fraction_done: float
    share: float
    """Devices, averaged over the job's life (`fairness.current_shares`, integrated)."""
    kept: tuple[str, ...] = ()
    """Devices it holds that are not in this auction (their term goes on)."""
    at_stake: tuple[str, ...] = ()
    """Devices it holds that are among the seats."""
    last_devices: tuple[str, ...] = ()
    """Devices it had last: preferred where all else is equal."""
    may_move: bool = True
    """False: its last move is not repaid, so it keeps at least what it has."""
    waiting_seconds: float = 0.0
    passed_over: int = 0
    quota_left: int | None = None
    """Further devices its account may hold; None: no limit."""
    wanted_devices: tuple[str, ...] = ()
    """Exactly these or nothing."""
    claim_factor: float = 1.0
    """What the times it bids are to be multiplied with, by the progress seen (`metering`)."""
    claim_factors: Mapping[int, float] = field(default_factory=dict)
    """Likewise by device count, by its account's record (`track_record`); a count that lacks: 1."""
    claim_paces: tuple[tuple[Placement, float], ...] = ()
    """Where it was seen for long enough: seconds of the whole run, whatever it claims."""
    claim_sigma_log: float | None = None
    """How sure they are then (log); None: as sure as the bid says."""
    ran_device_seconds: Mapping[str, float] = field(default_factory=dict)
    """What it was leased so far, by model; empty where the cluster has one model only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FairnessOptions:
    """The knobs of design section 7."""

    fairness_knob: float = 0.8
    """f: the (1 - f) worst by rho are considered, at least ten."""
    term_seconds: float = 300.0
    move_gain: float = 1.2
    """A move must gain this many times its cost."""
    repay_factor: float = 10.0
    repay_min_seconds: float = 60.0
    unknown_end_seconds: float = 14_400.0
    """Stands in for the remaining time of a job that could not measure itself on its visit."""
    visit_steps: int = 30
    visit_seconds: float = 60.0
    payments: Literal["auto", "record", "charge"] = "auto"
    """Whether the payments of an auction are charged or only recorded (`charging`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Market:
    """One auction's question."""

    number: int
    trigger: Trigger
    seats: tuple[Seat, ...]
    contenders: tuple[Contender, ...]
    total_devices: int
    """Healthy devices of the cluster, in this auction or not."""
    kept_seats: tuple[Seat, ...] = ()
    """The devices that contenders keep, for where they lie. On one node it may be left out."""
    reserved_for: Mapping[str, int] = field(default_factory=dict)
    """Wide jobs for which devices are being kept: job -> devices."""
    options: FairnessOptions = field(default_factory=FairnessOptions)


@dataclass(frozen=True, kw_only=True, slots=True)
class Award:
    """The answer for one contender. Nobody is left without one, or without a reason."""

    job: str
    devices: tuple[str, ...]
    """All devices it shall run on from now, `kept` included."""
    considered: bool = True
    visit: bool = False
    rho_before: float | None = None
    rho_after: float | None = None
    payment: float | None = None
    """Themis's c in (0, 1]; None for who won nothing by the auction."""
    term_part: float | None = None
    """The part of its term that this leaves it, where payments are charged (`charging`)."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ruling:
    """One auction's answer."""

    awards: Mapping[str, Award]
    gap: float | None = None
    """Proved bound on log-welfare left on the table per job; 0 = exact; None: no auction."""
    reserve: Mapping[str, int] = field(default_factory=dict)
    """Wide jobs for which freed devices are to be kept from now on."""
    reason: str = ""
    settle: Callable[[], Iterator[tuple[str, float]]] | None = field(default=None, compare=False, repr=False)
    """Where payments were read off the prices and exact ones are worth their time: computes (job, c)
    one winner after the other. Pure, a second or more, for after the awards are carried out."""


def repay_factor(policy: Policy, fairness: FairnessOptions, *, resizable: bool) -> float:
    """Restarts' worth of steps that repay a job's move under a policy.

    A policy may state a smaller number for jobs that can be resized, as `resize_repay_factor`, where its
    worths weigh a move against how long the new placement will be of use.
    """
    least: float = getattr(policy, "resize_repay_factor", fairness.repay_factor)
    return min(fairness.repay_factor, least) if resizable else fairness.repay_factor


class Policy(Protocol):
    """A rule that divides the seats.

    Contract: every contender of the market has an award; awarded devices are all of the
    contender's own `kept` and seats of the market; no device is awarded twice; counts are 0 or
    in `allowed_devices`, or nothing changes; a contender with `may_move=False` keeps what it
    has; the same market and generator state give the same ruling.
    """

    @property
    def name(self) -> str: ...

    def rule(self, market: Market, rng: np.random.Generator) -> Ruling: ...
