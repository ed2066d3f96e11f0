"""What is simulated, besides the trace and the policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.core.market import FairnessOptions, Policy
from selfsched_broker.service import Rules
from selfsched_simulator.cluster import Cluster
from selfsched_simulator.faults import NO_FAULTS, FaultOptions
from selfsched_simulator.job import Habits

_YEAR_SECONDS = 3.15e7
# What has ended is of no use to a simulation, and costs a look at each decision.
_KEPT_ENDED_JOBS, _KEPT_AUCTIONS = 20, 20


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationOptions:
    """What is simulated, besides the trace and the policy."""

    cluster: Cluster
    round_seconds: float | None = None
    """Term, and the only moments of decision; None: the broker's own clock."""
    term_seconds: float = LeaseOptions().term_seconds
    """Term without rounds."""
    report_seconds: float = LeaseOptions().report_seconds
    """How old a running job's last report may be when the broker decides."""
    report_change: float = 0.0
    """And how old as a part of its remaining time: with 0.05 a job of a day reports once an hour."""
    skips_calm_ticks: bool = False
    """While every job has all the devices it can use, ticks are left out but the last before something
    happens: at them each would win what it has."""
    habits: Habits = field(default_factory=Habits)
    faults: FaultOptions = NO_FAULTS
    fairness: FairnessOptions = field(default_factory=FairnessOptions)
    """The term in it is replaced by this one's."""
    limit_seconds: float = math.inf
    """Real time after which it stops with what there is."""

    @property
    def seed(self) -> int:
        """Of everything that is drawn."""
        return self.habits.seed

    @property
    def tick_seconds(self) -> float:
        """Between two ticks."""
        return self.round_seconds or self.term_seconds


def rules_of(options: SimulationOptions, policy: Policy) -> Rules:
    """By what the broker decides.

    Its own times rule where things can go wrong; else it is as if nobody could fall silent.
    """
    lease = LeaseOptions(
        report_seconds=options.report_seconds,
        term_seconds=options.tick_seconds,
        rounds_only=options.round_seconds is not None,
        idle_warned_seconds=1e9,
        idle_lost_seconds=1e9,
        kept_ended_jobs=_KEPT_ENDED_JOBS,
        kept_auctions=_KEPT_AUCTIONS,
    )
    if not options.faults.any:
        lease = replace(lease, ttl_seconds=_YEAR_SECONDS, node_silent_seconds=1e9, silent_job_seconds=1e9)
    fairness = replace(options.fairness, term_seconds=options.tick_seconds)
    return Rules(policy=policy, lease=lease, fairness=fairness, seed=options.seed)
