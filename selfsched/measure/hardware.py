"""What a module trains on, and how many of it this process could see."""

from __future__ import annotations

import os
import re
from typing import Any


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
