"""Which of its leased devices a job should run on at this moment.

The broker grants, the job obeys; what is left to the job is order and patience:

- a segment that runs is not disturbed for devices that are granted but whose last process has
  not gone: a grow waits until all of them are ready, so it costs one restart;
- devices in use come first, then those still locked, so that a shrink keeps what it can;
- only counts that keep the global batch are run on. What is granted beyond is surplus and
  goes back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from selfsched.core.held_leases import largest_allowed
from selfsched.protocol import LeasedDevice

PATIENCE_SECONDS = 3.0
"""A start waits so long for devices that are not ready, then goes without them."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The devices to run on, and those that are of no use."""

    devices: tuple[LeasedDevice, ...] = ()
    surplus: frozenset[str] = frozenset()
    awaits: tuple[str, ...] = ()
    """Granted, but their last process has not left."""


def choose(
    usable: Mapping[str, LeasedDevice],
    *,
    running: Sequence[str],
    ready: Collection[str],
    allowed: Sequence[int],
    allowed_is_known: bool,
    waited_seconds: float,
) -> Choice:
    """Choose among what may be used.

    Args:
        usable: leased devices by id, in the order of their leases.
        running: what the running segment sits on; empty when none runs.
        ready: found free, or held by this job already.
        allowed: device counts that keep the global batch.
        allowed_is_known: the script has said so; until then nothing is surplus.
        waited_seconds: since a device that is not ready was first found so.
    """
    awaits = tuple(device for device in usable if device not in ready)
    if awaits and running and all(device in usable for device in running):
        return Choice(devices=tuple(usable[device] for device in running), awaits=awaits)
    if awaits and not running and waited_seconds < PATIENCE_SECONDS:
        return Choice(awaits=awaits)
    candidates = sorted((d for d in usable if d in ready), key=lambda device: device not in running)
    chosen = candidates[: largest_allowed(len(candidates), allowed)]
    surplus = frozenset(candidates) - frozenset(chosen) if allowed_is_known and not awaits else frozenset()
    in_order = [device for device in usable if device in chosen]
    if set(chosen) == set(running):
        in_order = list(running)
    return Choice(devices=tuple(usable[device] for device in in_order), surplus=surplus, awaits=awaits)
