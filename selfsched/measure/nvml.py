"""What the driver says of GPUs: use, clocks, why they are held back, rates of their links.

The only module of the job that imports pynvml, and only when it is called. Each value may be
missing on its own: a MIG instance has no utilisation, an old driver lacks a function, a
container a permission. A missing value is None, never zero. A device that cannot be read at
all says why, and hides no other one. After an error no handle is kept: devices may have been
renumbered, the driver reloaded; they are looked up by their UUID again.

Calls may block for seconds (a first touch without persistence mode) or for ever (a sick
GPU): never call this on the training thread; see `device_watch`.

References: nvml.h of NVIDIA's driver (R575); the module `pynvml` comes from the package
nvidia-ml-py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class DeviceReading:
    """One look at a GPU. None: it does not say."""

    device: str
    """UUID."""
    utilisation: float | None = None
    """Share of the driver's last window (up to a second) in which a kernel ran, 0 to 1."""
    clock_ratio: float | None = None
    """Clock of the multiprocessors over the highest they have."""
    held_back: frozenset[str] | None = None
    """Why the driver slows the clock down; empty: it does not. The words of `REASONS`."""
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    pcie_bytes_per_second: float | None = None
    """Both directions, over the driver's last 20 ms."""
    nvlink_bytes: int | None = None
    """Sent and received over all links since the driver was loaded: a counter."""
    problem: str | None = None
    """Why nothing can be read; the other fields are then None."""


REASONS = (
    (0x20 | 0x40, "heat"),
    (0x04, "power"),
    (0x80, "power_brake"),
    (0x200, "board_limit"),
    (0x400, "reliability"),
)
"""Bits of NVML's clock event reasons that mean that the chip is held back."""
_HARDWARE = 0x08
"""Set together with heat or brake where the hardware says which; else on its own."""

_ANOTHER_DAY = frozenset({1, 9, 18})  # uninitialised, driver not loaded, driver was exchanged
_ONE_VALUE = frozenset({2, 3, 4, 6, 7, 13, 19, 25, 26})
"""Invalid argument, not supported, no permission, not found, insufficient size, no such function,
no data, version mismatch of an argument, deprecated: this value is missing, the device is well."""


class NvmlReader:
    """Reads GPUs by their UUIDs. Not thread-safe: one thread uses it.

    Args:
        devices: UUIDs as CUDA and nvidia-smi give them (`GPU-...`, `MIG-...`).
        library: pynvml, or something that speaks like it; None: import it.
    """

    def __init__(self, devices: Sequence[str], library: ModuleType | Any | None = None) -> None:
        self._devices = tuple(devices)
        self._nvml: Any = library if library is not None else _import()
        self._open = False
        self._handles: dict[str, Any] = {}

    def read(self) -> tuple[DeviceReading, ...]:
        """Every device now, in the order asked for; none where there is no NVIDIA library."""
        if self._nvml is None:
            return ()
        problem = self._begin()
        if problem is not None:
            return tuple(DeviceReading(device=device, problem=problem) for device in self._devices)
        return tuple(self._read(device) for device in self._devices)

    def close(self) -> None:
        """Let the library go; a later read opens it again."""
        self._handles = {}
        if self._open:
            self._open = False
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    # --- inside ----------------------------------------------------------------------

    def _begin(self) -> str | None:
        """Open the library; returns why it cannot be."""
        if self._open:
            return None
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            return _words(error)
        self._open = True
        return None

    def _read(self, device: str) -> DeviceReading:
        nvml = self._nvml
        try:
            if device not in self._handles:
                self._handles[device] = nvml.nvmlDeviceGetHandleByUUID(device)
            return self._values(device, self._handles[device])
        except nvml.NVMLError as error:
            self._handles = {}
            if getattr(error, "value", None) in _ANOTHER_DAY:
                self.close()
            return DeviceReading(device=device, problem=_words(error))

    def _values(self, device: str, handle: Any) -> DeviceReading:
        nvml = self._nvml
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        use = self._ask("nvmlDeviceGetUtilizationRates", handle)
        clock = self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM)
        highest = self._ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM)
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # before driver R535
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        sent = self._ask("nvmlDeviceGetPcieThroughput", handle, nvml.NVML_PCIE_UTIL_TX_BYTES)
        received = self._ask("nvmlDeviceGetPcieThroughput", handle, nvml.NVML_PCIE_UTIL_RX_BYTES)
        return DeviceReading(
            device=device,
            utilisation=None if use is None else min(1.0, float(use.gpu) / 100),
            clock_ratio=clock / highest if clock is not None and highest else None,
            held_back=None if reasons is None else _held_back(int(reasons)),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_bytes=None if memory is None else int(memory.total),
            pcie_bytes_per_second=None if sent is None or received is None else 1e3 * (sent + received),
            nvlink_bytes=self._nvlink_bytes(handle),
        )

    def _nvlink_bytes(self, handle: Any) -> int | None:
        nvml, all_links = self._nvml, 0xFFFFFFFF
        names = ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX")
        fields = [(getattr(nvml, name), all_links) for name in names if hasattr(nvml, name)]
        values = self._ask("nvmlDeviceGetFieldValues", handle, fields) if len(fields) == len(names) else None
        if values is None or any(value.nvmlReturn != 0 for value in values):
            return None
        return sum(1024 * int(value.value.ullVal) for value in values)

    def _ask(self, name: str, *arguments: Any) -> Any:
        """One value; None where this driver or device has none.

        Raises:
            NVMLError: the device or the driver is not well.
        """
        function: Callable[..., Any] | None = getattr(self._nvml, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) in _ONE_VALUE:
                return None
            raise


def _held_back(reasons: int) -> frozenset[str]:
    words = {word for bits, word in REASONS if reasons & bits}
    if reasons & _HARDWARE and not words & {"heat", "power_brake"}:
        words.add("hardware")
    return frozenset(words)


def _words(error: Exception) -> str:
    return f"the driver says: {error}"


def _import() -> ModuleType | None:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml  # type: ignore[no-any-return]
