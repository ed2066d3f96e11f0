"""Routes for administrators."""

from __future__ import annotations

import re

from fastapi import APIRouter, Response

from selfsched.protocol import (
    Accepted,
    AccountView,
    AuditEntry,
    IssueToken,
    LearnedHardware,
    LeaseView,
    SetAccount,
    TokenIssued,
    TokenView,
)
from selfsched_broker.api.call import reply, reply_list
from selfsched_broker.api.contract import describes
from selfsched_broker.api.jobs import Calls
from selfsched_broker.api.problems import BadRequest

router = APIRouter(prefix="/admin", tags=["administration"])
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _account(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadRequest(422, "an account's name: 1 to 64 of letters, digits, '.', '_' and '-'")
    return name


@router.get("/accounts", **describes(gives=AccountView, many=True))
async def accounts(call: Calls) -> Response:
    """All accounts."""
    return reply_list(await call.do(call.management.accounts, call.caller))


@router.put("/accounts/{name}", **describes(takes=SetAccount, gives=AccountView))
async def set_account(name: str, call: Calls) -> Response:
    """Make an account or change it."""
    message = await call.read(SetAccount)
    return reply(await call.do(call.management.set_account, call.caller, _account(name), message))


@router.post("/accounts/{name}/tokens", **describes(takes=IssueToken, gives=TokenIssued, status=201))
async def issue_token(name: str, call: Calls) -> Response:
    """A new token for an account; this answer alone has it."""
    message = await call.read(IssueToken)
    return reply(await call.do(call.management.issue_token, call.caller, _account(name), message), 201)


@router.get("/tokens", **describes(gives=TokenView, many=True))
async def tokens(call: Calls) -> Response:
    """All tokens without their secrets."""
    return reply_list(await call.do(call.management.tokens, call.caller))


@router.delete("/tokens/{token_id}", **describes(gives=Accepted))
async def revoke_token(token_id: str, call: Calls) -> Response:
    """Make a token worthless."""
    return reply(await call.do(call.management.revoke_token, call.caller, token_id))


@router.post("/devices/{device:path}/drain", **describes(gives=Accepted))
async def drain(device: str, call: Calls) -> Response:
    """Take a device out of use."""
    return reply(await call.do(call.management.drain, call.caller, device, drained=True))


@router.post("/devices/{device:path}/undrain", **describes(gives=Accepted))
async def undrain(device: str, call: Calls) -> Response:
    """Put a device back into use."""
    return reply(await call.do(call.management.drain, call.caller, device, drained=False))


@router.get("/leases", **describes(gives=LeaseView, many=True))
async def leases(call: Calls) -> Response:
    """Leases that have not ended."""
    return reply_list(await call.do(call.management.leases, call.caller))


@router.post("/leases/{lease}/release", **describes(gives=Accepted))
async def force_release(lease: str, call: Calls) -> Response:
    """End a job's right to a lease now."""
    return reply(await call.do(call.management.force_release, call.caller, lease))


@router.get("/hardware", **describes(gives=LearnedHardware, many=True))
async def hardware(call: Calls) -> Response:
    """What was learned of each kind of hardware from the jobs that ran on it."""
    return reply_list(await call.do(call.management.hardware, call.caller))


@router.get("/audit", **describes(gives=AuditEntry, many=True))
async def audit(call: Calls) -> Response:
    """The last entries (`last`, 100) of who did what, newest first."""
    return reply_list(await call.do(call.management.audit, call.caller, int(call.number("last", 100))))
