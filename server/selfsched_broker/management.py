"""What administrators may do and see. Every action is kept in the audit."""

from __future__ import annotations

from selfsched.protocol import (
    Accepted,
    AccountView,
    AuditEntry,
    IssueToken,
    LearnedHardware,
    LeaseView,
    ProblemCode,
    SetAccount,
    TokenIssued,
    TokenView,
)
from selfsched_broker.core import arbiter, lessons, views
from selfsched_broker.core.books import Books, Lease
from selfsched_broker.core.draft import Context
from selfsched_broker.core.leases import Refusal
from selfsched_broker.identity import Caller, issue_token
from selfsched_broker.service import Service

_MOST_AUDITS = 2000


class Management:
    """The administrators' calls.

    Args:
        service: the broker behind them.
    """

    def __init__(self, service: Service) -> None:
        self.service = service

    def accounts(self, caller: Caller) -> tuple[AccountView, ...]:
        """All accounts, by name."""
        self._admit(caller)
        return self.service.look(
            lambda books, _: tuple(views.account_view(books, name) for name in sorted(books.accounts))
        )

    def set_account(self, caller: Caller, name: str, message: SetAccount) -> AccountView:
        """Make an account or change it."""
        self._admit(caller)
        answer = self.service.perform(arbiter.set_account, name, message, by=caller.account)
        assert isinstance(answer, AccountView)
        return answer

    def issue_token(self, caller: Caller, account: str, message: IssueToken) -> TokenIssued:
        """Draw a token for an account. This answer alone has it."""
        self._admit(caller)
        issued = issue_token(account, node=message.node, now=self.service.clock.now())
        self.service.perform(arbiter.record_token, issued.record, by=caller.account)
        return TokenIssued(token_id=issued.record.token_id, account=account, token=issued.text)

    def tokens(self, caller: Caller) -> tuple[TokenView, ...]:
        """All tokens without their secrets, oldest first."""
        self._admit(caller)

        def view(books: Books, ctx: Context) -> tuple[TokenView, ...]:
            return tuple(
                TokenView(
                    token_id=token.token_id,
                    account=token.account,
                    node=token.node,
                    age_seconds=max(0.0, ctx.now - token.created_at),
                    revoked=token.revoked,
                )
                for token in sorted(books.tokens.values(), key=lambda token: token.created_at)
            )

        return self.service.look(view)

    def revoke_token(self, caller: Caller, token_id: str) -> Accepted:
        """Make a token worthless."""
        self._admit(caller)
        self._there(token_id in self.service.books.tokens, "token")
        self.service.perform(arbiter.revoke_token, token_id, by=caller.account)
        return Accepted(detail="revoked")

    def drain(self, caller: Caller, device: str, *, drained: bool) -> Accepted:
        """Take a device out of use, or back."""
        self._admit(caller)
        self._there(device in self.service.books.devices, "device")
        answer = self.service.perform(arbiter.drain_device, device, drained=drained, by=caller.account)
        assert isinstance(answer, Accepted)
        return answer

    def force_release(self, caller: Caller, lease: str) -> Accepted:
        """End a job's right to a lease now."""
        self._admit(caller)
        self._there(lease in self.service.books.leases, "lease")
        answer = self.service.perform(arbiter.force_release, lease, by=caller.account)
        assert isinstance(answer, Accepted)
        return answer

    def leases(self, caller: Caller) -> tuple[LeaseView, ...]:
        """Leases that have not ended, oldest first."""
        self._admit(caller)
        return self.service.look(
            lambda books, ctx: tuple(
                _lease_view(books, ctx, lease)
                for lease in sorted(books.open_leases(), key=lambda lease: lease.fence)
            )
        )

    def hardware(self, caller: Caller) -> tuple[LearnedHardware, ...]:
        """What was learned of each kind of hardware, by name."""
        self._admit(caller)
        return self.service.look(lambda books, ctx: lessons.views(books, ctx.now))

    def audit(self, caller: Caller, last: int) -> tuple[AuditEntry, ...]:
        """The last entries of the audit, newest first."""
        self._admit(caller)

        def view(books: Books, ctx: Context) -> tuple[AuditEntry, ...]:
            newest = sorted(books.audits.values(), key=lambda audit: -audit.number)
            return tuple(
                AuditEntry(
                    ago_seconds=max(0.0, ctx.now - audit.at),
                    account=audit.account,
                    action=audit.action,
                    subject=audit.subject,
                    detail=audit.detail,
                )
                for audit in newest[: min(last, _MOST_AUDITS)]
            )

        return self.service.look(view)

    @staticmethod
    def _admit(caller: Caller) -> None:
        if not caller.admin or caller.node is not None:
            raise Refusal(ProblemCode.FORBIDDEN, "this is for administrators")

    @staticmethod
    def _there(known: bool, what: str) -> None:
        if not known:
            raise Refusal(ProblemCode.NOT_FOUND, f"there is no such {what}")


def _lease_view(books: Books, ctx: Context, lease: Lease) -> LeaseView:
    job, pulse = books.jobs[lease.job], books.job_pulses.get(lease.job)
    renewed = books.lease_pulses.get(lease.id)
    return LeaseView(
        lease=lease.id,
        fence=lease.fence,
        job=job.id,
        name=job.name,
        account=job.account,
        devices=tuple(holding.device for holding in books.holdings_of(lease.id)),
        term_seconds=max(0.0, lease.term_ends_at - ctx.now),
        silent_seconds=max(0.0, ctx.now - renewed.renewed_at) if renewed else 0.0,
        idle_seconds=views.idle_seconds(pulse, ctx.now),
        end_reason=lease.end_reason,
    )
