"""CPU slots: the leasable units of a machine without GPUs.

A slot is a named set of cores. It is empty when its machine-wide lock can be taken: every
process that descends from its holder has the lock, so it is free the moment the last is gone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from selfsched.errors import Refused
from selfsched.launch.locks import DeviceLocks, MachineLocks
from selfsched.protocol import DeviceReport

MODEL = "cpu"


class CpuSlots:
    """The slots of this machine.

    Args:
        node: this machine's name; a slot is called `<node>/cpu<n>`.
        count: how many; None: one for each CPU that this process may use.
        cores: the CPUs to divide among them; None: those that this process may use.
        locks: the machine's locks.

    Raises:
        Refused: fewer than one slot.
    """

    def __init__(
        self,
        node: str,
        count: int | None = None,
        *,
        cores: Sequence[int] | None = None,
        locks: DeviceLocks | None = None,
    ) -> None:
        usable = sorted(cores if cores is not None else os.sched_getaffinity(0))
        number = len(usable) if count is None else count
        if number < 1:
            raise Refused(f"a machine needs at least one slot, not {number}")
        self._locks: DeviceLocks = locks or MachineLocks()
        self._cores = {f"{node}/cpu{n}": _part(usable, n, number) for n in range(number)}

    def read(self) -> tuple[DeviceReport, ...]:
        """All slots as they are now."""
        return tuple(self._report(n, slot) for n, slot in enumerate(self._cores))

    def _report(self, index: int, slot: str) -> DeviceReport:
        detail = ""
        try:
            state = "empty" if self._locks.is_free(slot) else "occupied"
        except Refused as error:
            state, detail = "unknown", str(error)
        return DeviceReport(
            id=slot,
            index=index,
            model=MODEL,
            kind="cpu",
            cores=self._cores[slot],
            state=state,  # type: ignore[arg-type]  # one of the three above
            detail=detail[:2000],
        )


def _part(cores: Sequence[int], index: int, count: int) -> tuple[int, ...]:
    """The cores of one of `count` slots; more slots than cores share them in turn."""
    if count >= len(cores):
        return (cores[index % len(cores)],)
    return tuple(cores[index * len(cores) // count : (index + 1) * len(cores) // count])
