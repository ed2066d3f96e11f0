"""How long `selfsched` lets anybody wait: it promises no share, but that nobody is late without limit.

The bound is the rule's own. Lateness counts with (rho / 1.3)^6; what stands against it is at most
critical 30 and an equal job's shortness 1, times the devices the rival needs over those the job needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from selfsched_broker.core.policies import policy_named
from selfsched_broker.core.policies.selfsched import Weights
from selfsched_simulator.cluster import one_node
from selfsched_simulator.engine import Simulation
from selfsched_simulator.job import SimulatedJob
from selfsched_simulator.options import SimulationOptions
from selfsched_simulator.speeds import ByCount
from selfsched_simulator.trace import TraceJob
from tests.simulator.test_scenarios import HABITS, by_name, counts, elastic, waits

DAY = 86_400.0
HOUR = 3_600.0
GANG = {4: 3 * DAY}
ELASTIC = {n: 12 * DAY / n for n in range(1, 5)}


def simulate(rows: Sequence[TraceJob], gpus: int, *, term: float) -> Simulation:
    """Under `selfsched`, with reports once a term."""
    options = SimulationOptions(cluster=one_node(gpus), term_seconds=term, report_seconds=term, habits=HABITS)
    ordered = sorted(rows, key=lambda row: row.arrival_seconds)
    simulation = Simulation(ordered, policy_named("selfsched"), options)
    simulation.run()
    simulation.books.validate()
    return simulation


def longest_rho(rival_devices: int, own_devices: int) -> float:
    """At which a job comes before any rival that is neither late nor far shorter than usual."""
    weights = Weights()
    against = (weights.critical + 1) * rival_devices / own_devices
    return float(weights.late_from * max(against, 1.0) ** (1 / weights.late_power))


def smallest(job: SimulatedJob) -> int:
    speed = job.row.speed
    assert isinstance(speed, ByCount)
    return min(speed.seconds)


def jobs_per_device(simulation: Simulation, job: SimulatedJob, devices: int) -> float:
    """Of all that lived while it did, on average; at least one, as the rule counts.

    With fewer jobs than devices it is the devices that they ask for, for a gang up to its own size.
    """
    begin, end = job.row.arrival_seconds, job.finished_at
    assert end is not None
    lived = 0.0
    for other in simulation.jobs.values():
        until = other.finished_at
        assert until is not None
        lived += max(0.0, min(end, until) - max(begin, other.row.arrival_seconds))
    crowd = lived / (end - begin) / devices
    gang = sum(smallest(other) for other in simulation.jobs.values()) / len(simulation.jobs)
    return crowd if crowd >= 1 else max(1.0, crowd * min(gang, smallest(job)))


def rho_lived(simulation: Simulation, name: str, devices: int) -> float:
    """Time taken over the fair time, on the devices it needs."""
    job = by_name(simulation)[name]
    assert job.finished_at is not None
    fair = job.row.alone_seconds * jobs_per_device(simulation, job, devices)
    return (job.finished_at - job.row.arrival_seconds) / fair


# --- U7: one holds everything for days -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("holder", "run_hours", "size"),
    [(GANG, 4.0, 1), (GANG, 40.0, 4), (GANG, 300.0, 4), (ELASTIC, 4.0, 4), (ELASTIC, 40.0, 1)],
)
def test_u7_a_holder_for_days_makes_nobody_later_than_the_bound(
    holder: dict[int, float], run_hours: float, size: int
) -> None:
    rows = [elastic("holder", 0, holder), elastic("new", HOUR, {size: run_hours * HOUR})]
    simulation = simulate(rows, 4, term=HOUR)
    run = run_hours * HOUR
    bound = longest_rho(min(holder), size)
    ticks = 2 * HOUR / run
    assert rho_lived(simulation, "new", 4) <= max(bound, 2.0) + ticks
    new = by_name(simulation)["new"]
    crowd = jobs_per_device(simulation, new, 4)
    assert sum(waits(new)) <= (max(bound, 2.0) * crowd - 1) * run + 3 * HOUR


def test_u7_a_share_of_whole_devices_is_not_withheld_by_a_job_that_can_shrink() -> None:
    rows = [
        elastic("holder", 0, {n: 12 * DAY / n for n in range(1, 5)}),
        elastic("new", HOUR, {n: 40 * HOUR / n for n in (1, 2)}),
    ]
    jobs = by_name(simulate(rows, 4, term=HOUR))
    assert sum(waits(jobs["new"])) <= HOUR


def test_u7_a_middling_run_passes_a_stream_of_short_ones_within_the_bound() -> None:
    """Behind the longest, which is critical, and short ones that each come before it while it is not late."""
    stream = [elastic(f"n{i}", i * 90.0, {1: 90}, account=f"team-{i % 4}") for i in range(120)]
    rows = [*stream, elastic("longest", 0, {1: 15_000}), elastic("middling", 130, {1: 1000})]
    simulation = simulate(rows, 2, term=100.0)
    assert rho_lived(simulation, "middling", 2) <= longest_rho(1, 1) + 0.2
    jobs = by_name(simulation)
    ends = {name: job.finished_at or 0.0 for name, job in jobs.items()}
    assert ends["middling"] < max(ends[row.name] for row in stream), "it came only when all had gone"


# --- U14: a wide request and a stream of narrow ones --------------------------------------------


@pytest.mark.parametrize(("gap", "term"), [(28.0, 100.0), (22.0, 100.0), (22.0, 300.0)])
def test_u14_a_wide_job_of_usual_length_is_served_within_two_terms(gap: float, term: float) -> None:
    narrow = [elastic(f"n{i}", i * gap, {1: 90}) for i in range(45)]
    rows = [*narrow, elastic("wide", 130, {4: 90})]
    jobs = by_name(simulate(rows, 4, term=term))
    assert waits(jobs["wide"])[0] <= 2 * term
    assert 4 in counts(jobs["wide"])


@pytest.mark.parametrize("run", [200.0, 400.0])
def test_u14_a_long_wide_job_is_not_later_than_the_bound_nor_last(run: float) -> None:
    narrow = [elastic(f"n{i}", i * 22.0, {1: 90}) for i in range(60)]
    simulation = simulate([*narrow, elastic("wide", 130, {4: run})], 4, term=100.0)
    assert rho_lived(simulation, "wide", 4) <= longest_rho(1, 1) + 2 * 100.0 / run


# --- T18: no flutter ------------------------------------------------------------------------------


def test_t18_devices_that_save_next_to_nothing_move_nobody_twice() -> None:
    """Three alike on four devices, a fourth device that saves next to nothing, for forty terms."""
    rows = [elastic(f"j{i}", float(i), {1: 4000, 2: 3960, 3: 3950, 4: 3945}) for i in range(3)]
    simulation = simulate(rows, 4, term=100.0)
    for job in simulation.jobs.values():
        assert len(job.history) <= 2, job.history
        assert all(earlier != later for earlier, later in pairwise(counts(job)))
