"""Routes without a caller: alive, ready, aggregate figures."""

from __future__ import annotations

import asyncio
from collections import Counter

from fastapi import APIRouter, Request, Response

from selfsched.protocol import DeviceState, JobState, ProblemCode
from selfsched_broker.api.call import Backstage
from selfsched_broker.api.problems import problem
from selfsched_broker.core.books import Books
from selfsched_broker.core.draft import Context
from selfsched_broker.core.past_forecasts import covered
from selfsched_broker.core.views import device_state

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> Response:
    """The process lives."""
    return Response('{"status":"ok"}', media_type="application/json")


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Decisions can be made and stored."""
    backstage: Backstage = request.app.state.backstage
    loop = asyncio.get_running_loop()
    trouble = await loop.run_in_executor(backstage.workers, backstage.desk.service.probe)
    if trouble:
        return problem(503, ProblemCode.UNAVAILABLE, "the broker cannot store or may not make decisions now")
    return Response('{"status":"ready"}', media_type="application/json")


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Aggregates in the text format of Prometheus; nothing of any one account or job."""
    backstage: Backstage = request.app.state.backstage
    loop = asyncio.get_running_loop()
    text = await loop.run_in_executor(backstage.workers, lambda: backstage.desk.service.look(_figures))
    return Response(text, media_type="text/plain; version=0.0.4")


def _figures(books: Books, context: Context) -> str:
    jobs = Counter(job.state for job in books.live_jobs())
    devices = Counter(device_state(books, device) for device in books.devices)
    silent = [context.now - pulse.renewed_at for pulse in books.lease_pulses.values()]
    live = [state for state in JobState if state is not JobState.ENDED]
    scored = map(covered, books.forecasts.values())
    held = [came for came in scored if came is not None]
    lines = [
        "# TYPE selfsched_jobs gauge",
        *(f'selfsched_jobs{{state="{state}"}} {jobs[state]}' for state in live),
        "# TYPE selfsched_devices gauge",
        *(f'selfsched_devices{{state="{state}"}} {devices[state]}' for state in DeviceState),
        "# TYPE selfsched_auctions_total counter",
        f"selfsched_auctions_total {books.broker.next_auction - 1}",
        "# TYPE selfsched_auctions_failed_total counter",
        f"selfsched_auctions_failed_total {books.agenda.failed_auctions}",
        "# TYPE selfsched_leases_total counter",
        f"selfsched_leases_total {books.broker.next_fence - 1}",
        "# TYPE selfsched_open_leases gauge",
        f"selfsched_open_leases {len(list(books.open_leases()))}",
        "# TYPE selfsched_longest_silence_seconds gauge",
        f"selfsched_longest_silence_seconds {max(silent, default=0.0):.3f}",
        "# TYPE selfsched_forecasts_scored gauge",
        f"selfsched_forecasts_scored {len(held)}",
        "# TYPE selfsched_forecasts_held gauge",
        f"selfsched_forecasts_held {sum(held)}",
        "# TYPE selfsched_hardware_learned gauge",
        f"selfsched_hardware_learned {sum(not prior.without for prior in books.priors.values())}",
        "# TYPE selfsched_broker_incarnation gauge",
        f"selfsched_broker_incarnation {books.broker.incarnation}",
    ]
    return "\n".join(lines) + "\n"
