"""What callers may ask for: each call of the API with who asks, and whether they may.

What belongs to somebody else looks exactly like what is not there (NOT_FOUND, in words that
never repeat what was asked for). Nothing is decided about devices here.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import TypeVar

from selfsched.protocol import (
    AccountView,
    AuctionView,
    ClusterView,
    ControlJob,
    EndJob,
    ForecastScore,
    HardwarePrior,
    Instructions,
    JobRegistered,
    JobReport,
    JobView,
    Message,
    NodeInstructions,
    NodeReport,
    PolicyView,
    ProblemCode,
    RegisterJob,
    ReleaseDevices,
    SetAccount,
    WhatIf,
    WhatIfAnswer,
)
from selfsched_broker import what_if
from selfsched_broker.clock import moment_now
from selfsched_broker.core import arbiter, lessons, past_forecasts, views
from selfsched_broker.core.books import Books, Job
from selfsched_broker.core.draft import Context, Decision, Draft
from selfsched_broker.core.leases import Refusal
from selfsched_broker.forecasts import ForecastLog
from selfsched_broker.identity import Caller, HubUser, caller_by_hub, caller_by_token, caller_by_uid
from selfsched_broker.learning import LEARN_SECONDS, Learner
from selfsched_broker.service import Known, Question, Service

log = logging.getLogger(__name__)
MOST_LIVE_JOBS_PER_ACCOUNT = 1000
_MOST_AUCTIONS = 200
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
M = TypeVar("M", bound=Message)


class Desk:
    """The calls of jobs, nodes and people.

    Args:
        service: the broker behind it.
        learn_seconds: priors are learned no more often than this.
    """

    def __init__(self, service: Service, *, learn_seconds: float = LEARN_SECONDS) -> None:
        self.service = service
        self.forecasts = service.look(lambda books, _: ForecastLog(books))
        self.learner = Learner(service, self.forecasts, every_seconds=learn_seconds)

    # --- who -------------------------------------------------------------------------

    def caller(self, *, uid: int | None, authorization: str | None) -> Caller:
        """Who calls.

        Args:
            uid: of the peer, over a Unix socket.
            authorization: that header, over TCP.

        Raises:
            Refusal: NOT_AUTHENTICATED.
        """
        books = self.service.books
        if uid is None:
            return caller_by_token(books, authorization or "")
        found = caller_by_uid(books, uid)
        if found.account not in books.accounts:
            self.service.perform(_greet, found.account)
        return found

    def hub_caller(self, user: HubUser) -> Caller:
        """Who calls, when it is a user of a JupyterHub; an account is made for a new one."""
        if user.account not in self.service.books.accounts:
            self.service.perform(_greet, user.account)
        return caller_by_hub(self.service.books, user)

    # --- jobs ------------------------------------------------------------------------

    def register(self, caller: Caller, message: RegisterJob, *, key: str) -> Message | Known:
        """Take a new job of the caller's account."""
        self._refuse_nodes(caller)
        live = self.service.look(lambda books, _: len(books.live_jobs_of(caller.account)))
        if live >= MOST_LIVE_JOBS_PER_ACCOUNT:
            raise Refusal(ProblemCode.OVERLOADED, f"the account has {live} live jobs: end some first")
        asked = Question(account=caller.account, key=key, action="POST /v1/jobs", message=message)
        return self.service.perform(_register, caller.account, message, question=asked, status=201)

    def report(self, caller: Caller, job: str, message: JobReport) -> Instructions:
        """A job's report."""
        found = self._owned_job(caller, job)
        answer = self.service.report(job, message)
        if message.forecast is not None:
            moment = moment_now()
            self.service.look(lambda books, ctx: self.forecasts.note(books, ctx.now, moment, job, message))
        if message.statistics:
            self.learner.hear(found.account, found.name, message.statistics)
        return answer

    def instructions(self, caller: Caller, job: str) -> Instructions:
        """What a job is told, as things stand."""
        self._owned_job(caller, job)
        return self.service.look(lambda books, ctx: arbiter.instructions(books, ctx, job))

    def release(
        self, caller: Caller, lease: str, message: ReleaseDevices, *, key: str | None
    ) -> Message | Known:
        """A job has left devices."""
        found = self.service.books.leases.get(lease)
        self._owned_job(caller, found.job if found else "")
        asked = self._question(caller, key, f"POST /v1/leases/{lease}/release", message)
        return self.service.perform(arbiter.release, lease, message, question=asked)

    def end(self, caller: Caller, job: str, message: EndJob, *, key: str | None) -> Message | Known:
        """A job has ended."""
        found = self._owned_job(caller, job)
        asked = self._question(caller, key, f"POST /v1/jobs/{job}/end", message)
        answer = self.service.perform(self.forecasts.end, job, message, question=asked, moment=moment_now())
        if message.statistics:
            self.learner.hear(found.account, found.name, message.statistics)
        return answer

    def control(self, caller: Caller, job: str, message: ControlJob, *, key: str | None) -> Message | Known:
        """The owner of a job, or an administrator, says what is to become of it."""
        found = self._owned_job(caller, job)
        self._refuse_disabled(caller)
        asked = self._question(caller, key, f"POST /v1/jobs/{job}/control", message)
        answer = self.service.perform(arbiter.control, job, message, question=asked)
        if found.account != caller.account:
            self.note(caller, "control_job", job, message.action)
        return answer

    # --- views -----------------------------------------------------------------------

    def jobs(self, caller: Caller, *, ended: bool = True) -> tuple[JobView, ...]:
        """The caller's jobs, or everybody's for an administrator; newest last."""
        self._refuse_nodes(caller)

        def view(books: Books, ctx: Context) -> tuple[JobView, ...]:
            seen = [j for j in books.jobs.values() if caller.may_see(j.account) and (ended or j.live)]
            ordered = sorted(seen, key=lambda job: job.number)
            return tuple(views.job_view(books, ctx, job.id) for job in ordered)

        return self.service.look(view)

    def job(self, caller: Caller, job: str) -> JobView:
        """One job of the caller's."""
        self._owned_job(caller, job)
        return self.service.look(lambda books, ctx: views.job_view(books, ctx, job))

    def cluster(self, caller: Caller) -> ClusterView:
        """The cluster, for anyone with an account."""
        self._refuse_nodes(caller)
        return self.service.look(views.cluster_view)

    def auctions(self, caller: Caller, last: int) -> tuple[AuctionView, ...]:
        """The last decisions as the caller may see them, newest first."""
        self._refuse_nodes(caller)

        def view(books: Books, ctx: Context) -> tuple[AuctionView, ...]:
            numbers = sorted((a.number for a in books.auctions.values()), reverse=True)
            return tuple(
                views.auction_view(books, ctx, number, caller.account, admin=caller.admin)
                for number in numbers[: min(last, _MOST_AUCTIONS)]
            )

        return self.service.look(view)

    def auction(self, caller: Caller, number: int) -> AuctionView:
        """One decision as the caller may see it."""
        self._refuse_nodes(caller)
        return self.service.look(
            lambda books, ctx: views.auction_view(books, ctx, number, caller.account, admin=caller.admin)
        )

    def prior(self, caller: Caller, hardware: str, *, job: str | None = None) -> HardwarePrior:
        """What is known of a kind of hardware; for one of the caller's jobs, from all others."""
        self._refuse_nodes(caller)
        if not _IDENTIFIER.fullmatch(hardware):
            raise Refusal(ProblemCode.NOT_FOUND, "there is no such hardware")
        asking = self._owned_job(caller, job) if job is not None else None
        owner = f"{asking.account}/{asking.name}" if asking is not None else ""
        return self.service.look(lambda books, _: lessons.prior_in(books, hardware, owner))

    def account(self, caller: Caller) -> AccountView:
        """The caller's account."""
        self._refuse_nodes(caller)
        view = self.service.look(lambda books, _: views.account_view(books, caller.account))
        return view.model_copy(update={"admin": caller.admin})

    def policy(self, caller: Caller) -> PolicyView:
        """By which rule and with which times the broker decides."""
        self._refuse_nodes(caller)
        return self.service.look(_policy_view)

    def scores(self, caller: Caller) -> tuple[ForecastScore, ...]:
        """Past forecasts of the caller's jobs, and what came."""
        self._refuse_nodes(caller)
        moment = moment_now()
        return self.service.look(
            lambda books, ctx: self.forecasts.scores(books, ctx.now, moment, caller.account)
        )

    def what_if(self, caller: Caller, message: WhatIf) -> WhatIfAnswer:
        """When a job would end with other devices, without others, or if it were begun now."""
        self._refuse_nodes(caller)
        if message.job is not None:
            self._owned_job(caller, message.job)
        return self.service.look(lambda books, ctx: what_if.put(books, ctx, caller, message)).answer()

    # --- nodes -----------------------------------------------------------------------

    def node_report(self, caller: Caller, node: str, message: NodeReport) -> NodeInstructions:
        """A node's report, by that node's token or an administrator."""
        if caller.node != node and not (caller.admin and caller.node is None):
            raise Refusal(ProblemCode.FORBIDDEN, "this needs the token of that node")
        answer = self.service.perform(arbiter.node_report, node, message)
        assert isinstance(answer, NodeInstructions)
        return answer

    # --- what may not be -------------------------------------------------------------

    def note(self, caller: Caller, action: str, subject: str, detail: str = "") -> None:
        """Keep in the audit that somebody did, or tried, something."""
        try:
            self.service.perform(_audit, caller.account, action, subject, detail)
        except Refusal as refusal:
            log.warning("not kept in the audit: %s by %s: %s", action, caller.account, refusal.message)

    def _owned_job(self, caller: Caller, job: str) -> Job:
        self._refuse_nodes(caller)
        found = self.service.books.jobs.get(job)
        if found is not None and caller.may_see(found.account):
            return found
        if found is not None:
            self.note(caller, "refused", found.id, "another account's job")
        raise Refusal(ProblemCode.NOT_FOUND, "there is no such thing among what is yours")

    def _refuse_nodes(self, caller: Caller) -> None:
        if caller.node is not None:
            raise Refusal(ProblemCode.FORBIDDEN, "a node's token may only report for its node")

    def _refuse_disabled(self, caller: Caller) -> None:
        account = self.service.books.accounts.get(caller.account)
        if account is not None and account.disabled:
            raise Refusal(ProblemCode.FORBIDDEN, "the account is disabled: ask an administrator")

    @staticmethod
    def _question(caller: Caller, key: str | None, action: str, message: Message) -> Question | None:
        if key is None:
            return None
        return Question(account=caller.account, key=key, action=action, message=message)


def _register(books: Books, ctx: Context, account: str, message: RegisterJob) -> Decision[JobRegistered]:
    """Take a new job, and tell it how the account's forecasts came out."""
    decision = arbiter.register(books, ctx, account, message)
    scores = past_forecasts.summary(books, account, runs=True)
    return replace(decision, answer=decision.answer.model_copy(update={"forecast_scores": scores}))


def _greet(books: Books, ctx: Context, name: str) -> Decision[AccountView]:
    """Make the account of a user, of the machine or of a JupyterHub, who is seen for the first time."""
    return arbiter.set_account(books, ctx, name, SetAccount(), by=name)


def _audit(
    books: Books, ctx: Context, account: str, action: str, subject: str, detail: str
) -> Decision[None]:
    draft = Draft(books, ctx)
    draft.audit(action, subject, detail, account=account)
    return draft.finish(lambda _: None)


def _policy_view(books: Books, ctx: Context) -> PolicyView:
    options, fairness = ctx.options, ctx.fairness
    settings = {
        "report_seconds": options.report_seconds,
        "ttl_seconds": options.ttl_seconds,
        "grace_seconds": options.grace_seconds,
        "term_seconds": options.term_seconds,
        "min_auction_seconds": options.min_auction_seconds,
        "max_notice_seconds": options.max_notice_seconds,
        "idle_warned_seconds": options.idle_warned_seconds,
        "idle_lost_seconds": options.idle_lost_seconds,
        "max_stated_seconds": options.max_stated_seconds,
        "fairness_knob": fairness.fairness_knob,
        "visit_seconds": fairness.visit_seconds,
    }
    return PolicyView(policy=ctx.policy.name, settings=tuple(settings.items()))
