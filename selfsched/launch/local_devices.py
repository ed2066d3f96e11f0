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
    """The GPUs that the driver shows, by UUID; none where there is no driver."""
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
