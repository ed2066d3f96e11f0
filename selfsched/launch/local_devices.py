"""The devices of this machine as a job without a broker may use them."""

from __future__ import annotations

import os
import re
import socket
from typing import Any

from selfsched.protocol import LeasedDevice


def node_name() -> str:
    """This machine's name as a `protocol.Name`."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).strip("-._")
    return name[:64] or "localhost"


def gpus() -> tuple[LeasedDevice, ...]:
    """The GPUs of this machine that `CUDA_VISIBLE_DEVICES` leaves, by UUID; none without a driver."""
    return visible(_all_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(devices: tuple[LeasedDevice, ...], setting: str | None) -> tuple[LeasedDevice, ...]:
    """What a `CUDA_VISIBLE_DEVICES` leaves of the devices, in its order, as CUDA reads it.

    Entries are indices or UUIDs, which may be cut short where that is unambiguous. The first
    entry that names no device, or one named before, hides itself and all that follow; so an
    empty value hides everything.
    """
    if setting is None:
        return devices
    chosen: list[LeasedDevice] = []
    for entry in (part.strip() for part in setting.split(",")):
        named = [device for device in devices if _is_named(device, entry)]
        if len(named) != 1 or named[0] in chosen:
            break
        chosen.append(named[0])
    return tuple(chosen)


def _is_named(device: LeasedDevice, entry: str) -> bool:
    if entry.isdigit():
        return device.index == int(entry)
    return entry.startswith(("GPU-", "MIG-")) and device.id.startswith(entry)


def _all_gpus() -> tuple[LeasedDevice, ...]:
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def _gpu(pynvml: Any, index: int) -> LeasedDevice:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    model = re.sub(r"[^A-Za-z0-9._:/-]", "-", pynvml.nvmlDeviceGetName(handle))
    name = pynvml.nvmlDeviceGetUUID(handle)
    return LeasedDevice(id=name, node=node_name(), index=index, model=model, kind="gpu")


def private_cpu_devices(count: int) -> tuple[LeasedDevice, ...]:
    """CPU devices of this run alone, named after its process: unarbitrated and not pinned."""
    names = [f"private-{os.getpid()}-{index}" for index in range(count)]
    return tuple(
        LeasedDevice(id=name, node=node_name(), index=index, model="cpu", kind="cpu")
        for index, name in enumerate(names)
    )
