"""The administrators' commands: each one call and its printing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from selfsched.errors import Refused
from selfsched.protocol import (
    Accepted,
    AccountView,
    AuctionView,
    AuditEntry,
    ClusterView,
    IssueToken,
    JobView,
    LeaseView,
    PolicyView,
    SetAccount,
    TokenIssued,
    TokenView,
)
from selfsched_broker import settings
from selfsched_broker.office import Office, open_office, segment
from selfsched_broker.printing import duration, say, show_json, show_table

StateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="The broker's state directory.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, and nothing else.")]
M = TypeVar("M", SetAccount, IssueToken)
Name = Annotated[str, typer.Argument(help="Name of the account.")]
Device = Annotated[str, typer.Argument(help="The device; the beginning of its name, if no other has it.")]

users = typer.Typer(
    no_args_is_help=True,
    help="Accounts, their shares and limits, their tokens.",
    epilog="Example: selfsched-broker users list",
)
leases = typer.Typer(
    invoke_without_command=True,
    help="Who holds what until when; who does nothing with it.",
    epilog="Example: selfsched-broker leases",
)
devices = typer.Typer(
    invoke_without_command=True,
    help="Devices and their states; take one out of use, or back.",
    epilog="Example: selfsched-broker devices --json",
)


def find_settings(state_dir: Path | None) -> settings.BrokerSettings:
    """The settings of the broker that a command means: the lab's, else this user's private one."""
    found = settings.load(state_dir=state_dir)
    if state_dir is None and found.state_dir == settings.DEFAULT_STATE_DIR and not found.state_dir.exists():
        from selfsched_broker.private import private_arguments

        return settings.load(state_dir=private_arguments()["state_dir"])
    return found


@contextmanager
def office(state_dir: Path | None, as_json: bool) -> Iterator[Office]:
    """The broker that a command means; a person who named none is told which one it is."""
    with open_office(find_settings(state_dir)) as found:
        if state_dir is None and not as_json:
            say_place(found.place)
        yield found


def say_place(place: str) -> None:
    """Tell a person, on standard error, what a command took by default."""
    typer.echo(f"{place}; --state-dir names another", err=True)


# --- users ---------------------------------------------------------------------------


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
        ("account", "weight", "may hold", "holds", "used", "admin", "disabled"),
        (
            (
                a.account, f"{a.weight:g}", a.max_devices or "any", a.held_devices,
                duration(a.used_device_seconds), "yes" if a.admin else "", "yes" if a.disabled else "",
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
        _show_accepted(found.one(Accepted, "DELETE", f"/admin/tokens/{segment(token_id)}"), as_json)


# --- jobs, leases, devices --------------------------------------------------------------


def jobs(
    ended: Annotated[bool, typer.Option("--ended", help="Also those that have ended.")] = False,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Everybody's jobs.

    Example: selfsched-broker jobs --ended
    """
    with office(state_dir, as_json) as found:
        listed = found.many(JobView, f"/jobs?ended={int(ended)}")
    if as_json:
        show_json(listed)
        return
    show_table(
        "Jobs",
        ("job", "name", "account", "state", "devices", "done", "idle", "rho", "age"),
        (
            (
                j.job, j.name, j.account, j.outcome or j.state, len(j.devices), f"{j.fraction_done:.0%}",
                duration(j.idle_seconds), f"{j.rho:.2f}" if j.rho is not None else "-",
                duration(j.age_seconds),
            )
            for j in listed
        ),
        names=("name", "account"),
    )  # fmt: skip


@leases.callback()
def list_leases(context: typer.Context, as_json: Json = False, state_dir: StateDir = None) -> None:
    """Leases that have not ended."""
    if context.invoked_subcommand is not None:
        return
    with office(state_dir, as_json) as found:
        listed = found.many(LeaseView, "/admin/leases")
    if as_json:
        show_json(listed)
        return
    show_table(
        "Leases",
        ("lease", "job", "name", "account", "devices", "ends in", "silent", "idle", "over"),
        (
            (
                v.lease, v.job, v.name, v.account, ", ".join(v.devices), duration(v.term_seconds),
                duration(v.silent_seconds), duration(v.idle_seconds), v.end_reason,
            )
            for v in listed
        ),
        names=("name", "account"),
        words="devices",
    )  # fmt: skip


@leases.command("release", epilog="Example: selfsched-broker leases release lease-7")
def release_lease(
    lease: Annotated[str, typer.Argument(help="The lease.")],
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """End a job's right to a lease now. Its devices are offered again once they are proven empty."""
    with office(state_dir, as_json) as found:
        _show_accepted(found.one(Accepted, "POST", f"/admin/leases/{segment(lease)}/release"), as_json)


@devices.callback()
def list_devices(context: typer.Context, as_json: Json = False, state_dir: StateDir = None) -> None:
    """All devices."""
    if context.invoked_subcommand is not None:
        return
    with office(state_dir, as_json) as found:
        cluster = found.one(ClusterView, "GET", "/cluster")
    if as_json:
        show_json(cluster.devices)
        return
    rows = (
        (d.id, d.node, d.index, d.model, d.state, d.account, duration(d.since_seconds), d.detail)
        for d in cluster.devices
    )
    headings = ("device", "node", "index", "model", "state", "held by", "since", "detail")
    show_table("Devices", headings, rows, names=("device", "node", "model", "held by"), words="detail")


@devices.command("drain", epilog="Example: selfsched-broker devices drain GPU-8f6c2f6e")
def drain_device(
    device: Device,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Take a device out of use; who holds it is told to leave within its notice."""
    with office(state_dir, as_json) as found:
        chosen = segment(_whole_name(found, device))
        _show_accepted(found.one(Accepted, "POST", f"/admin/devices/{chosen}/drain"), as_json)


@devices.command("undrain", epilog="Example: selfsched-broker devices undrain GPU-8f6c2f6e")
def undrain_device(
    device: Device,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Put a device back into use."""
    with office(state_dir, as_json) as found:
        chosen = segment(_whole_name(found, device))
        _show_accepted(found.one(Accepted, "POST", f"/admin/devices/{chosen}/undrain"), as_json)


@devices.command("release", epilog="Example: selfsched-broker devices release GPU-8f6c2f6e")
def release_device(
    device: Device,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """End the lease that holds a device now, with all that lease's devices."""
    with office(state_dir, as_json) as found:
        chosen = _whole_name(found, device)
        held = [v for v in found.many(LeaseView, "/admin/leases") if chosen in v.devices]
        if not held:
            raise Refused(f"no lease holds a device {device[:80]!r}")
        _show_accepted(
            found.one(Accepted, "POST", f"/admin/leases/{segment(held[0].lease)}/release"), as_json
        )


def _whole_name(found: Office, given: str) -> str:
    """The device that is meant by its name or the beginning of it, as a narrow table shows it.

    Raises:
        Refused: several begin so.
    """
    known = [device.id for device in found.one(ClusterView, "GET", "/cluster").devices]
    begins = [device for device in known if device.startswith(given.removesuffix("…"))]
    if given in known or not begins:
        return given
    if len(begins) > 1:
        raise Refused(f"{given[:80]!r} may be {', '.join(begins[:5])}: name more of it")
    return begins[0]


# --- decisions -------------------------------------------------------------------------


def auctions(
    number: Annotated[int | None, typer.Argument(help="One decision; none: the last ones.")] = None,
    last: Annotated[int, typer.Option(help="How many of them.")] = 20,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Decisions: who was considered, who won, why.

    Example: selfsched-broker auctions 12
    """
    with office(state_dir, as_json) as found:
        if number is None:
            listed = found.many(AuctionView, f"/auctions?last={max(0, last)}")
        else:
            listed = [found.one(AuctionView, "GET", f"/auctions/{number}")]
    if as_json:
        show_json(listed if number is None else listed[0])
    elif number is None:
        rows = (
            (
                a.number,
                duration(a.ago_seconds),
                a.trigger,
                len(a.awards),
                sum(w.devices for w in a.awards),
                a.reason,
            )
            for a in listed
        )
        headings = ("number", "ago", "why then", "jobs", "held after", "in words")
        show_table("Auctions", headings, rows, words="in words")
    else:
        _show_auction(listed[0])


def _show_auction(auction: AuctionView) -> None:
    rows = (
        (
            w.job, w.account, w.devices, "yes" if w.considered else "no",
            *(f"{rho:.2f}" if rho is not None else "-" for rho in (w.rho_before, w.rho_after)), w.reason,
        )
        for w in auction.awards
    )  # fmt: skip
    title = (
        f"Auction {auction.number} ({auction.trigger}, {auction.policy}), {duration(auction.ago_seconds)} ago"
    )
    headings = ("job", "account", "held after", "considered", "rho before", "rho after", "why")
    show_table(title, headings, rows, names=("account",), words="why")


def policy(as_json: Json = False, state_dir: StateDir = None) -> None:
    """By which rule and with which times the broker decides. They are set in its config file.

    Example: selfsched-broker policy --json
    """
    with office(state_dir, as_json) as found:
        view = found.one(PolicyView, "GET", "/policy")
    if as_json:
        show_json(view)
        return
    show_table(f"Policy {view.policy}", ("setting", "value"), ((n, f"{v:g}") for n, v in view.settings))


def audit(
    last: Annotated[int, typer.Option(help="How many entries.")] = 100,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Who did what: administrators' actions, refusals, broken promises; newest first.

    Example: selfsched-broker audit --last 20
    """
    with office(state_dir, as_json) as found:
        entries = found.many(AuditEntry, f"/admin/audit?last={max(0, last)}")
    if as_json:
        show_json(entries)
        return
    rows = ((duration(e.ago_seconds), e.account, e.action, e.subject, e.detail) for e in entries)
    headings = ("ago", "account", "action", "subject", "detail")
    show_table("Audit", headings, rows, names=("account", "subject"), words="detail")


# --- what they share ---------------------------------------------------------------------


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


def _show_account(account: AccountView, as_json: bool) -> None:
    if as_json:
        show_json(account)
        return
    limit = f"at most {account.max_devices} devices" if account.max_devices else "no limit"
    rights = (", administrator" if account.admin else "") + (", disabled" if account.disabled else "")
    say(f"{account.account}: weight {account.weight:g}, {limit}{rights}")


def _show_accepted(answer: Accepted, as_json: bool) -> None:
    if as_json:
        show_json(answer)
    else:
        say(answer.detail or "done")
