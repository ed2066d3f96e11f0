"""The administrators' commands on jobs, leases, devices and decisions: each one call and its printing."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from selfsched.errors import Refused
from selfsched.protocol import (
    Accepted,
    AuctionView,
    AuditEntry,
    ClusterView,
    JobView,
    LearnedHardware,
    LeaseView,
    PolicyView,
)
from selfsched_broker.office import Office, segment
from selfsched_broker.options import Json, StateDir, office, show_accepted
from selfsched_broker.printing import duration, show_json, show_table

Device = Annotated[str, typer.Argument(help="The device; the beginning of its name, if no other has it.")]

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


def hardware(as_json: Json = False, state_dir: StateDir = None) -> None:
    """What was learned of each kind of hardware from the jobs that ran on it.

    Example: selfsched-broker hardware
    """
    with office(state_dir, as_json) as found:
        listed = found.many(LearnedHardware, "/admin/hardware")
    if as_json:
        show_json(listed)
        return
    show_table(
        "Hardware",
        ("hardware", "jobs", "placements", "steps", "figures from", "learned", "GB/s", "within", "latency"),
        map(_hardware_row, listed),
        names=("hardware",),
    )


def _hardware_row(found: LearnedHardware) -> tuple[object, ...]:
    prior, ago = found.prior, found.learned_ago_seconds
    return (
        found.hardware, found.reporting_jobs, found.placements, found.steps,
        "documents" if ago is None else f"{prior.jobs} job{'' if prior.jobs == 1 else 's'}",
        "-" if ago is None else f"{duration(ago)} ago",
        f"{prior.bandwidth_bytes_per_second / 1e9:.3g}", f"x {math.exp(prior.sigma_log):.1f}",
        f"{prior.latency_seconds * 1e6:.0f} us",
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
        show_accepted(found.one(Accepted, "POST", f"/admin/leases/{segment(lease)}/release"), as_json)


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
        show_accepted(found.one(Accepted, "POST", f"/admin/devices/{chosen}/drain"), as_json)


@devices.command("undrain", epilog="Example: selfsched-broker devices undrain GPU-8f6c2f6e")
def undrain_device(
    device: Device,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Put a device back into use."""
    with office(state_dir, as_json) as found:
        chosen = segment(_whole_name(found, device))
        show_accepted(found.one(Accepted, "POST", f"/admin/devices/{chosen}/undrain"), as_json)


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
        show_accepted(found.one(Accepted, "POST", f"/admin/leases/{segment(held[0].lease)}/release"), as_json)


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
