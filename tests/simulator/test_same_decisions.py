"""The running broker and the simulator decide the same on the same history of events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfsched.protocol import Message, Resume, parse
from selfsched_broker.core import arbiter
from selfsched_broker.core.arbiter import Refusal
from selfsched_broker.core.policies import POLICIES, policy_named
from selfsched_broker.service import Service
from selfsched_broker.store.contract import Store
from selfsched_broker.store.memory import MemoryStore
from selfsched_broker.store.sql import SqlStore
from selfsched_simulator.cluster import parse_cluster
from selfsched_simulator.engine import Simulation
from selfsched_simulator.faults import FaultOptions, Outage
from selfsched_simulator.job import Habits
from selfsched_simulator.options import SimulationOptions
from selfsched_simulator.speeds import by_count
from selfsched_simulator.trace import TraceJob
from selfsched_simulator.wire import Said, perform

CLUSTER = parse_cluster("2x2:gpu")
FAULTS = FaultOptions(lost=0.1, late_seconds=2.0, outages=(Outage("node-1", 130.0, 400.0),))


def jobs() -> list[TraceJob]:
    rng = np.random.default_rng(8)
    rows = []
    for number in range(8):
        work = float(rng.uniform(60, 400))
        seconds = {n: work / n**0.8 for n in range(1, int(rng.integers(1, 4)) + 1)}
        rows.append(
            TraceJob(
                name=f"j{number}",
                account=f"account-{number % 3}",
                arrival_seconds=float(rng.uniform(0, 300)),
                speed=by_count(seconds, CLUSTER),
                gpus=max(seconds),
                alone_seconds=min(seconds.values()),
                resume=Resume.ELASTIC,
                knows_its_speed=number % 2 == 0,
            )
        )
    return sorted(rows, key=lambda job: job.arrival_seconds)


def record(policy: str, faults: FaultOptions) -> tuple[list[Said], Simulation]:
    history: list[Said] = []
    options = SimulationOptions(
        cluster=CLUSTER, term_seconds=60.0, habits=Habits(restart_seconds=2.0, noise=0.2), faults=faults
    )
    simulation = Simulation(jobs(), policy_named(policy), options, listener=history.append)
    simulation.run()
    return history, simulation


class VirtualClock:
    """A monotonic clock that stands where it is put."""

    at = 0.0

    def __call__(self) -> float:
        return self.at


def over_the_wire(argument: Any) -> Any:
    """As it would come out of a request's body."""
    return parse(type(argument), argument.to_json()) if isinstance(argument, Message) else argument


def say_again(history: list[Said], simulation: Simulation, store: Store) -> tuple[list[Any], Service]:
    clock = VirtualClock()
    service = Service(store, simulation.rules, monotonic=clock)
    answers: list[Any] = []
    for said in history:
        clock.at = said.at_seconds
        if said.call == "advance":
            assert service.look(arbiter.next_due) <= clock.at, "the broker's own driver would have slept on"
        try:
            answers.append(perform(service, said.call, tuple(map(over_the_wire, said.arguments))))
        except Refusal as refusal:
            answers.append(refusal.code)
    return answers, service


def memory(_: Path) -> Store:
    return MemoryStore()


def database(folder: Path) -> Store:
    return SqlStore(f"sqlite:///{folder / 'state' / 'books.sqlite'}")


@pytest.mark.parametrize(
    ("policy", "faults", "store"),
    [
        *((policy, FaultOptions(), memory) for policy in sorted(POLICIES)),
        *((policy, FAULTS, memory) for policy in ("selfsched", "themis")),
        *((policy, FaultOptions(), database) for policy in ("selfsched", "themis")),
    ],
)
def test_a_recorded_history_gets_the_same_decisions_from_a_broker(
    tmp_path: Path, policy: str, faults: FaultOptions, store: Callable[[Path], Store]
) -> None:
    history, simulation = record(policy, faults)
    (tmp_path / "state").mkdir(mode=0o700)
    answers, service = say_again(history, simulation, store(tmp_path))
    assert len(history) > 100
    assert answers == [said.answer for said in history]
    service.books.validate()
    theirs, ours = service.books, simulation.books
    assert theirs.auctions == ours.auctions
    assert theirs.leases == ours.leases
    assert theirs.broker == ours.broker
    service.close()


def test_every_message_and_every_kind_of_fault_is_in_the_recorded_history() -> None:
    history, simulation = record("themis", FAULTS)
    calls = {said.call for said in history}
    assert calls == {"register", "report", "release", "end", "node_report", "advance"}
    assert all(job.finished_at is not None for job in simulation.jobs.values())
    silent = [a for a in simulation.books.audits.values() if a.action == "node_silent"]
    assert [audit.subject for audit in silent] == ["node-1"]
