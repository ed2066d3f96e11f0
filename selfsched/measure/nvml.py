"""What the driver says of a GPU: memory, utilisation, clocks. Nothing where there is none.

The only module of the job that imports pynvml, and only when it is called: on a machine
without NVIDIA's library every reading is None, and that is no error.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class DeviceReading:
    """One look at a GPU."""

    memory_used_bytes: int
    memory_bytes: int
    utilisation: float | None
    """Share of the last second in which a kernel ran, 0 to 1; not a measure of progress."""
    throttled: bool
    """The driver slows the clock down: heat or power."""


# NVML's reasons that mean the chip is held back: software and hardware slow-down, heat, brake.
_HELD_BACK = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


class DeviceMeter:
    """Reads one GPU, by its UUID.

    Args:
        uuid: as CUDA and nvidia-smi give it (`GPU-...`, `MIG-...`).
        library: pynvml, or something that speaks like it; None: import it.
    """

    def __init__(self, uuid: str, library: ModuleType | Any | None = None) -> None:
        self._uuid = uuid
        self._nvml = library if library is not None else _import()
        self._handle = self._find()

    @property
    def available(self) -> bool:
        return self._handle is not None

    def read(self) -> DeviceReading | None:
        """The device now; None where it cannot be read."""
        nvml = self._nvml
        if nvml is None or self._handle is None:
            return None
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(self._handle)
            return DeviceReading(
                memory_used_bytes=int(memory.used),
                memory_bytes=int(memory.total),
                utilisation=self._utilisation(),
                throttled=self._throttled(),
            )
        except nvml.NVMLError:
            return None

    def close(self) -> None:
        """Let the library go; reading gives None from then on."""
        if self._handle is not None and self._nvml is not None:
            self._nvml.nvmlShutdown()
        self._handle = None

    def _find(self) -> Any:
        if self._nvml is None:
            return None
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError:
            return None  # no driver on this machine
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(self._uuid)
        except self._nvml.NVMLError:
            self._nvml.nvmlShutdown()
            return None

    def _utilisation(self) -> float | None:
        assert self._nvml is not None
        try:
            return min(1.0, float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100)
        except self._nvml.NVMLError:
            return None  # MIG instances have none

    def _throttled(self) -> bool:
        assert self._nvml is not None
        try:
            reasons = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        except self._nvml.NVMLError:
            return False
        return bool(int(reasons) & _HELD_BACK)


def _import() -> ModuleType | None:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml  # type: ignore[no-any-return]
