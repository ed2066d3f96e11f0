"""What nodes say of their devices, and what follows: proof of emptiness, sickness, silence.

A report is whole: a device that its node no longer lists is as good as sick. Order is by
(incarnation, sequence); an older report changes nothing, so it can neither free a quarantined
device nor bring one back. `unknown` is never `empty`, and a silent node's devices are unknown.

A device that a job left by its own word is proven empty by a later `empty`. One that was taken
from a job which has not been heard since also needs the node's word that the job's processes
are gone (`ended_leases`), where the job has named a process on that node.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from selfsched.protocol import (
    DeviceReport,
    NodeInstructions,
    NodeReport,
    ProblemCode,
    WatchedProcess,
)
from selfsched_broker.core.books import Books, Device, DevicePulse, Holding, Node
from selfsched_broker.core.draft import Context, Decision, Draft
from selfsched_broker.core.grants import lose, order_leave, prove_empty, settle_claims
from selfsched_broker.core.leases import ClaimEvent, Refusal

_GONE = "its node no longer reports it"


def node_report(books: Books, ctx: Context, name: str, message: NodeReport) -> Decision[NodeInstructions]:
    """Take a node's report; free what it proves empty, end what it reports sick."""
    draft = Draft(books, ctx)
    node = books.nodes.get(name)
    if node is not None and (message.incarnation, message.sequence) <= (node.incarnation, node.sequence):
        return draft.finish(lambda after: node_instructions(after, ctx, name))
    _refuse_foreign(books, name, message)
    draft.put(
        Node(
            name=name,
            incarnation=message.incarnation,
            sequence=message.sequence,
            reported_at=ctx.now,
        )
    )
    for device in message.devices:
        _take_device(draft, name, device)
    listed = {device.id for device in message.devices}
    for known in [d for d in books.devices.values() if d.node == name and d.id not in listed]:
        _put_pulse(draft, known.id, "sick", detail=_GONE)
        _fall_sick(draft, known.id, _GONE)
    for device in message.devices:
        _follow_state(draft, device, frozenset(message.ended_leases))
    return draft.finish(lambda after: node_instructions(after, ctx, name))


def _refuse_foreign(books: Books, name: str, message: NodeReport) -> None:
    ids = [device.id for device in message.devices]
    if len(set(ids)) < len(ids):
        raise Refusal(ProblemCode.INVALID, "the report lists a device twice")
    for device in ids:
        known = books.devices.get(device)
        if known is None or known.node == name:
            continue
        owner = books.nodes.get(known.node)
        gone = owner is None or owner.silent
        if not gone or books.holding_of(device) is not None:
            raise Refusal(ProblemCode.FORBIDDEN, f"{device} belongs to node {known.node}")


def _take_device(draft: Draft, node: str, report: DeviceReport) -> None:
    known = draft.books.devices.get(report.id)
    device = Device(
        id=report.id,
        node=node,
        index=report.index,
        model=report.model,
        kind=report.kind,
        cores=report.cores,
        drained=known.drained if known else False,
        sick_at=known.sick_at if known else None,
        detail=known.detail if known else "",
    )
    if device != known:
        draft.put(device)
        draft.wake()
    _put_pulse(draft, report.id, report.state, report=report, detail=report.detail)


def _put_pulse(
    draft: Draft,
    device: str,
    state: Literal["empty", "occupied", "unknown", "sick"],
    *,
    report: DeviceReport | None = None,
    detail: str = "",
) -> None:
    before = draft.books.pulses.get(device)
    same = before is not None and before.state == state
    if not same:
        draft.wake()
    draft.put(
        DevicePulse(
            id=device,
            state=state,
            reported_at=draft.now,
            since=before.since if before is not None and same else draft.now,
            processes=report.processes if report else (),
            memory_bytes=report.memory_bytes if report else None,
            memory_used_bytes=report.memory_used_bytes if report else None,
            utilisation=report.utilisation if report else None,
            detail=detail,
        )
    )


def _follow_state(draft: Draft, report: DeviceReport, ended_leases: frozenset[str]) -> None:
    if report.state == "sick":
        _fall_sick(draft, report.id, report.detail or "its node reports it sick")
        return
    device, pulse = draft.books.devices[report.id], draft.books.pulses[report.id]
    well_seconds = draft.now - pulse.since if report.state in ("empty", "occupied") else 0.0
    if device.sick_at is not None and well_seconds >= draft.options.sick_recovery_seconds:
        draft.put(replace(device, sick_at=None))
        draft.audit("device_recovered", report.id)
        draft.wake()
    holding = draft.books.holding_of(report.id)
    if holding is None or holding.state != "quarantined" or report.state != "empty":
        return
    if holding.lease in ended_leases or not is_watched(draft.books, holding):
        prove_empty(draft, holding)


def _fall_sick(draft: Draft, device_id: str, detail: str) -> None:
    """End the right of whoever has it; others on the node are not concerned."""
    device = draft.books.devices[device_id]
    if device.sick_at is None:
        draft.put(replace(device, sick_at=draft.now))
        draft.audit("device_sick", device_id, detail)
    holding = draft.books.holding_of(device_id)
    if holding is not None and holding.active:
        lose(draft, [holding], "resource_gone", f"{device_id} is gone: {detail}")
    bury_claim(draft, device_id, f"the device {device_id} it was waiting for is gone: {detail}")


def bury_claim(draft: Draft, device_id: str, reason: str) -> None:
    """Let the open claim on a device die, if there is one."""
    claim = draft.books.claim_on(device_id)
    if claim is not None:
        settle_claims(draft, [claim], ClaimEvent.DIED)
        draft.say(claim.job, reason)


def is_watched(books: Books, holding: Holding) -> bool:
    """Whether a quarantined device also needs the proof that its job's processes are gone.

    Not if the job itself has said since the loss that it runs elsewhere: a report that still
    names the device may have been under way when its sender died.
    """
    lease = books.leases[holding.lease]
    job = books.jobs[lease.job]
    if not holding.lost or job.process is None:
        return False
    if job.process.node != books.devices[holding.device].node:
        return False
    pulse = books.job_pulses.get(job.id)
    if pulse is None or not pulse.heard or pulse.reported_at <= holding.since:
        return True
    return holding.device in pulse.devices_in_use


def node_instructions(books: Books, ctx: Context, name: str) -> NodeInstructions:
    """When to report next, and whose processes to look for."""
    waiting = [
        holding
        for lease in books.open_leases()
        for holding in books.holdings_of(lease.id)
        if holding.state == "quarantined" and books.devices[holding.device].node == name
    ]
    leases = sorted({holding.lease for holding in waiting if is_watched(books, holding)})
    watched = {lease: books.jobs[books.leases[lease].job].process for lease in leases}
    hurried = bool(waiting) or any(books.devices[c.device].node == name for c in books.open_claims())
    options = ctx.options
    return NodeInstructions(
        next_report_seconds=options.node_hurried_report_seconds if hurried else options.node_report_seconds,
        watched_leases=tuple(leases),
        watched=tuple(WatchedProcess(lease=k, process=p) for k, p in watched.items() if p),
    )


def silence_nodes(draft: Draft) -> None:
    """Make the devices of nodes that stopped reporting unknown. Holders keep what they hold."""
    limit = draft.options.node_silent_seconds
    for node in [n for n in draft.books.nodes.values() if not n.silent]:
        if draft.now - node.reported_at < limit:
            continue
        draft.put(replace(node, silent=True))
        draft.audit("node_silent", node.name, f"no report for {limit:.0f} s")
        for device in [d for d in draft.books.devices.values() if d.node == node.name]:
            _put_pulse(draft, device.id, "unknown", detail="its node has stopped reporting")


def drain(draft: Draft, device_id: str, *, drained: bool, account: str) -> None:
    """Take a device out of use, or back. A holder is told to leave within its notice."""
    device = draft.books.devices[device_id]
    draft.put(replace(device, drained=drained))
    draft.audit("drain_device" if drained else "undrain_device", device_id, account=account)
    draft.wake()
    if not drained:
        return
    reason = f"an administrator takes {device_id} out of use"
    holding = draft.books.holding_of(device_id)
    if holding is not None:
        order_leave(draft, [holding], reason)
    bury_claim(draft, device_id, reason)
