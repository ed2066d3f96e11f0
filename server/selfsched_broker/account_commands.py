"""The administrators' commands on accounts and their tokens: each one call and its printing."""

from __future__ import annotations

from typing import Annotated, TypeVar

import typer

from selfsched.errors import Refused
from selfsched.protocol import (
    Accepted,
    AccountView,
    ClaimsHeld,
    ForecastScores,
    IssueToken,
    SetAccount,
    TokenIssued,
    TokenView,
)
from selfsched_broker.office import segment
from selfsched_broker.options import Json, StateDir, office, show_accepted
from selfsched_broker.printing import duration, say, show_json, show_table

M = TypeVar("M", SetAccount, IssueToken)
Name = Annotated[str, typer.Argument(help="Name of the account.")]

users = typer.Typer(
    no_args_is_help=True,
    help="Accounts, their shares and limits, their tokens.",
    epilog="Example: selfsched-broker users list",
)


@users.command("add", epilog="Example: selfsched-broker users add ada --weight 2 --max-devices 4")
def add_user(
    name: Name,
    weight: Annotated[float | None, typer.Option(help="Its share against others' (default 1).")] = None,
    max_devices: Annotated[int | None, typer.Option(help="The most it may hold at once.")] = None,
    admin: Annotated[bool | None, typer.Option("--admin/--no-admin", help="May administer.")] = None,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Make an account. On one machine nobody needs this: accounts are made at first sight."""
    message = _account_message(weight=weight, max_devices=max_devices, admin=admin)
    with office(state_dir, as_json) as found:
        if any(account.account == name for account in found.many(AccountView, "/admin/accounts")):
            raise Refused(f"there is an account {name} already: change it with `users set`")
        _show_account(found.one(AccountView, "PUT", f"/admin/accounts/{segment(name)}", message), as_json)


@users.command("set", epilog="Example: selfsched-broker users set ada --weight 0.5 --no-limit")
def set_user(
    name: Name,
    weight: Annotated[float | None, typer.Option(help="Its share against others'.")] = None,
    max_devices: Annotated[int | None, typer.Option(help="The most it may hold at once.")] = None,
    no_limit: Annotated[bool, typer.Option("--no-limit", help="Lift that limit.")] = False,
    admin: Annotated[bool | None, typer.Option("--admin/--no-admin", help="May administer.")] = None,
    disabled: Annotated[bool | None, typer.Option("--disable/--enable", help="May not run jobs.")] = None,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Change an account; what is not named stays as it is."""
    message = _account_message(
        weight=weight, max_devices=max_devices, admin=admin, disabled=disabled, lift_max_devices=no_limit
    )
    with office(state_dir, as_json) as found:
        if all(account.account != name for account in found.many(AccountView, "/admin/accounts")):
            raise Refused(f"there is no account {name[:80]!r}: make it with `users add`")
        _show_account(found.one(AccountView, "PUT", f"/admin/accounts/{segment(name)}", message), as_json)


@users.command("list", epilog="Example: selfsched-broker users list --json")
def list_users(as_json: Json = False, state_dir: StateDir = None) -> None:
    """All accounts."""
    with office(state_dir, as_json) as found:
        accounts = found.many(AccountView, "/admin/accounts")
    if as_json:
        show_json(accounts)
        return
    show_table(
        "Accounts",
        (
            "account", "weight", "may hold", "holds", "used", "owes", "forecasts held", "took over claimed",
            "admin", "disabled",
        ),
        (
            (
                a.account, f"{a.weight:g}", a.max_devices or "any", a.held_devices,
                duration(a.used_device_seconds),
                duration(a.debt_device_seconds) if a.debt_device_seconds else "",
                _held_words(a.forecast_scores), _claims_words(a.claims),
                "yes" if a.admin else "", "yes" if a.disabled else "",
            )
            for a in accounts
        ),
        names=("account",),
    )  # fmt: skip


@users.command("token", epilog="Example: selfsched-broker users token ada > ~ada/.selfsched-token")
def issue_token(
    name: Name,
    node: Annotated[str | None, typer.Option(help="It may only report for this node.")] = None,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """A new token for an account, for calls over TCP. It is shown once, here."""
    message = _build(IssueToken, node=node)
    with office(state_dir, as_json) as found:
        issued = found.one(TokenIssued, "POST", f"/admin/accounts/{segment(name)}/tokens", message)
    if as_json:
        show_json(issued)
        return
    print(issued.token)
    typer.echo(
        f"Token {issued.token_id} of {issued.account}. It is not shown again: keep it in a file of mode "
        "0600 and name that in SELFSCHED_TOKEN_FILE.",
        err=True,
    )


@users.command("tokens", epilog="Example: selfsched-broker users tokens")
def list_tokens(as_json: Json = False, state_dir: StateDir = None) -> None:
    """All tokens, without their secrets."""
    with office(state_dir, as_json) as found:
        tokens = found.many(TokenView, "/admin/tokens")
    if as_json:
        show_json(tokens)
        return
    rows = (
        (t.token_id, t.account, t.node, duration(t.age_seconds), "yes" if t.revoked else "") for t in tokens
    )
    show_table("Tokens", ("token", "account", "node", "age", "revoked"), rows, names=("account", "node"))


@users.command("revoke", epilog="Example: selfsched-broker users revoke 3f9a0c12d4e5")
def revoke_token(
    token_id: Annotated[str, typer.Argument(help="The token's id, as `users tokens` lists it.")],
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Make a token worthless, at once."""
    with office(state_dir, as_json) as found:
        show_accepted(found.one(Accepted, "DELETE", f"/admin/tokens/{segment(token_id)}"), as_json)


def _held_words(scores: ForecastScores | None) -> str:
    return f"{scores.held} of {scores.made}" if scores is not None else "-"


def _claims_words(claims: ClaimsHeld | None) -> str:
    return f"{claims.took_over_claimed:.2f} over {claims.jobs}" if claims is not None else "-"


def _show_account(account: AccountView, as_json: bool) -> None:
    if as_json:
        show_json(account)
        return
    limit = f"at most {account.max_devices} devices" if account.max_devices else "no limit"
    rights = (", administrator" if account.admin else "") + (", disabled" if account.disabled else "")
    say(f"{account.account}: weight {account.weight:g}, {limit}{rights}")


def _account_message(**values: object) -> SetAccount:
    return _build(SetAccount, **{name: value for name, value in values.items() if value is not None})


def _build(kind: type[M], **values: object) -> M:
    """A message from options.

    Raises:
        Refused: an option is out of its range.
    """
    from pydantic import ValidationError

    try:
        return kind.model_validate(values)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = str(fault["loc"][0]) if fault["loc"] else ""
        raise Refused(f"--{where.replace('_', '-')}: {fault['msg']}") from None
