"""What has not been tried: a job on other devices, without others, or not begun yet.

Two answers. *As now*: the job has so many devices from now on to its end, by its own bid. *Ahead*: the
broker's policy is played forward (`core.look_ahead`), with the others and their ends. The question is
put together under the service's lock, the play is made outside it.

Others' bids are sealed. What a play tells of them is when the asker would start and end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from selfsched.protocol import (
    MAX_SECONDS,
    BidRow,
    Forecast,
    JobState,
    ProblemCode,
    WhatIf,
    WhatIfAnswer,
    WhatIfLine,
)
from selfsched_broker.core.ahead.draws import Z90
from selfsched_broker.core.ahead.player import Player, doubt_on, time_on
from selfsched_broker.core.ahead.scene import Scene, take_scene
from selfsched_broker.core.books import Books, Job
from selfsched_broker.core.draft import Context
from selfsched_broker.core.leases import Refusal
from selfsched_broker.core.look_ahead import Variant, foresee_variants
from selfsched_broker.identity import Caller

_UNBORN = "what-if"
_STATED_SPREAD = 1.15
"""90 % quantile over the median of a time that a person states."""
_RESTART_SECONDS = 10.0
"""Of a job that nobody has seen start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A what-if as it stands in the books."""

    asked: WhatIf
    scene: Scene
    asker: Player | None
    """None: a job that is paused or leaves, which cannot be played."""
    arrives: bool
    without: frozenset[str]
    as_now: tuple[tuple[int, Forecast], ...]
    reason: str

    def answer(self) -> WhatIfAnswer:
        """Play it. Some hundredths of a second; needs no lock."""
        if self.asker is None:
            return WhatIfAnswer(forecasts=self.as_now, reason=self.reason)
        counts: list[int | None] = [None, *self.asked.devices]
        fitting = [count for count in counts if count is None or count <= self.scene.devices]
        variants = [
            Variant(asker=_pinned(self.asker, count), without=self.without, arrives=self.arrives)
            for count in fitting
        ]
        told = dict(zip(fitting, foresee_variants(self.scene, variants), strict=True))
        lines = tuple(
            WhatIfLine(devices=count, starts=told[count].start, ends=told[count].finish)
            if count in told
            else WhatIfLine(devices=count)
            for count in counts
        )
        return WhatIfAnswer(
            forecasts=self.as_now, reason=self.reason, ahead=lines, is_measured=self.asker.known,
            newcomers_per_hour=self.scene.record.per_hour,
        )  # fmt: skip


def put(books: Books, ctx: Context, caller: Caller, asked: WhatIf) -> Question:
    """Take from the books what a what-if needs.

    Args:
        books: as they are.
        ctx: the moment and the rules.
        caller: who asks; that the job is theirs to see is checked before.
        asked: the question; no counts: all that the job has bid for, as now.

    Raises:
        Refusal: NOT_FOUND, INVALID, or IMPOSSIBLE where the job has not bid for a count.
    """
    scene = take_scene(books, ctx)
    if asked.seconds:
        asker = _unborn(books, caller.account, scene, asked)
        reason = f"of a job that would be started now and takes what you said{_where_it_fits(asker, scene)}"
        without = _without(books, caller, asked.without, but="")
        return Question(
            asked=asked, scene=scene, asker=asker, arrives=True, without=without, as_now=(), reason=reason
        )
    job = _asked_job(books, caller.account, asked)
    as_now = _as_now(job, ctx.now, asked)
    found = next((player for player in scene.players if player.job == job.id), None)
    return Question(
        asked=asked, scene=scene, asker=found, arrives=False,
        without=_without(books, caller, asked.without, but=job.id), as_now=as_now,
        reason=f"from the bid of {ctx.now - job.bid_at:.0f} s ago",
    )  # fmt: skip


def _where_it_fits(asker: Player, scene: Scene) -> str:
    """Words for counts that the cluster has not."""
    fitting = [n for n in asker.counts if n <= scene.devices]
    has = f"the cluster has {_devices_words(scene.devices)} in order"
    if not fitting:
        return f"; {has}, so that it would not start before there are {asker.counts[0]}"
    if len(fitting) == len(asker.counts):
        return ""
    wider = ", ".join(str(n) for n in asker.counts if n > scene.devices)
    return f"; {has}, so that it could run on {' or '.join(map(str, fitting))}, not on {wider}"


def _devices_words(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


def _without(books: Books, caller: Caller, names: Iterable[str], *, but: str) -> frozenset[str]:
    """The live jobs that are meant: by id, of those one may see, or by account."""
    gone: set[str] = set()
    for name in names:
        job = books.jobs.get(name)
        if job is not None and job.live and caller.may_see(job.account):
            gone.add(job.id)
            continue
        of_account = {found.id for found in books.live_jobs() if found.account == name}
        if not of_account:
            raise Refusal(
                ProblemCode.NOT_FOUND, "`without` names no live job of yours and no account with one"
            )
        gone |= of_account
    return frozenset(gone - {but})


def _unborn(books: Books, account: str, scene: Scene, asked: WhatIf) -> Player:
    seconds = dict(asked.seconds)
    if len(seconds) < len(asked.seconds):
        raise Refusal(ProblemCode.INVALID, "`seconds` names a device count twice")
    missing = [count for count in asked.devices if count not in seconds]
    if missing:
        raise Refusal(
            ProblemCode.INVALID, f"`seconds` does not say how long it takes on {missing[0]} devices"
        )
    strange = [count for count, _ in asked.doubts_log if count not in seconds]
    if strange:
        raise Refusal(ProblemCode.INVALID, f"`doubts_log` names {strange[0]} devices, `seconds` does not")
    counts, doubts = tuple(sorted(seconds)), dict(asked.doubts_log)
    weight = books.accounts[account].weight if account in books.accounts else 1.0
    accounts = {player.account: player.weight for player in scene.players} | {account: weight}
    return Player(
        job=_UNBORN,
        number=1 + max((player.number for player in scene.players), default=0),
        account=account,
        weight=weight,
        counts=counts,
        seconds=tuple(max(seconds[count], 1e-3) for count in counts),
        low=1 / _STATED_SPREAD,
        high=_STATED_SPREAD,
        restart_seconds=_RESTART_SECONDS,
        share=scene.devices * weight / max(sum(accounts.values()), 1e-9),
        doubts=tuple(doubts.get(count, 0.0) for count in counts),
        known=True,
    )


def _pinned(asker: Player, count: int | None) -> Player:
    """The job on so many devices and no others; where that row was thinned out, as on its neighbours."""
    if count is None:
        return asker
    times = dict(zip(asker.counts, asker.seconds, strict=True))
    held = asker.held if asker.held == count else 0
    doubts = (doubt_on(asker, count),) if asker.doubts else ()
    return replace(asker, counts=(count,), seconds=(time_on(times, count),), doubts=doubts, held=held)


def _asked_job(books: Books, account: str, asked: WhatIf) -> Job:
    if asked.job is not None:
        return books.jobs[asked.job]
    live = books.live_jobs_of(account)
    if not live:
        raise Refusal(ProblemCode.NOT_FOUND, "you have no live job")
    return live[-1]


def _as_now(job: Job, now: float, asked: WhatIf) -> tuple[tuple[int, Forecast], ...]:
    """When it would end on other counts, had from now on, by the rows of its bid."""
    rows = {} if job.bid is None else {r.placement.devices: r for r in job.bid.rows if r.placement.nodes == 1}
    measured = {n: row for n, row in sorted(rows.items()) if row.remaining_seconds is not None}
    wanted = asked.devices or tuple(measured)
    missing = [n for n in wanted if n not in measured]
    if missing or (not measured and not asked.without):
        known = ", ".join(map(str, measured)) or "none yet"
        raise Refusal(ProblemCode.IMPOSSIBLE, f"the job has bid for these device counts only: {known}")
    since = now - job.bid_at if job.state is JobState.RUNNING else 0.0
    return tuple((n, _forecast(measured[n], since)) for n in wanted)


def _forecast(row: BidRow, since_seconds: float) -> Forecast:
    assert row.remaining_seconds is not None
    median = max(0.0, row.remaining_seconds - since_seconds)
    spread = math.exp(min(row.sigma_log * Z90, 20.0))
    return Forecast(
        p10_seconds=min(row.restart_seconds + median / spread, MAX_SECONDS),
        p50_seconds=min(row.restart_seconds + median, MAX_SECONDS),
        p90_seconds=min(row.restart_seconds + median * spread, MAX_SECONDS),
        assumption="as_now",
    )
