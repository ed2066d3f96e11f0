"""Which leasable devices a process sits on, from what it may see and what the broker shows.

GPUs are named by UUID. The process knows them by the ordinals that `CUDA_VISIBLE_DEVICES`
leaves (`launch.local_devices.visible` reads it as CUDA does); where torch tells the UUID of an
ordinal itself, that is the truth, since CUDA's order need not be the driver's.

CPU slots are sets of cores. A process that was confined to some cores (by `taskset`, a
container, a batch system) sits on the slots of these cores. One that may run on all of them
sits on none in particular, and can be confined: it asks for as many as it has ranks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from selfsched.errors import Refused
from selfsched.protocol import ClusterView, DeviceState, DeviceView

_UNSHARED = (DeviceState.HELD, DeviceState.YIELDING)


@dataclass(frozen=True, kw_only=True)
class Seats:
    """What a training asks the broker for."""

    count: int
    exactly: tuple[str, ...] = ()
    """Ids of the devices; empty: any `count` of them."""
    confine: bool = False
    """CPU slots that the process is to be pinned to once it has them."""


def gpu_id(uuid: str, setting: str | None) -> str:
    """The driver's name of a device from the UUID that CUDA tells, which lacks its kind.

    Args:
        uuid: with or without `GPU-` or `MIG-` before it.
        setting: of `CUDA_VISIBLE_DEVICES`: only through it does a process see a MIG instance.
    """
    if uuid.startswith(("GPU-", "MIG-")):
        return uuid
    entries = [entry.strip() for entry in (setting or "").split(",")]
    is_instance = any(entry.startswith("MIG-") and f"MIG-{uuid}".startswith(entry) for entry in entries)
    return f"{'MIG' if is_instance else 'GPU'}-{uuid}"


def gpus_of(names: Sequence[str], cluster: ClusterView) -> Seats:
    """Ask for these GPUs.

    Raises:
        Refused: the broker has not heard of one.
    """
    known = {device.id for device in cluster.devices}
    strange = [name for name in names if name not in known]
    if strange or not names:
        raise Refused(
            f"the broker does not lease {', '.join(strange) or 'the GPU of this training'}: none of its "
            "nodes has reported it. Ask its administrator to add this machine, or unset SELFSCHED_BROKER"
        )
    return Seats(count=len(names), exactly=tuple(names))


def slots_of(usable: Collection[int], ranks: int, node: str, cluster: ClusterView) -> Seats | None:
    """Ask for the CPU slots that a process sits on.

    Args:
        usable: cores that it may run on.
        ranks: of its training, on this machine.
        node: this machine, as the broker calls it.
        cluster: the broker's devices.

    Returns:
        None where the broker leases no CPU slots of this machine: its CPUs are free to use.
    """
    slots = [device for device in cluster.devices if device.kind == "cpu" and device.node == node]
    if not slots:
        return None
    cores = frozenset(usable)
    covered = [slot for slot in slots if slot.cores and cores.issuperset(slot.cores)]
    if len(covered) == len(slots) > ranks:
        if len(slots) == len(cluster.devices):
            return Seats(count=ranks, confine=True)
        return Seats(count=ranks, exactly=_best(slots, ranks), confine=True)
    touched = covered or [slot for slot in slots if cores.intersection(slot.cores)] or slots
    confine = len(touched) == ranks
    return Seats(count=len(touched), exactly=tuple(slot.id for slot in touched), confine=confine)


def _best(slots: Sequence[DeviceView], count: int) -> tuple[str, ...]:
    """The first free ones, then those in use without a lease, then the held."""
    ranking = {DeviceState.FREE: 0, DeviceState.HELD: 2, DeviceState.YIELDING: 2}
    ordered = sorted(slots, key=lambda slot: (ranking.get(slot.state, 1), slot.index))
    return tuple(slot.id for slot in ordered[:count])


def taken(seats: Seats, cluster: ClusterView) -> tuple[DeviceView, ...]:
    """Of the devices asked for, those that a job holds, as long as they are too many to be served."""
    if seats.exactly:
        return tuple(d for d in cluster.devices if d.id in seats.exactly and d.state in _UNSHARED)
    held = tuple(device for device in cluster.devices if device.state in _UNSHARED)
    return held if len(cluster.devices) - len(held) < seats.count else ()


def who_holds(devices: Sequence[DeviceView]) -> str:
    """`cpu0 by anna, cpu1 by ben`: who holds them, by account."""
    return ", ".join(f"{device.id} by {device.account or 'somebody'}" for device in devices)


def why_not_free(seats: Seats, cluster: ClusterView) -> str:
    """For devices that no job holds and that are still not given: what the broker says of them."""
    asked = (d for d in cluster.devices if not seats.exactly or d.id in seats.exactly)
    return "; ".join(f"{d.id}: {d.detail}" for d in asked if d.detail and d.state is not DeviceState.FREE)


def processes_named(detail: str) -> frozenset[int]:
    """The processes that the broker's words on a device name, as in `in use ... (process 12, 34)`."""
    lists = re.findall(r"\(process ([\d, ]+)\)", detail)
    return frozenset(int(number) for words in lists for number in re.findall(r"\d+", words))
