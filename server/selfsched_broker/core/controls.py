"""What people do: control a job (its owner), and administer accounts, tokens, devices, leases.

Who may do it is the caller's to check; every administrator's action is audited here.
"""

from __future__ import annotations

from dataclasses import replace

from selfsched.protocol import (
    Accepted,
    AccountView,
    ControlJob,
    EndJob,
    JobState,
    Outcome,
    ProblemCode,
    Resume,
    SetAccount,
)
from selfsched_broker.core.books import Account, Books, Holding, Job, Token
from selfsched_broker.core.draft import Context, Decision, Draft
from selfsched_broker.core.grants import change_job, empty, lose, order_leave, settle_claims
from selfsched_broker.core.jobs import end_job, live_job
from selfsched_broker.core.leases import ClaimEvent, JobEvent, Refusal
from selfsched_broker.core.nodes import drain
from selfsched_broker.core.views import account_view


def control(books: Books, ctx: Context, job_id: str, message: ControlJob) -> Decision[Accepted]:
    """Pause, resume, stop or resize a job, or change its priority, by its owner's word."""
    job = live_job(books, job_id)
    draft = Draft(books, ctx)
    match message.action:
        case "pause":
            detail = _pause(draft, job)
        case "resume":
            detail = _resume(draft, job)
        case "stop":
            detail = _stop(draft, job)
        case "set_priority":
            detail = _set_priority(draft, job, message)
        case "set_devices":
            detail = _set_devices(draft, job, message.min_devices, message.max_devices)
        case "give_back":
            detail = _give_back(draft, job)
    return draft.finish(lambda _: Accepted(detail=detail))


def _pause(draft: Draft, job: Job) -> str:
    if job.resume is Resume.NEVER and draft.books.devices_of(job.id):
        raise Refusal(ProblemCode.IMPOSSIBLE, "this program cannot go on after a pause: stop it instead")
    if job.order == "stop":
        raise Refusal(ProblemCode.CONFLICT, "the job is being stopped")
    pause_job(draft, job, "paused by its owner")
    return "pausing" if draft.books.devices_of(job.id) else "paused"


def pause_job(draft: Draft, job: Job, reason: str) -> None:
    """Tell a job to leave everything and keep its place; without devices it is paused at once."""
    if job.order == "pause":
        return
    draft.put(replace(job, order="pause"))
    draft.say(job.id, reason)
    draft.touch(job.id)
    settle_claims(draft, draft.books.claims_of(job.id), ClaimEvent.DIED)
    order_leave(draft, draft.books.active_of(job.id), reason)
    if job.state is JobState.WAITING:
        empty(draft, job.id)


def _resume(draft: Draft, job: Job) -> str:
    if job.order != "pause":
        return "was not paused"
    draft.put(replace(job, order="go_on"))
    if job.state is JobState.PAUSED:
        change_job(draft, job.id, JobEvent.RESUMED)
        paused = draft.now - (job.paused_at if job.paused_at is not None else draft.now)
        now_waiting = replace(
            draft.books.jobs[job.id],
            paused_at=None,
            paused_seconds=job.paused_seconds + paused,
            waiting_since=draft.now,
            stands_back_until=None,
        )
        draft.put(now_waiting)
    draft.say(job.id, "resumed by its owner")
    draft.touch(job.id)
    draft.wake()
    return "waiting for devices"


def _give_back(draft: Draft, job: Job) -> str:
    """Leave everything now and bid again later, with the limits that the job has.

    It stands back over a whole term: it asks for nothing at the next tick, else what it has just left
    would come straight back to it where nobody else wants it.
    """
    if job.resume is Resume.NEVER:
        raise Refusal(ProblemCode.IMPOSSIBLE, "this program cannot go on after it has left: stop it instead")
    if job.order != "go_on":
        raise Refusal(ProblemCode.CONFLICT, "the job leaves its devices already, by its owner's word")
    held = draft.books.active_of(job.id)
    if not held and not draft.books.claims_of(job.id):
        raise Refusal(ProblemCode.CONFLICT, "the job holds no device that it could give back")
    until = draft.books.agenda.next_tick_at + draft.options.term_seconds
    draft.put(replace(job, stands_back_until=until))
    reason = "its owner gave its devices back: it asks for some again at the auction after the next"
    draft.say(job.id, reason)
    draft.touch(job.id)
    settle_claims(draft, draft.books.claims_of(job.id), ClaimEvent.DIED)
    order_leave(draft, held, reason)
    return "gives its devices back"


def _stop(draft: Draft, job: Job) -> str:
    reason = "stopped by its owner"
    draft.put(replace(job, order="stop"))
    draft.say(job.id, reason)
    draft.touch(job.id)
    settle_claims(draft, draft.books.claims_of(job.id), ClaimEvent.DIED)
    order_leave(draft, draft.books.active_of(job.id), reason)
    pulse = draft.books.job_pulses.get(job.id)
    silent = pulse is None or draft.now - pulse.reported_at > draft.options.ttl_seconds
    if silent and not draft.books.devices_of(job.id):
        end_job(draft, job.id, EndJob(outcome=Outcome.CANCELLED, reason=reason))
    return "stopping"


def _set_priority(draft: Draft, job: Job, message: ControlJob) -> str:
    if message.priority is None:
        raise Refusal(ProblemCode.INVALID, "set_priority needs a priority")
    draft.put(replace(job, priority=message.priority))
    draft.say(job.id, f"priority set to {message.priority:g} by its owner")
    return f"priority {message.priority:g}"


def _set_devices(draft: Draft, job: Job, fewest: int | None, most: int | None) -> str:
    fewest, most = fewest or job.min_devices, most or job.max_devices
    if fewest > most:
        raise Refusal(ProblemCode.INVALID, f"min_devices {fewest} is larger than max_devices {most}")
    if fewest > len(draft.books.devices):
        raise Refusal(ProblemCode.IMPOSSIBLE, f"the cluster has {len(draft.books.devices)} devices")
    if job.resume is not Resume.ELASTIC or job.wanted_devices:
        raise Refusal(ProblemCode.IMPOSSIBLE, "this job runs on the devices it asked for, no others")
    if job.allowed_devices and not any(fewest <= n <= most for n in job.allowed_devices):
        counts = ", ".join(map(str, job.allowed_devices))
        raise Refusal(ProblemCode.INVALID, f"its global batch allows {counts} devices only")
    draft.put(replace(job, min_devices=fewest, max_devices=most))
    _leave_surplus(draft, draft.books.jobs[job.id])
    words = f"{fewest} to {most} devices" if fewest < most else f"{most} device{'s' if most > 1 else ''}"
    draft.say(job.id, f"its owner wants {words}")
    draft.wake()
    return words


def _leave_surplus(draft: Draft, job: Job) -> None:
    """Have a job leave what it holds beyond its maximum, the newest first; its claims die first."""
    held = [holding for holding in draft.books.active_of(job.id) if holding.state == "held"]
    claims = draft.books.claims_of(job.id)
    allowed = [n for n in job.allowed_devices if n <= job.max_devices] or [job.max_devices]
    most = max(allowed)
    if len(held) + len(claims) > most:
        settle_claims(draft, claims, ClaimEvent.DIED)
    order_leave(draft, newest_first(draft.books, held)[: max(0, len(held) - most)], "its owner wants fewer")


def newest_first(books: Books, holdings: list[Holding]) -> list[Holding]:
    """Holdings in the order in which a job gives them up: newest lease first."""
    return sorted(holdings, key=lambda h: (-books.leases[h.lease].fence, h.device))


def set_account(
    books: Books, ctx: Context, name: str, message: SetAccount, *, by: str
) -> Decision[AccountView]:
    """Make an account or change its weight, limit and rights."""
    draft = Draft(books, ctx)
    before = books.accounts.get(name)
    account = draft.account(name)
    limit = None if message.lift_max_devices else message.max_devices or account.max_devices
    after = replace(
        account,
        weight=account.weight if message.weight is None else message.weight,
        max_devices=limit,
        admin=account.admin if message.admin is None else message.admin,
        disabled=account.disabled if message.disabled is None else message.disabled,
    )
    draft.put(after)
    if after.disabled != account.disabled:
        _tell_of_right(draft, after, by)
    _leave_beyond_limit(draft, name, limit, f"account {name} may hold {limit} devices")
    draft.audit("set_account", name, _change_words(before, after), account=by)
    draft.wake()
    return draft.finish(lambda after: account_view(after, name))


def _change_words(before: Account | None, after: Account) -> str:
    """What became of an account, for the audit: every right as it was and as it is."""
    now = _rights(after)
    if before is None:
        return "made: " + ", ".join(f"{name} {value}" for name, value in now.items())
    was = _rights(before)
    changed = [f"{name} {was[name]} -> {value}" for name, value in now.items() if value != was[name]]
    return ", ".join(changed) or "nothing changed"


def _rights(account: Account) -> dict[str, str]:
    limit = "no limit" if account.max_devices is None else str(account.max_devices)
    return {
        "weight": f"{account.weight:g}",
        "max_devices": limit,
        "admin": "yes" if account.admin else "no",
        "disabled": "yes" if account.disabled else "no",
    }


def _tell_of_right(draft: Draft, account: Account, by: str) -> None:
    """Tell the jobs of an account that it may run none now, or may again."""
    reason = "its account is enabled again"
    if account.disabled:
        reason = f"account {account.name} was disabled by {by}, so it may hold no device: ask {by}"
        _leave_beyond_limit(draft, account.name, 0, reason)
    for job in draft.books.live_jobs_of(account.name):
        draft.say(job.id, reason)


def _leave_beyond_limit(draft: Draft, account: str, limit: int | None, reason: str) -> None:
    """Have an account's jobs leave what is beyond its limit: the youngest jobs first."""
    books = draft.books
    jobs = books.live_jobs_of(account)[::-1]
    held = [h for job in jobs for h in newest_first(books, books.active_of(job.id)) if h.state == "held"]
    claims = [claim for job in jobs for claim in books.claims_of(job.id)]
    if limit is None or len(held) + len(claims) <= limit:
        return
    settle_claims(draft, claims, ClaimEvent.DIED)
    order_leave(draft, held[: max(0, len(held) - limit)], reason)


def record_token(books: Books, ctx: Context, token: Token, *, by: str) -> Decision[Accepted]:
    """Keep the hash of a token that was issued.

    A misspelt name must not become an account with rights of its own: it is refused.
    """
    if token.token_id in books.tokens:
        raise Refusal(ProblemCode.CONFLICT, f"there is a token {token.token_id} already")
    if token.account not in books.accounts:
        words = f"there is no account {token.account}: make it first, with `users add {token.account}`"
        raise Refusal(ProblemCode.NOT_FOUND, words)
    draft = Draft(books, ctx)
    draft.put(token)
    draft.audit("issue_token", token.token_id, f"for {token.account}", account=by)
    return draft.finish(lambda _: Accepted())


def revoke_token(books: Books, ctx: Context, token_id: str, *, by: str) -> Decision[Accepted]:
    """Make a token worthless."""
    token = books.tokens.get(token_id)
    if token is None:
        raise Refusal(ProblemCode.NOT_FOUND, f"there is no token {token_id}")
    draft = Draft(books, ctx)
    draft.put(replace(token, revoked=True))
    draft.audit("revoke_token", token_id, f"of {token.account}", account=by)
    return draft.finish(lambda _: Accepted())


def drain_device(
    books: Books, ctx: Context, device_id: str, *, drained: bool = True, by: str
) -> Decision[Accepted]:
    """Take a device out of use (its holder is told to leave), or with `drained=False` back."""
    if device_id not in books.devices:
        raise Refusal(ProblemCode.NOT_FOUND, f"there is no device {device_id}")
    draft = Draft(books, ctx)
    drain(draft, device_id, drained=drained, account=by)
    return draft.finish(lambda _: Accepted(detail="drained" if drained else "in use again"))


def force_release(books: Books, ctx: Context, lease_id: str, *, by: str) -> Decision[Accepted]:
    """End a job's right to a lease now. Its devices stay quarantined until proven empty."""
    if lease_id not in books.leases:
        raise Refusal(ProblemCode.NOT_FOUND, f"there is no lease {lease_id}")
    draft = Draft(books, ctx)
    active = [holding for holding in books.holdings_of(lease_id) if holding.active]
    lose(draft, active, "forced", "an administrator ended its lease")
    draft.audit("force_release", lease_id, f"{len(active)} devices quarantined", account=by)
    return draft.finish(lambda _: Accepted(detail=f"{len(active)} devices quarantined until empty"))
