"""Who is on a device without a lease, and what must happen before it is offered again.

Nothing is decided here: it is how the books are read for people. A stranger is named only where
it is known that a process belongs to no lease. On a device that nobody holds that is each of
them. On a held one it is told by the owner's name, where accounts are named as the machine
names its users, and by descent from the process that the job has named; where a job has named
none on that node and no owner's name is its account's, nobody is called a stranger: under
JupyterHub, say, all processes may run as one user of the machine.
"""

from __future__ import annotations

from selfsched.core.bidding import duration_words
from selfsched.protocol import DeviceProcess, DeviceState
from selfsched_broker.core.books import Books, Device, DevicePulse, Holding, Job
from selfsched_broker.core.draft import Context
from selfsched_broker.core.nodes import is_watched


def strangers(books: Books, device: Device) -> tuple[int, ...]:
    """Pids on a device that are known to belong to no lease."""
    pulse, holding = books.pulses.get(device.id), books.holding_of(device.id)
    if pulse is None or not pulse.processes:
        return ()
    if holding is None:
        return tuple(process.pid for process in pulse.processes)
    job = books.jobs[books.leases[holding.lease].job]
    others = tuple(p.pid for p in pulse.processes if not _is_of(job, device, p))
    can_tell = len(others) < len(pulse.processes) or _names_a_process_on(job, device)
    return others if can_tell else ()


def _is_of(job: Job, device: Device, process: DeviceProcess) -> bool:
    """Whether a process is of a job's owner, or descends from the job's own process."""
    if process.account == job.account:
        return True
    own = job.process
    if own is None or own.node != device.node:
        return False
    return own.pid in (process.pid, *process.parents) or process.session == own.session > 0


def _names_a_process_on(job: Job, device: Device) -> bool:
    return job.process is not None and job.process.node == device.node


def free_when(books: Books, ctx: Context, device: Device, state: DeviceState) -> str:
    """What must happen before a device is offered again; empty: nothing, or its holder leaves it in time.

    Args:
        books: of the broker.
        ctx: for how long a device that was sick must be well.
        device: which.
        state: of it, as people are shown it.
    """
    pulse, holding = books.pulses.get(device.id), books.holding_of(device.id)
    if state in (DeviceState.HELD, DeviceState.YIELDING):
        return ""
    if state is DeviceState.DRAINED:
        return f"an administrator puts it back: selfsched-broker devices undrain {device.id}"
    if pulse is None:
        return "its node reports"
    well_for = duration_words(ctx.options.sick_recovery_seconds)
    if pulse.state == "sick":
        return f"an administrator has seen to it, and its node sees it well for {well_for}"
    if pulse.state == "unknown":
        node = books.nodes.get(device.node)
        is_silent = node is None or node.silent
        return "its node reports again" if is_silent else "its node can tell again what is on it"
    if pulse.state == "occupied":
        return _when_emptied(pulse)
    if holding is not None:
        return _when_proven(books, holding)
    is_recovering = device.sick_at is not None and ctx.now - pulse.since < ctx.options.sick_recovery_seconds
    return f"it was sick: its node sees it well for {well_for}" if is_recovering else ""


def _when_emptied(pulse: DevicePulse) -> str:
    if pulse.processes:
        first, *rest = sorted(pulse.processes, key=lambda process: -(process.used_bytes or 0))
        command = f" ({first.command})" if first.command else ""
        ended = f"process {first.pid}{command} of {first.account or 'somebody unknown'}"
        return f"{ended} and {len(rest)} more have ended" if rest else f"{ended} has ended"
    if pulse.memory_used_bytes is not None and pulse.detail:
        return (
            "its memory is given back. If it stays so, an administrator looks for who hides "
            "(fuser -v /dev/nvidia*) or resets the GPU"
        )
    return "the process that has its lock has ended"


def _when_proven(books: Books, holding: Holding) -> str:
    process = books.jobs[books.leases[holding.lease].job].process
    if process is not None and is_watched(books, holding):
        return f"its node sees that process {process.pid} of the job that lost it is gone"
    return "its node reports once more that it is empty"
