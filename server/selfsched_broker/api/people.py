"""Routes for people: the cluster, decisions, accounts, forecasts."""

from __future__ import annotations

from fastapi import APIRouter, Response

from selfsched.protocol import (
    AccountView,
    AuctionView,
    ClusterView,
    ForecastScore,
    PolicyView,
    WhatIf,
    WhatIfAnswer,
)
from selfsched_broker.api.call import not_found, reply, reply_list, reply_when_new, without_clocks
from selfsched_broker.api.contract import describes
from selfsched_broker.api.jobs import Calls
from selfsched_broker.service import CLUSTER

router = APIRouter(tags=["people"])
_CLUSTER_CLOCKS = frozenset(
    {
        "since_seconds", "next_tick_seconds", "memory_used_bytes", "utilisation", "used_bytes",
        "newcomers_per_hour",
    }
)
_LONGEST_NUMBER = 15


@router.get("/cluster", **describes(gives=ClusterView))
async def cluster(call: Calls) -> Response:
    """The cluster, with an ETag; `wait_seconds` with If-None-Match waits for news."""

    def still(view: ClusterView) -> object:
        return without_clocks(view, _CLUSTER_CLOCKS)

    return await reply_when_new(call, CLUSTER, lambda: call.desk.cluster(call.caller), still)


@router.get("/auctions", **describes(gives=AuctionView, many=True))
async def auctions(call: Calls) -> Response:
    """The last decisions (`last`, 20), newest first."""
    return reply_list(await call.do(call.desk.auctions, call.caller, int(call.number("last", 20))))


@router.get("/auctions/{number}", **describes(gives=AuctionView))
async def auction(number: str, call: Calls) -> Response:
    """One decision: who was considered, who won, why."""
    if not number.isascii() or not number.isdigit() or len(number) > _LONGEST_NUMBER:
        raise not_found()
    return reply(await call.do(call.desk.auction, call.caller, int(number)))


@router.get("/policy", **describes(gives=PolicyView))
async def policy(call: Calls) -> Response:
    """By which rule and with which times the broker decides."""
    return reply(await call.do(call.desk.policy, call.caller))


@router.get("/accounts/me", **describes(gives=AccountView))
async def me(call: Calls) -> Response:
    """Your account."""
    return reply(await call.do(call.desk.account, call.caller))


@router.get("/accounts/me/forecasts", **describes(gives=ForecastScore, many=True))
async def my_forecasts(call: Calls) -> Response:
    """Past forecasts of your jobs, and what came."""
    return reply_list(await call.do(call.desk.scores, call.caller))


@router.post("/forecast", **describes(takes=WhatIf, gives=WhatIfAnswer))
async def forecast(call: Calls) -> Response:
    """When a job would end with other devices."""
    message = await call.read(WhatIf)
    return reply(await call.do(call.desk.what_if, call.caller, message))
