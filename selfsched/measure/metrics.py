"""Newest logged values as plain numbers, without waiting for a device.

`float(tensor)` of a tensor on a GPU waits for everything queued there. Instead its copy to
pinned memory is ordered, and read at a later look when it has arrived: values on a GPU come
half a second late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class MetricsReader:
    """Turns logged scalars into floats; what is no scalar is left out."""

    def __init__(self) -> None:
        self._newest: dict[str, float] = {}
        self._arriving: dict[str, Any] = {}
        self._arrived: Any = None

    def read(self, values: Mapping[str, Any]) -> dict[str, float]:
        """The newest numbers that can be had now.

        Args:
            values: as `trainer.callback_metrics` has them.
        """
        self._collect()
        waiting = {}
        for name, value in values.items():
            number = _number(value)
            if number is not None:
                self._newest[name] = number
            elif _is_scalar_on_device(value):
                waiting[name] = value
        if waiting and not self._arriving:
            self._order(waiting)
        return dict(self._newest)

    def _order(self, values: Mapping[str, Any]) -> None:
        import torch

        for name, value in values.items():
            copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            self._arriving[name] = copy.copy_(value.detach(), non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record()

    def _collect(self) -> None:
        if self._arriving and self._arrived.query():
            self._newest |= {name: float(value) for name, value in self._arriving.items()}
            self._arriving = {}


def _number(value: Any) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    device = getattr(value, "device", None)
    if device is None or device.type != "cpu" or value.numel() != 1:
        return None
    return float(value)


def _is_scalar_on_device(value: Any) -> bool:
    device = getattr(value, "device", None)
    return device is not None and device.type == "cuda" and value.numel() == 1
