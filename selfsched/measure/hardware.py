"""What a module trains on, and how many of it this process could see."""

from __future__ import annotations

import os
import re
from typing import Any

from selfsched.core.visible_devices import gpu_id


def hardware_name(module: Any) -> str:
    """Model of the device as the protocol writes it: `cpu`, `NVIDIA-H100-80GB-HBM3`."""
    device = getattr(module, "device", None)
    if getattr(device, "type", "cpu") != "cuda":
        return str(getattr(device, "type", "cpu"))
    import torch

    name = re.sub(r"[^A-Za-z0-9._:/-]+", "-", torch.cuda.get_device_name(device)).strip("-./:_")
    return name[:128] or "cuda"


def visible_devices(module: Any) -> int:
    """Devices like the module's that this process may use."""
    device = getattr(module, "device", None)
    if getattr(device, "type", "cpu") == "cuda":
        import torch

        return int(torch.cuda.device_count())
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_uuids(trainer: Any, module: Any) -> tuple[str, ...]:
    """UUIDs of the GPUs of this machine that the trainer's ranks use; none on CPUs, or where
    this torch does not tell them."""
    device: Any = getattr(module, "device", None)
    if getattr(device, "type", "cpu") != "cuda":
        return ()
    import torch

    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    ordinals = list(getattr(trainer, "device_ids", None) or [device.index or 0])
    told = [getattr(torch.cuda.get_device_properties(ordinal), "uuid", None) for ordinal in ordinals]
    return tuple(gpu_id(str(uuid), setting) for uuid in told if uuid is not None)
