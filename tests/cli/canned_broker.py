"""A broker on a real port that gives canned answers, for the commands that only print."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from selfsched.protocol import (
    AccountView,
    ClusterView,
    DeviceState,
    DeviceView,
    Forecast,
    ForecastScore,
    ForecastScores,
    JobState,
    JobView,
    LeasedDevice,
    Outcome,
    Problem,
    Resume,
    WhatIfAnswer,
    WhatIfLine,
)

SOON = Forecast(p10_seconds=100.0, p50_seconds=120.0, p90_seconds=200.0, assumption="look_ahead")
LATER = Forecast(p10_seconds=120.0, p50_seconds=360.0, p90_seconds=1200.0, assumption="look_ahead")
AT_ONCE = Forecast(p10_seconds=0.0, p50_seconds=0.0, p90_seconds=0.0, assumption="look_ahead")


NOT_FOUND = Problem(status=404, code="not_found", title="no such thing")


def a_device(index: int) -> LeasedDevice:
    return LeasedDevice(id=f"slot-{index}", node="hera", index=index, model="cpu", kind="cpu", cores=(index,))


def a_job(**changes: Any) -> JobView:
    values: dict[str, Any] = {
        "job": "job-1", "name": "digits", "account": "alice", "state": JobState.RUNNING,
        "devices": (a_device(0), a_device(1)), "min_devices": 1, "max_devices": 2, "resume": Resume.ELASTIC,
        "priority": 1.0, "fraction_done": 0.25, "age_seconds": 60.0, "share": 1.0, "rho": 0.81,
        "forecast": SOON, "reasons": ("won by auction 3: [bold]two[/bold] devices end it sooner\x1b[31m",),
    }  # fmt: skip
    return JobView(**(values | changes))


def a_cluster() -> ClusterView:
    devices = tuple(
        DeviceView(
            id=f"slot-{index}", node="hera", index=index, model="cpu", kind="cpu", state=state,
            since_seconds=30.0, account=account,
        )
        for index, (state, account) in enumerate([(DeviceState.HELD, "alice"), (DeviceState.FREE, None)])
    )  # fmt: skip
    return ClusterView(
        policy="themis",
        devices=devices,
        waiting_jobs=1,
        running_jobs=2,
        next_tick_seconds=25.0,
        incarnation=1,
    )


def answers(*jobs: JobView) -> dict[str, Any]:
    """What a broker with these jobs says, by method and path."""
    plain = [job.model_dump(mode="json") for job in jobs]
    score = ForecastScore(
        job="job-1", name="digits", made_ago_seconds=90.0, forecast=SOON, actual_seconds=100.0, held=False,
        covered=True,
    )  # fmt: skip
    account = AccountView(
        account="alice", forecast_scores=ForecastScores(made=40, held=33, resized=6, jobs=5)
    )
    ahead = (
        WhatIfLine(starts=AT_ONCE, ends=SOON),
        WhatIfLine(devices=1, starts=LATER, ends=SOON.model_copy(update={"p90_seconds": 7200.0})),
        WhatIfLine(devices=2),
    )
    what_if = WhatIfAnswer(forecasts=((1, SOON), (2, SOON)), reason="as measured", ahead=ahead)
    return {
        "GET /v1/jobs": plain,
        "GET /v1/cluster": a_cluster().model_dump(mode="json"),
        "GET /v1/accounts/me": account.model_dump(mode="json"),
        "GET /v1/accounts/me/forecasts": [score.model_dump(mode="json")],
        "POST /v1/forecast": what_if.model_dump(mode="json"),
    }


@contextmanager
def canned_broker(canned: Mapping[str, Any], posted: list[Any] | None = None) -> Iterator[str]:
    """The address of a broker that knows these answers and no others, a `Problem` being a refusal.

    Keeps what is posted.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if posted is not None and self.command == "POST":
                posted.append(json.loads(sent))
            body = canned.get(f"{self.command} {self.path}", NOT_FOUND)
            status = body.status if isinstance(body, Problem) else 200
            data = json.dumps(body.model_dump() if isinstance(body, Problem) else body).encode()
            self.send_response(status)
            self.send_header(
                "Content-Type", "application/json" if status == 200 else "application/problem+json"
            )
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def finished_job() -> JobView:
    ended = {"state": JobState.ENDED, "outcome": Outcome.FINISHED, "devices": (), "fraction_done": 1.0}
    return a_job(job="job-0", name="old", forecast=None, reasons=(), rho=0.7, **ended)
