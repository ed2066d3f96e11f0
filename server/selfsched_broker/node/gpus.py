"""The GPUs of this machine, by NVML.

Identity is the UUID; the index changes between boots and is for people. Handles are not kept:
every reading enumerates anew, since any error may have made them worthless. One GPU's error
hides no other, and an error is never "empty": a GPU that has fallen off the bus, must be reset
or has vanished is sick, anything else that cannot be read is unknown.

A GPU is empty when no process computes or draws on it, its memory is down to what the driver
itself keeps (orphans can hold it with no process to see), and its machine-wide lock is free.
A process that is not in /proc (scrambled pids of old drivers, other pid namespaces) makes it
unknown. MIG instances are devices of their own.

References: nvml.h of NVIDIA's driver; the module `pynvml` comes from the package nvidia-ml-py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from selfsched.errors import Refused
from selfsched.launch.locks import DeviceLocks, MachineLocks
from selfsched.protocol import DeviceProcess, DeviceReport
from selfsched_broker.node.processes import Processes

State = Literal["empty", "occupied", "unknown", "sick"]
_NO_IDENTIFIER = re.compile(r"[^A-Za-z0-9._:/-]+")
# What an idle driver keeps: next to nothing where reserved memory is told apart (NVML's second
# layout), up to some hundreds of MiB where it is counted in.
_IDLE_BYTES = 256 * 2**20
_IDLE_BYTES_WITH_RESERVED = 1024 * 2**20


class NvmlGpus:
    """The GPUs and MIG instances that the driver shows. Used by one thread.

    Args:
        locks: the machine's locks.
        processes: the machine's processes.
        library: pynvml, or something that speaks like it; None: import it when needed.
    """

    def __init__(
        self,
        *,
        locks: DeviceLocks | None = None,
        processes: Processes | None = None,
        library: Any = None,  # a foreign module without types
    ) -> None:
        self._locks: DeviceLocks = locks or MachineLocks()
        self._processes = processes or Processes()
        self._nvml = library
        self._ready = False
        self._known: dict[str, DeviceReport] = {}
        """Every device seen so far: one that can no longer be read is still spoken of."""

    def read(self) -> tuple[DeviceReport, ...]:
        """All devices as they are now, those that can no longer be read included."""
        trouble = self._start()
        if trouble:
            return tuple(_unreadable(known, "unknown", trouble) for known in self._known.values())
        found = {report.id: report for report in self._enumerate()}
        for uuid, known in self._known.items():
            if uuid not in found:
                found[uuid] = self._look_for(known)
        self._known.update(found)
        return tuple(sorted(found.values(), key=lambda report: (report.index, report.id)))

    def close(self) -> None:
        """Let go of the driver."""
        if self._ready:
            self._ready = False
            self._nvml.nvmlShutdown()

    def _start(self) -> str:
        """Initialise NVML once; returns why it cannot be, or nothing."""
        if self._ready:
            return ""
        if self._nvml is None:
            import pynvml

            self._nvml = pynvml
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            return f"NVIDIA's driver does not answer: {error}"
        self._ready = True
        return ""

    def _enumerate(self) -> Iterator[DeviceReport]:
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self._restart_if_outdated(error)
            return
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            except nvml.NVMLError as error:
                self._restart_if_outdated(error)
                continue  # whoever it was is looked for by its UUID
            instances = list(self._instances(handle))
            for number, (instance, handle_of_instance) in enumerate(instances):
                yield self._report(instance, index * 100 + number, handle_of_instance)
            if not instances:
                yield self._report(uuid, index, handle)

    def _instances(self, handle: Any) -> Iterator[tuple[str, Any]]:
        """MIG instances of a GPU; none where it has no MIG, or it is switched off."""
        nvml = self._nvml
        try:
            current, _ = nvml.nvmlDeviceGetMigMode(handle)
            slots = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if current else 0
        except nvml.NVMLError:
            return
        for slot in range(slots):
            try:
                instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
                yield _text(nvml.nvmlDeviceGetUUID(instance)), instance
            except nvml.NVMLError:
                continue  # an empty slot

    def _look_for(self, known: DeviceReport) -> DeviceReport:
        """A device that the enumeration lacks: ask for it by its UUID, to learn why."""
        nvml = self._nvml
        try:
            return self._report(known.id, known.index, nvml.nvmlDeviceGetHandleByUUID(known.id.encode()))
        except nvml.NVMLError as error:
            gone = error.value == nvml.NVML_ERROR_NOT_FOUND
            return _unreadable(known, "sick" if gone else self._state_of(error), str(error))

    def _report(self, uuid: str, index: int, handle: Any) -> DeviceReport:
        nvml = self._nvml
        try:
            model = _NO_IDENTIFIER.sub("-", _text(nvml.nvmlDeviceGetName(handle)))[:128]
            total, used, idle_bytes = self._memory(handle)
            processes = self._processes_on(handle)
        except nvml.NVMLError as error:
            self._restart_if_outdated(error)
            known = self._known.get(uuid) or _bare(uuid, index)
            return _unreadable(known, self._state_of(error), str(error))
        state, detail = self._judge(uuid, processes, used, idle_bytes)
        return DeviceReport(
            id=uuid,
            index=index,
            model=model,
            kind="gpu",
            memory_bytes=total,
            memory_used_bytes=used,
            utilisation=self._utilisation(handle),
            processes=processes,
            state=state,
            detail=detail,
        )

    def _judge(
        self, uuid: str, processes: tuple[DeviceProcess, ...], used: int, idle_bytes: int
    ) -> tuple[State, str]:
        missing = [process.pid for process in processes if self._processes.stat(process.pid) is None]
        if missing:
            return "unknown", f"process {missing[0]} on it is not in /proc: run the agent on the host"
        if processes:
            return "occupied", ""
        try:
            locked = not self._locks.is_free(uuid)
        except Refused as error:
            return "unknown", str(error)[:2000]
        if locked:
            return "occupied", ""
        if used > idle_bytes:
            return "occupied", f"{used / 2**20:.0f} MiB are in use by no process that can be seen"
        return "empty", ""

    def _memory(self, handle: Any) -> tuple[int, int, int]:
        """Bytes in all, bytes used, and up to how many used count as idle."""
        nvml = self._nvml
        try:
            found = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
            return int(found.total), int(found.used), _IDLE_BYTES
        except nvml.NVMLError as error:
            if error.value not in (nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_NOT_SUPPORTED):
                raise
        found = nvml.nvmlDeviceGetMemoryInfo(handle)
        return int(found.total), int(found.used), _IDLE_BYTES_WITH_RESERVED

    def _processes_on(self, handle: Any) -> tuple[DeviceProcess, ...]:
        nvml = self._nvml
        seen: dict[int, int | None] = {}
        for read in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
            try:
                seen.update({process.pid: process.usedGpuMemory for process in read(handle)})
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:
                    raise
        return tuple(self._process(pid, used) for pid, used in sorted(seen.items()))[:1024]

    def _process(self, pid: int, used_bytes: int | None) -> DeviceProcess:
        stat = self._processes.stat(pid)
        return DeviceProcess(
            pid=pid,
            started=stat.started if stat else 0,
            session=stat.session if stat else 0,
            account=self._processes.account_of(pid),
            used_bytes=used_bytes,
            command=self._processes.command_of(pid),
            parents=self._processes.parents_of(stat) if stat else (),
        )

    def _utilisation(self, handle: Any) -> float | None:
        """Share of the driver's last window in which a kernel ran; None on MIG and where unsupported."""
        try:
            return min(1.0, float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100)
        except self._nvml.NVMLError:
            return None

    def _state_of(self, error: Any) -> Literal["unknown", "sick"]:
        sick = (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED)
        return "sick" if error.value in sick else "unknown"

    def _restart_if_outdated(self, error: Any) -> None:
        """The driver went away or was changed under us: begin anew at the next reading."""
        nvml = self._nvml
        if error.value in (
            nvml.NVML_ERROR_UNINITIALIZED,
            nvml.NVML_ERROR_DRIVER_NOT_LOADED,
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        ):
            self._ready = False


def _bare(uuid: str, index: int) -> DeviceReport:
    """A device of which nothing but its name could be read."""
    return DeviceReport(id=uuid, index=index, model="unknown", kind="gpu", state="unknown")


def _unreadable(known: DeviceReport, state: Literal["unknown", "sick"], detail: str) -> DeviceReport:
    return known.model_copy(
        update={"state": state, "detail": detail[:2000], "processes": (), "utilisation": None}
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
