"""A broker behind `httpx.MockTransport` that does what a test scripts, and a stand-in supervisor."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from selfsched.client import BrokerClient
from selfsched.elastic.allocation import Allocation, Device, SegmentEnd
from selfsched.elastic.job import JobDescription
from selfsched.elastic.segment import boottime
from selfsched.negotiator import Negotiator
from selfsched.private_broker import BrokerAccess
from selfsched.protocol import (
    Accepted,
    EndJob,
    Instructions,
    JobRegistered,
    JobReport,
    JobState,
    LeasedDevice,
    LeaseInstruction,
    Message,
    Outcome,
    Problem,
    RegisterJob,
    ReleaseDevices,
    parse,
)
from selfsched.settings import Settings, parse_address

ADDRESS = parse_address("http://broker.test:1")
PATIENCE_SECONDS = 20.0


def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait for a condition; fail when it does not come."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"this never came: {what or condition}"
        time.sleep(0.005)
    return found


def device(name: str) -> LeasedDevice:
    return LeasedDevice(id=name, node="n", index=0, model="cpu", kind="cpu")


@dataclass
class GrantedLease:
    fence: int
    devices: list[str]
    leave: list[str] = field(default_factory=list)


class ScriptedBroker:
    """Answers like a broker unless `fault` says otherwise.

    `fault` maps a path's last word (`report`, `jobs`, `release`, `end`) to a function that is
    called with the request before (it may raise) and answers in the broker's place.
    """

    def __init__(self, *, ttl_seconds: float = 30.0) -> None:
        self.ttl_seconds = ttl_seconds
        self.changed = threading.Condition()
        self.incarnation = 1
        self.version = 1
        self.fences = 0
        self.jobs = 0
        self.keys: dict[str, Message] = {}
        self.leases: dict[int, GrantedLease] = {}
        self.order = "go_on"
        self.reasons: tuple[str, ...] = ("because the test says so",)
        self.reports: list[JobReport] = []
        self.registrations: list[RegisterJob] = []
        self.calls: list[tuple[str, str | None]] = []
        """(last word of the path, idempotency key)."""
        self.releases: list[tuple[str, str, ReleaseDevices]] = []
        self.ends: list[EndJob] = []
        self.fault: dict[str, Callable[[httpx.Request], httpx.Response | None]] = {}
        self.lost_replies: set[str] = set()
        self.forgets_job = False
        self.is_closed = False

    # --- the script

    def grant(self, *devices: str) -> int:
        with self.changed:
            self.fences += 1
            self.leases[self.fences] = GrantedLease(self.fences, list(devices))
            self._bump()
        return self.fences

    def want_back(self, fence: int, *devices: str) -> None:
        with self.changed:
            self.leases[fence].leave += devices
            self._bump()

    def lose(self, fence: int) -> None:
        with self.changed:
            del self.leases[fence]
            self._bump()

    def say(self, order: str) -> None:
        with self.changed:
            self.order = order
            self._bump()

    def restart(self) -> None:
        with self.changed:
            self.incarnation += 1
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()

    def _bump(self) -> None:
        self.version += 1
        self.changed.notify_all()

    # --- the wire

    def __call__(self, request: httpx.Request) -> httpx.Response:
        last = request.url.path.rsplit("/", 1)[-1]
        self.calls.append((last, request.headers.get("idempotency-key")))
        fault = self.fault.get(last)
        if fault is not None:
            answer = fault(request)
            if answer is not None:
                return answer
        body = self._answer(last, request)
        if last in self.lost_replies:
            raise httpx.ReadError("the reply got lost")
        status = body.status if isinstance(body, Problem) else 200
        return httpx.Response(status, content=body.to_json(), headers={"content-type": "application/json"})

    def _answer(self, last: str, request: httpx.Request) -> Message:
        key = request.headers.get("idempotency-key")
        if key is not None and key in self.keys:
            return self.keys[key]
        parts = request.url.path.split("/")
        if last == "jobs":
            self.registrations.append(parse(RegisterJob, request.content))
            self.jobs += 1
            self.forgets_job = False
            answer: Message = JobRegistered(job=f"job-{self.jobs}", instructions=self.instructions())
        elif last == "report":
            return self._report(parts[3], parse(JobReport, request.content))
        elif last == "release":
            answer = self._release(parts[3], str(key), parse(ReleaseDevices, request.content))
        elif last == "end":
            self.ends.append(parse(EndJob, request.content))
            answer = Accepted()
        else:
            return Problem(status=404, code="not_found", title="nothing here")
        if key is not None:
            self.keys[key] = answer
        return answer

    def _report(self, job: str, report: JobReport) -> Message:
        with self.changed:
            self.reports.append(report)
            self.changed.notify_all()
            if self.forgets_job or job != f"job-{self.jobs}":
                return Problem(status=404, code="not_found", title="no such job")
            named = {reference.fence for reference in report.leases}
            if named and not named & self.leases.keys():
                return Problem(status=410, code="lease_lost", title="gone", detail="the lease is over")
            incarnation = self.incarnation
            self.changed.wait_for(
                lambda: self.is_closed
                or self.version > report.seen
                or self.incarnation != incarnation
                or self.reports[-1].sequence > report.sequence,
                timeout=report.wait_seconds,
            )
            return self.instructions()

    def _release(self, lease: str, key: str, message: ReleaseDevices) -> Message:
        with self.changed:
            self.releases.append((lease, key, message))
            held = self.leases.get(message.fence)
            if held is None:
                return Problem(status=410, code="lease_lost", title="gone")
            held.devices = [name for name in held.devices if name not in message.devices]
            held.leave = [name for name in held.leave if name not in message.devices]
            if not held.devices:
                del self.leases[message.fence]
            self._bump()
        return Accepted()

    def instructions(self) -> Instructions:
        return Instructions(
            job=f"job-{self.jobs}", incarnation=self.incarnation, version=self.version,
            state=JobState.RUNNING, order=self.order, reasons=self.reasons,  # type: ignore[arg-type]
            leases=tuple(
                LeaseInstruction(
                    lease=f"lease-{fence}", fence=fence, ttl_seconds=self.ttl_seconds, term_seconds=300.0,
                    devices=tuple(map(device, lease.devices)), leave=tuple(lease.leave),
                    within_seconds=30.0 if lease.leave else None,
                )
                for fence, lease in self.leases.items()
            ),
        )  # fmt: skip


class Locks:
    """Locks of a machine that a test controls."""

    def __init__(self) -> None:
        self.busy: set[str] = set()

    def is_free(self, device_id: str) -> bool:
        return device_id not in self.busy


class Bench:
    """A negotiator against a scripted broker, driven as the supervisor drives it."""

    def __init__(
        self, run_directory: Path, broker: ScriptedBroker | None = None, *,
        transport: httpx.BaseTransport | None = None, locks: Any = None, **job: Any,
    ) -> None:
        self.broker = broker
        self.locks = locks or Locks()
        if transport is None:
            assert broker is not None
            transport = httpx.MockTransport(broker)
        self.client = BrokerClient(ADDRESS, transport=transport)
        self.access = BrokerAccess(self.client)
        self.negotiator = Negotiator(Settings(), access=self.access, locks=self.locks)
        self.job = JobDescription(
            run_directory=run_directory, program="command", working_directory=run_directory,
            **({"max_devices": 2} | job),
        )  # fmt: skip
        self.woken = threading.Event()
        self.segments = 0
        self.running: tuple[Device, ...] = ()

    def start(self) -> None:
        self.negotiator.start(self.job, self.woken.set)

    def close(self, outcome: Outcome = Outcome.FINISHED) -> None:
        if self.broker is not None:
            self.broker.close()
        self.negotiator.end(outcome, "over")

    @property
    def wanted(self) -> Allocation:
        return self.negotiator.wanted(boottime())

    @property
    def wanted_ids(self) -> tuple[str, ...]:
        return tuple(device.id for device in self.wanted.devices)

    def run(self, *devices: str) -> None:
        """Wait until these are wanted, then start a segment on them."""
        until(lambda: set(self.wanted_ids) == set(devices), f"{devices} wanted")
        self.running = self.wanted.devices
        self.negotiator.segment_started(self.segments, self.running)

    def leave(self, *, reason: Any = "yielded", step: int = 0) -> SegmentEnd:
        """End the segment; what is not wanted any more is unlocked."""
        kept = set(self.wanted_ids)
        left = tuple(device for device in self.running if device.id not in kept)
        end = SegmentEnd(self.segments, self.running, left, reason, step=step, checkpoint_step=step)
        self.segments += 1
        self.running = ()
        self.negotiator.segment_ended(end)
        return end

    def history(self) -> Any:
        return json.loads((self.job.run_directory / "history.json").read_text())
