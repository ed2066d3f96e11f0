"""Which devices exactly: the auction decides how many on which node, this decides which.

In the order of who has the stronger claim to a very device: choices that insist on devices,
then everybody's own devices (no process need move to stay where it is), then the devices a
job had last (its files may still be in the page cache), then devices nobody holds, and only
then those another job is about to leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from selfsched_broker.core.allocation import Choice
from selfsched_broker.core.market import Contender, Seat


def assign_devices(
    choices: Sequence[Choice], seats: Sequence[Seat], contenders: Mapping[str, Contender]
) -> dict[str, tuple[str, ...]]:
    """Turn counts on nodes into very devices.

    Args:
        choices: one for each job; together they fit the seats.
        seats: what may be given.
        contenders: by job.

    Returns:
        The seats of each job, sorted; kept devices are not among them.
    """
    free: dict[str, dict[str, Seat]] = {}
    for seat in seats:
        free.setdefault(seat.node, {})[seat.device] = seat
    node_of = {seat.device: seat.node for seat in seats}
    given: dict[str, list[str]] = {choice.job: [] for choice in choices}
    left = {choice.job: dict(choice.draws) for choice in choices}

    def give(job: str, device: str) -> None:
        node = node_of[device]
        if device in free[node] and left[job].get(node, 0) > 0:
            del free[node][device]
            left[job][node] -= 1
            given[job].append(device)

    for choice in choices:
        for device in sorted(choice.exactly):
            give(choice.job, device)
    for preferred in ("at_stake", "last_devices"):
        for choice in choices:
            for device in sorted(getattr(contenders[choice.job], preferred)):
                if device in node_of:
                    give(choice.job, device)
    for choice in choices:
        for node in choice.draws:
            for device in sorted(free.get(node, ()), key=lambda d: (free[node][d].holder is not None, d)):
                give(choice.job, device)
    return {job: tuple(sorted(devices)) for job, devices in given.items()}
