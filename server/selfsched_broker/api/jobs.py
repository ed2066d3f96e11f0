"""Routes of a job."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from selfsched.protocol import (
    Accepted,
    ControlJob,
    EndJob,
    HardwarePrior,
    Instructions,
    JobRegistered,
    JobReport,
    JobView,
    RegisterJob,
    ReleaseDevices,
)
from selfsched_broker.api.call import Call, caller_for, reply, reply_when_new, without_clocks
from selfsched_broker.api.contract import describes
from selfsched_broker.service import CLUSTER, instructions_topic, job_topic

router = APIRouter(tags=["jobs"])
Calls = Annotated[Call, Depends(caller_for())]
Heartbeats = Annotated[Call, Depends(caller_for("heartbeats"))]
_JOB_CLOCKS = frozenset(
    {"age_seconds", "idle_seconds", "term_seconds", "share", "starts", "ends", "reason_ages_seconds"}
)
_MOMENT_SECONDS = 15.0
"""A job's expected start or end is news when it moves by about so much."""


def still(view: JobView) -> object:
    """What of a job is news when it changes. Its expected start and end count down: what counts is when."""
    moments = tuple(
        round((view.age_seconds + foreseen.p50_seconds) / _MOMENT_SECONDS) if foreseen is not None else None
        for foreseen in (view.starts, view.ends)
    )
    return without_clocks(view, _JOB_CLOCKS), moments


@router.post("/jobs", **describes(takes=RegisterJob, gives=JobRegistered, status=201))
async def register(call: Calls) -> Response:
    """Register a job. Needs an Idempotency-Key."""
    message = await call.read(RegisterJob)
    answer = await call.do(call.desk.register, call.caller, message, key=call.needed_key())
    return reply(answer, 201)


@router.post("/jobs/{job}/report", **describes(takes=JobReport, gives=Instructions))
async def report(job: str, call: Heartbeats) -> Response:
    """A job's report; answered at once when its instructions changed, else within `wait_seconds`."""
    message = await call.read(JobReport)
    reports = f"reports of {job}"
    with call.polls.waiting(instructions_topic(job)) as changed:
        answer = await call.do(call.desk.report, call.caller, job, message)
        call.polls.wake((reports,))
        wait = min(message.wait_seconds, call.backstage.longest_wait_seconds)
        if answer.version != message.seen or wait <= 0 or call.polls.closed:
            return reply(answer)
        with call.polls.joining(changed, reports):
            await call.polls.wait(changed, wait)
    return reply(await call.do(call.desk.instructions, call.caller, job))


@router.post("/leases/{lease}/release", **describes(takes=ReleaseDevices, gives=Accepted))
async def release(lease: str, call: Calls) -> Response:
    """The job has left devices."""
    message = await call.read(ReleaseDevices)
    return reply(await call.do(call.desk.release, call.caller, lease, message, key=call.key()))


@router.post("/jobs/{job}/end", **describes(takes=EndJob, gives=Accepted))
async def end(job: str, call: Calls) -> Response:
    """The job has ended."""
    message = await call.read(EndJob)
    return reply(await call.do(call.desk.end, call.caller, job, message, key=call.key()))


@router.post("/jobs/{job}/control", **describes(takes=ControlJob, gives=Accepted))
async def control(job: str, call: Calls) -> Response:
    """Pause, resume, stop or resize a job."""
    message = await call.read(ControlJob)
    return reply(await call.do(call.desk.control, call.caller, job, message, key=call.key()))


@router.get("/jobs", **describes(gives=JobView, many=True))
async def jobs(call: Calls) -> Response:
    """Your jobs; everybody's for an administrator. `ended=0` leaves out those that have ended.

    With an ETag; `wait_seconds` with If-None-Match waits for news. Progress alone ends no wait.
    """
    ended = call.number("ended", 1) > 0
    return await reply_when_new(call, CLUSTER, lambda: call.desk.jobs(call.caller, ended=ended), still)


@router.get("/jobs/{job}", **describes(gives=JobView))
async def job(job: str, call: Calls) -> Response:
    """One job, with an ETag; `wait_seconds` with If-None-Match waits for news."""
    topic = job_topic(job)
    return await reply_when_new(call, topic, lambda: call.desk.job(call.caller, job), still)


@router.get("/hardware/{name:path}/prior", **describes(gives=HardwarePrior))
async def prior(name: str, call: Calls) -> Response:
    """What is known of a kind of hardware. `job`: for one of yours, from all jobs but this one."""
    job = call.request.query_params.get("job")
    return reply(await call.do(call.desk.prior, call.caller, name, job=job))
