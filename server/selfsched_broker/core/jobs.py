"""What a job says to the broker: register, report, release, end.

A report is the whole truth about a job as it sees itself; instructions are the broker's whole
word to it. Order is by (incarnation, sequence): an older report changes nothing and is answered
with the instructions as they stand. A report renews the ttl of the leases it names; when none
of those it names is still the job's, it is refused as LEASE_LOST and changes nothing. A lease
whose devices the job has itself released, named by a report that was under way, is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from selfsched.protocol import (
    Accepted,
    EndJob,
    Instructions,
    JobRegistered,
    JobReport,
    JobState,
    Outcome,
    Placement,
    ProblemCode,
    RegisterJob,
    ReleaseDevices,
    Resume,
    StandingBid,
)
from selfsched_broker.core.books import Books, Job, JobPulse, Lease, LeasePulse
from selfsched_broker.core.draft import Context, Decision, Draft
from selfsched_broker.core.grants import change_job, is_repaid, settle_claims, take_word
from selfsched_broker.core.leases import JOB_TABLE, ClaimEvent, JobEvent, Refusal, step
from selfsched_broker.core.metering import Meter, claim_for
from selfsched_broker.core.track_record import Tally, TrackRecord, tallied
from selfsched_broker.core.views import instructions


def register(books: Books, ctx: Context, account: str, message: RegisterJob) -> Decision[JobRegistered]:
    """Take a new job into the books. Its account is made when it is not there."""
    draft = Draft(books, ctx)
    owner = draft.account(account)
    if owner.disabled:
        raise Refusal(ProblemCode.FORBIDDEN, f"account {account} is disabled: ask an administrator")
    _refuse_impossible(books, owner.max_devices, account, message)
    if account not in books.accounts:
        draft.put(owner)
    broker = draft.books.broker
    job = _new_job(draft, f"job-{broker.next_job}", broker.next_job, account, message)
    draft.put(replace(broker, next_job=broker.next_job + 1), job)
    draft.put(JobPulse(job=job.id, incarnation=0, sequence=0, reported_at=ctx.now, state=JobState.WAITING))
    draft.touch(job.id)
    draft.wake()
    return draft.finish(
        lambda after: JobRegistered(job=job.id, instructions=instructions(after, ctx, job.id))
    )


def _new_job(draft: Draft, job_id: str, number: int, account: str, message: RegisterJob) -> Job:
    wanted = message.wanted_devices
    cap = draft.options.max_stated_seconds
    stated = None if message.stated_seconds is None else min(message.stated_seconds, cap)
    fixed = message.resume is Resume.NEVER
    return Job(
        id=job_id,
        number=number,
        name=message.name,
        account=account,
        min_devices=len(wanted) or message.min_devices,
        max_devices=len(wanted) or message.max_devices,
        allowed_devices=() if wanted else tuple(sorted(set(message.allowed_devices))),
        resume=message.resume,
        stated_seconds=stated if fixed else None,
        priority=message.priority,
        wanted_devices=tuple(dict.fromkeys(wanted)),
        process=message.process,
        registered_at=draft.now,
        waiting_since=draft.now,
        # A program that cannot be resized states its time instead of visiting.
        visited=fixed,
        reasons=("registered; waiting for the first decision",),
        reasons_at=(draft.now,),
    )


def _refuse_impossible(books: Books, quota: int | None, account: str, message: RegisterJob) -> None:
    if not books.devices:
        raise Refusal(ProblemCode.UNAVAILABLE, "no node has reported a device yet: try again in a moment")
    needed, known = len(message.wanted_devices) or message.min_devices, len(books.devices)
    if needed > known:
        raise Refusal(
            ProblemCode.IMPOSSIBLE,
            f"the job needs {needed} devices at once, the cluster has {known}: lower min_devices",
        )
    if quota is not None and needed > quota:
        raise Refusal(
            ProblemCode.IMPOSSIBLE,
            f"the job needs {needed} devices at once, account {account} may hold {quota}",
        )
    strange = [device for device in message.wanted_devices if device not in books.devices]
    if strange:
        raise Refusal(ProblemCode.IMPOSSIBLE, f"no node has reported the device {strange[0]}")
    if len(set(message.wanted_devices)) < len(message.wanted_devices):
        raise Refusal(ProblemCode.INVALID, "wanted_devices names a device twice")


def report(books: Books, ctx: Context, job_id: str, message: JobReport) -> Decision[Instructions]:
    """Take a job's report: renew its leases, take its progress and bid, answer with its instructions."""
    job = live_job(books, job_id)
    pulse = books.job_pulses[job_id]
    if pulse.heard and message.incarnation < pulse.incarnation:
        raise Refusal(ProblemCode.CONFLICT, "a later start of this job reports: this one must end")
    draft = Draft(books, ctx)
    if not _is_news(pulse, message):
        return draft.finish(lambda after: instructions(after, ctx, job_id))
    had_repaid = is_repaid(draft, job)
    for lease in _renewed(books, job, message):
        draft.put(LeasePulse(lease=lease.id, renewed_at=ctx.now))
    here, record = _placement(books, message.devices_in_use), books.accounts[job.account].claims
    draft.put(_pulse_after(pulse, message, ctx.now, here, record))
    _follow_state(draft, job, message)
    _take_bid(draft, job, message)
    _keep_progress(draft, job_id)
    visiting = any(lease.visit for lease in books.leases_of(job_id))
    if not pulse.heard or visiting or is_repaid(draft, draft.books.jobs[job_id]) is not had_repaid:
        draft.wake()
    return draft.finish(lambda after: instructions(after, ctx, job_id))


def _is_news(pulse: JobPulse, message: JobReport) -> bool:
    if not pulse.heard:
        return True
    return (message.incarnation, message.sequence) > (pulse.incarnation, pulse.sequence)


def _renewed(books: Books, job: Job, message: JobReport) -> Sequence[Lease]:
    """The leases that a report renews.

    Raises:
        Refusal: LEASE_LOST when it names leases and none of them is the job's any more, or
            one with a fence that is not its own.
    """
    kept, lost = [], []
    for ref in message.leases:
        lease = books.leases.get(ref.lease)
        if lease is None or lease.job != job.id or lease.fence != ref.fence:
            raise Refusal(
                ProblemCode.LEASE_LOST, f"{ref.lease} with fence {ref.fence} is no lease of {job.id}"
            )
        if not lease.end_reason:
            kept.append(lease)
        elif lease.end_reason != "released":
            lost.append(lease)
    if lost and not kept:
        first = lost[0]
        raise Refusal(
            ProblemCode.LEASE_LOST,
            f"{first.id} (fence {first.fence}) is over: {first.end_reason}; leave its devices",
        )
    return kept


def _placement(books: Books, devices: Sequence[str]) -> Placement | None:
    """How some devices lie; None where one is not known, or they are of several models."""
    if not devices or any(device not in books.devices for device in devices):
        return None
    known = [books.devices[device] for device in devices]
    if len({device.model for device in known}) > 1:
        return None
    return Placement(devices=len(known), nodes=len({device.node for device in known}), model=known[0].model)


def _pulse_after(
    pulse: JobPulse, message: JobReport, now: float, here: Placement | None, record: TrackRecord
) -> JobPulse:
    same_start = pulse.heard and pulse.incarnation == message.incarnation
    running = message.state is JobState.RUNNING
    stepped = message.step != pulse.step
    ran_on = same_start and running and pulse.running_since is not None and message.step > pulse.step
    since = pulse.running_since if same_start and pulse.running_since is not None else now
    return replace(
        pulse,
        incarnation=message.incarnation,
        sequence=message.sequence,
        reported_at=now,
        state=message.state,
        heard=True,
        step=message.step,
        planned_steps=message.planned_steps,
        fraction_done=message.fraction_done,
        stepped_at=now if stepped or not pulse.heard else pulse.stepped_at,
        running_since=since if running else None,
        devices_in_use=message.devices_in_use,
        steady_steps=message.steady_steps,
        steady_seconds=pulse.steady_seconds + (now - pulse.reported_at if ran_on else 0.0),
        notice_seconds=message.notice_seconds,
        idle_seconds=message.idle_seconds,
        forecast=message.forecast,
        warned=pulse.warned & {"end-600", "end-60"} if stepped else pulse.warned,
        meter=_metered(pulse.meter, message, now, here, record),
        tally=tallied(
            pulse.tally,
            message.bid,
            here,
            was=(pulse.state, pulse.devices_in_use, pulse.reported_at, pulse.fraction_done),
            now=(message.state, message.devices_in_use, now, message.fraction_done),
        ),
    )


def _metered(
    meter: Meter, message: JobReport, now: float, here: Placement | None, record: TrackRecord
) -> Meter:
    """The job's claim beside the pace at which its work is seen to get done."""
    devices, fraction, step = tuple(sorted(message.devices_in_use)), message.fraction_done, message.step
    running = message.state is JobState.RUNNING
    meter = meter.moved_on(devices, running=running, now=now, fraction=fraction, step=step)
    if message.bid is None or message.bid.end_is_unknown:
        return meter
    meter = meter.restated(message.bid.rows, fraction)
    claim = claim_for(here, message.bid.rows) if here is not None else None
    if here is None or claim is None or claim.remaining_seconds is None:
        return meter
    believed = claim.remaining_seconds * record.factors(message.bid.rows).get(here.devices, 1.0)
    doubt = record.spread_log if record.weight else 0.0
    compared = meter.compared(
        believed, claim.sigma_log, now=now, fraction=fraction, step=step, doubt_log=doubt
    )  # fmt: skip
    if compared is meter or fraction >= 1:
        return compared
    undone = 1 - fraction
    return compared.noted(here, claim.remaining_seconds / undone, believed / undone)


def _follow_state(draft: Draft, job: Job, message: JobReport) -> None:
    if job.state is JobState.STARTING and message.state is JobState.RUNNING:
        change_job(draft, job.id, JobEvent.STARTED)
    elif job.state is JobState.RUNNING and message.state is JobState.STARTING:
        change_job(draft, job.id, JobEvent.RESTARTED)


def _take_bid(draft: Draft, job: Job, message: JobReport) -> None:
    if message.bid is not None and message.bid != job.bid:
        draft.put(replace(draft.books.jobs[job.id], bid=message.bid, bid_at=draft.now))
        if _measured_rows(message.bid) != _measured_rows(job.bid):
            draft.wake()
    if message.allowed_devices is not None:
        allowed = tuple(sorted(set(message.allowed_devices)))
        if not any(job.min_devices <= count <= job.max_devices for count in allowed):
            raise Refusal(
                ProblemCode.INVALID,
                f"no allowed device count lies between {job.min_devices} and {job.max_devices}",
            )
        if allowed != job.allowed_devices:
            draft.put(replace(draft.books.jobs[job.id], allowed_devices=allowed))
            draft.wake()


def _measured_rows(bid: StandingBid | None) -> int:
    return sum(row.remaining_seconds is not None for row in bid.rows) if bid else 0


def _keep_progress(draft: Draft, job_id: str) -> None:
    """Make a job's progress durable when its row is written anyway, or once in a while."""
    job, pulse = draft.books.jobs[job_id], draft.books.job_pulses[job_id]
    written = job != draft.before.jobs.get(job_id)
    if not written and draft.now - job.progress_at < draft.options.progress_seconds:
        return
    draft.put(
        replace(
            job,
            step=pulse.step,
            planned_steps=pulse.planned_steps,
            fraction_done=pulse.fraction_done,
            steady_seconds=pulse.steady_seconds,
            meter=pulse.meter,
            tally=pulse.tally,
            progress_at=draft.now,
        )
    )


def release(books: Books, ctx: Context, lease_id: str, message: ReleaseDevices) -> Decision[Accepted]:
    """Take a job's word that it has left devices of a lease. Said twice, it counts once."""
    lease = books.leases.get(lease_id)
    if lease is None:
        raise Refusal(ProblemCode.NOT_FOUND, f"there is no lease {lease_id}")
    if lease.fence != message.fence or lease.end_reason not in ("", "released"):
        raise Refusal(
            ProblemCode.LEASE_LOST,
            f"{lease_id} is not the job's any more ({lease.end_reason or 'another fence'})",
        )
    holdings = {holding.device: holding for holding in books.all_holdings_of(lease_id)}
    strange = [device for device in message.devices if device not in holdings]
    if strange:
        raise Refusal(ProblemCode.INVALID, f"{strange[0]} is no device of {lease_id}")
    draft = Draft(books, ctx)
    left = [holdings[d] for d in dict.fromkeys(message.devices) if holdings[d].active]
    take_word(draft, left)
    return draft.finish(lambda _: Accepted(detail=f"{len(left)} devices left"))


def end(books: Books, ctx: Context, job_id: str, message: EndJob) -> Decision[Accepted]:
    """End a job: what it held is left by its word, its claims die. Said twice, it counts once."""
    job = books.jobs.get(job_id)
    if job is None:
        raise Refusal(ProblemCode.NOT_FOUND, f"there is no job {job_id}")
    draft = Draft(books, ctx)
    if job.live:
        end_job(draft, job_id, message)
        return draft.finish(lambda _: Accepted(detail=f"ended: {message.outcome}"))
    return draft.finish(lambda _: Accepted(detail="had ended already"))


def end_job(draft: Draft, job_id: str, message: EndJob) -> None:
    """End a live job."""
    settle_claims(draft, draft.books.claims_of(job_id), ClaimEvent.DIED)
    take_word(draft, draft.books.active_of(job_id))
    _keep_progress(draft, job_id)
    job = draft.books.jobs[job_id]
    paused = draft.now - job.paused_at if job.paused_at is not None else 0.0
    draft.put(
        replace(
            job,
            state=step(JOB_TABLE, job.state, JobEvent.ENDED),
            outcome=message.outcome,
            fraction_done=1.0 if message.outcome is Outcome.FINISHED else job.fraction_done,
            ended_at=draft.now,
            meter=Meter(),
            tally=Tally(),
            paused_at=None,
            paused_seconds=job.paused_seconds + paused,
            waiting_since=None,
        )
    )
    _count_claims(draft, job)
    draft.say(job_id, message.reason or f"ended: {message.outcome}")
    draft.touch(job_id)
    draft.wake()


def _count_claims(draft: Draft, job: Job) -> None:
    """What the job claimed beside what it took goes into its account's record."""
    pulse, account = draft.books.job_pulses.get(job.id), draft.books.accounts[job.account]
    if pulse is not None:
        claims = account.claims.with_job(pulse.tally, draft.now)
        if claims is not account.claims:
            draft.put(replace(account, claims=claims))


def live_job(books: Books, job_id: str) -> Job:
    """The live job of that id.

    Raises:
        Refusal: NOT_FOUND, or JOB_ENDED.
    """
    job = books.jobs.get(job_id)
    if job is None:
        raise Refusal(ProblemCode.NOT_FOUND, f"there is no job {job_id}")
    if not job.live:
        raise Refusal(ProblemCode.JOB_ENDED, f"{job_id} has ended: {job.outcome}")
    return job
