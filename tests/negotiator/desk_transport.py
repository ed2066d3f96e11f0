"""The broker's real desk, service and auction behind a client's transport, without a socket.

`Lab` is a broker on a store in memory with some CPU slots, and the node that reports them:
a slot is occupied while any bench runs on it.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import httpx
from negotiator.scripted_broker import Bench

from selfsched.protocol import (
    DeviceReport,
    EndJob,
    JobReport,
    Message,
    NodeReport,
    Problem,
    ProblemCode,
    RegisterJob,
    ReleaseDevices,
    parse,
)
from selfsched_broker.api.problems import STATUS_OF
from selfsched_broker.core.leases import LeaseOptions, Refusal
from selfsched_broker.core.market import FairnessOptions
from selfsched_broker.core.policies.themis import Themis
from selfsched_broker.desk import Desk
from selfsched_broker.identity import Caller
from selfsched_broker.service import Known, Rules, Service
from selfsched_broker.store.memory import MemoryStore

REPORT_EVERY_SECONDS = 0.05


class Lab:
    """A broker and its node."""

    def __init__(self, slots: int, options: LeaseOptions, fairness: FairnessOptions) -> None:
        self.service = Service(MemoryStore(), Rules(policy=Themis(), lease=options, fairness=fairness))
        self.desk = Desk(self.service)
        self.slots = tuple(f"n/cpu-{number}" for number in range(slots))
        self.benches: list[Bench] = []
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._sequence = 0
        self.service.listen(self._tell)
        self.service.start()
        self.report_node()
        self._node = threading.Thread(target=self._report_for_ever, daemon=True)
        self._node.start()

    def close(self) -> None:
        self._over.set()
        self._node.join()
        self._tell(frozenset())
        self.service.close()

    def _tell(self, topics: frozenset[str]) -> None:
        with self._changed:
            self._changed.notify_all()

    # --- the node

    def _report_for_ever(self) -> None:
        while not self._over.wait(REPORT_EVERY_SECONDS):
            self.report_node()

    def report_node(self) -> None:
        running = {device.id for bench in self.benches for device in bench.running}
        self._sequence += 1
        report = NodeReport(
            incarnation=1, sequence=self._sequence,
            devices=tuple(
                DeviceReport(
                    id=slot, index=number, model="cpu", kind="cpu",
                    state="occupied" if slot in running else "empty",
                )
                for number, slot in enumerate(self.slots)
            ),
        )  # fmt: skip
        self.desk.node_report(Caller(account="node", node="n"), "n", report)

    # --- the wire

    def transport(self, account: str) -> httpx.MockTransport:
        """How jobs of this account reach the broker."""
        return httpx.MockTransport(lambda request: self._serve(Caller(account=account), request))

    def _serve(self, caller: Caller, request: httpx.Request) -> httpx.Response:
        try:
            answer = self._answer(caller, request)
        except Refusal as refusal:
            status = STATUS_OF[refusal.code]
            answer = Problem(status=status, code=refusal.code, title="No", detail=refusal.message)
        status = answer.status if isinstance(answer, Problem | Known) else 200
        body = answer.body if isinstance(answer, Known) else answer.to_json()
        return httpx.Response(status, content=body, headers={"content-type": "application/json"})

    def _answer(self, caller: Caller, request: httpx.Request) -> Message | Known:
        words = request.url.path.split("/")[2:]
        key = request.headers.get("idempotency-key")
        match words:
            case ["jobs"]:
                return self.desk.register(caller, parse(RegisterJob, request.content), key=str(key))
            case ["jobs", job, "report"]:
                return self._report(caller, job, parse(JobReport, request.content))
            case ["jobs", job, "end"]:
                return self.desk.end(caller, job, parse(EndJob, request.content), key=key)
            case ["jobs", job]:
                return self.desk.job(caller, job)
            case ["leases", lease, "release"]:
                return self.desk.release(caller, lease, parse(ReleaseDevices, request.content), key=key)
            case ["hardware", name, "prior"]:
                return self.desk.prior(caller, name)
        raise Refusal(ProblemCode.NOT_FOUND, "there is no such path")

    def _report(self, caller: Caller, job: str, report: JobReport) -> Message:
        answer = self.desk.report(caller, job, report)
        give_up_at = time.monotonic() + report.wait_seconds
        while answer.version == report.seen and not self._over.is_set():
            left = give_up_at - time.monotonic()
            pulse = self.service.books.job_pulses.get(job)
            if left <= 0 or (pulse is not None and pulse.sequence > report.sequence):
                break
            with self._changed, suppress(RuntimeError):
                self._changed.wait(min(left, 0.05))
            answer = self.desk.instructions(caller, job)
        return answer
