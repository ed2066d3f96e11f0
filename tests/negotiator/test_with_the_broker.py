"""Negotiators against the broker's own decisions: no socket, real service, real auction."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from negotiator.desk_transport import Lab
from negotiator.scripted_broker import Bench, until

from selfsched.core.events import FitFinished, FitStarted, StepsTimed, StepTiming
from selfsched.elastic.segment import boottime
from selfsched.errors import Refused
from selfsched.protocol import JobState, Outcome
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.core.market import FairnessOptions

QUICK = LeaseOptions(
    report_seconds=1.0, ttl_seconds=3.0, grace_seconds=0.5, restart_window_seconds=1.0, term_seconds=2.0,
    min_auction_seconds=0.2, node_report_seconds=0.1, node_hurried_report_seconds=0.1,
)  # fmt: skip
QUICKLY_REPAID = FairnessOptions(term_seconds=2.0, repay_factor=0.1, repay_min_seconds=0.5)


class SharedLocks:
    """A slot is free while no bench runs on it; a second holder fails the test."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self.clashes: list[str] = []

    def is_free(self, device_id: str) -> bool:
        return device_id not in self.held

    def take(self, device_id: str, owner: str) -> None:
        if self.held.setdefault(device_id, owner) != owner:
            self.clashes.append(f"{device_id}: {owner} and {self.held[device_id]}")

    def leave(self, device_id: str, owner: str) -> None:
        if self.held.get(device_id) == owner:
            del self.held[device_id]


class Training(threading.Thread):
    """Follows what its negotiator wants, and makes steps: what supervisor and ranks do."""

    def __init__(self, bench: Bench, name: str, *, steps: int, step_seconds: float) -> None:
        super().__init__(daemon=True, name=name)
        self.bench = bench
        self.steps = steps
        self.step_seconds = step_seconds
        self.step = 0
        self.spans: list[tuple[tuple[str, ...], int]] = []
        self.over = threading.Event()

    def run(self) -> None:
        while self.step < self.steps and not self.over.is_set():
            wanted = set(self.bench.wanted_ids)
            running = {device.id for device in self.bench.running}
            if running and wanted != running:
                self._leave("yielded")
            elif not running and wanted:
                self._start()
            elif running:
                self._make_steps()
            self.over.wait(0.02)
        if self.bench.running:
            self.bench.negotiator.handle(FitFinished(fit=1, step=self.step, epoch=1, metrics={}))
            self._leave("finished")
        self.bench.close()

    def _start(self) -> None:
        devices = self.bench.wanted.devices
        for device in devices:
            self.bench.locks.take(device.id, self.name)
        self.bench.running = devices
        self.bench.negotiator.segment_started(self.bench.segments, devices)
        self.bench.negotiator.handle(
            FitStarted(
                fit=1, package="none", global_batch=8, reference_devices=1, step=self.step,
                planned_steps=self.steps, allowed_devices=(1, 2), at=boottime(),
            )
        )  # fmt: skip
        self.spans.append((tuple(device.id for device in devices), self.step))

    def _leave(self, reason: str) -> None:
        running = {device.id for device in self.bench.running}
        end = self.bench.leave(reason=reason, step=self.step)
        for device in end.left if reason != "finished" else running:
            self.bench.locks.leave(device if isinstance(device, str) else device.id, self.name)

    def _make_steps(self) -> None:
        count, pace = 4, self.step_seconds / len(self.bench.running)
        self.over.wait(count * pace)
        timings = tuple(
            StepTiming(step=self.step + n, seconds=pace, local_samples=4) for n in range(1, count + 1)
        )
        self.step += count
        self.bench.negotiator.handle(StepsTimed(timings=timings))

    def counts(self) -> list[int]:
        """Devices of each segment."""
        return [len(devices) for devices, _ in self.spans]


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab(2, QUICK, QUICKLY_REPAID)
    yield lab
    lab.close()


@pytest.fixture
def locks() -> SharedLocks:
    return SharedLocks()


def training(
    lab: Lab, locks: SharedLocks, directory: Path, name: str, *, steps: int, account: str | None = None
) -> Training:
    (directory / name).mkdir()
    bench = Bench(directory / name, transport=lab.transport(account or name), locks=locks, name=name)
    lab.benches.append(bench)
    bench.start()
    job = Training(bench, name, steps=steps, step_seconds=0.01)
    job.start()
    return job


@pytest.mark.slow
def test_two_jobs_of_one_user_share_two_slots_and_the_first_grows_back(
    lab: Lab, locks: SharedLocks, tmp_path: Path
) -> None:
    first = training(lab, locks, tmp_path, "first", steps=3000, account="ada")
    until(lambda: len(first.bench.running) == 2, "the first on both slots")
    second = training(lab, locks, tmp_path, "second", steps=150, account="ada")
    until(lambda: second.bench.running, "the second gets a slot")
    until(lambda: len(first.bench.running) == 1 and first.step > 0, "the first goes on with one")
    until(lambda: not second.is_alive(), "the second is done")
    until(lambda: len(first.bench.running) == 2, "the first grows back")
    first.over.set()
    first.join(10)
    assert locks.clashes == []
    assert second.step >= 150
    counts = first.counts()
    assert counts[-1] == 2
    assert 1 in counts
    history = first.bench.history()
    assert [span["devices"] for span in history["segments"]] == [list(devices) for devices, _ in first.spans]
    lab.service.books.validate()
    assert not lab.service.books.devices_of("job-1")


@pytest.mark.slow
def test_a_job_that_the_cluster_cannot_hold_is_refused(lab: Lab, tmp_path: Path) -> None:
    bench = Bench(tmp_path, transport=lab.transport("ada"), min_devices=3, max_devices=4)
    with pytest.raises(Refused, match="3 devices"):
        bench.start()


@pytest.mark.slow
def test_a_silent_job_loses_its_lease_and_comes_back(lab: Lab, locks: SharedLocks, tmp_path: Path) -> None:
    job = training(lab, locks, tmp_path, "sleeper", steps=3000)
    until(lambda: job.bench.running)
    negotiator = job.bench.negotiator
    with negotiator._lock:  # nothing is fed, nothing is sent: as good as a stopped process
        until(lambda: not lab.service.books.devices_of("job-1"), "the broker takes the lease")
        until(lambda: not job.bench.running, "the deadline fires by itself")
    until(lambda: job.bench.running, "and the job comes back")
    job.over.set()
    job.join(10)
    assert locks.clashes == []


@pytest.mark.slow
def test_the_end_is_told_with_its_outcome(lab: Lab, locks: SharedLocks, tmp_path: Path) -> None:
    job = training(lab, locks, tmp_path, "short", steps=40)
    until(lambda: not job.is_alive())
    view = lab.service.books.jobs["job-1"]
    assert (view.state, view.outcome) == (JobState.ENDED, Outcome.FINISHED)
