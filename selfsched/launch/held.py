"""The devices whose locks the supervisor holds, and passes on to its ranks."""

from __future__ import annotations

import os

from selfsched.launch.locks import DeviceLocks
from selfsched.protocol import LeasedDevice


class HeldDevices:
    """Device locks by device id."""

    def __init__(self, locks: DeviceLocks) -> None:
        self._locks = locks
        self._held: dict[str, int] = {}
        self.busy: str | None = None
        """The device that somebody else held at the last `take`."""

    def take(self, devices: tuple[LeasedDevice, ...]) -> bool:
        """Hold exactly these devices; False while another process has one of them."""
        self.keep_only(devices)
        self.busy = None
        for device in devices:
            if device.id in self._held:
                continue
            descriptor = self._locks.take(device.id)
            if descriptor is None:
                self.busy = device.id
                return False
            self._held[device.id] = descriptor
        return True

    def keep_only(self, devices: tuple[LeasedDevice, ...]) -> None:
        """Let go of all other devices."""
        for name in set(self._held) - {device.id for device in devices}:
            os.close(self._held.pop(name))

    def holds(self, device: LeasedDevice) -> bool:
        return device.id in self._held

    @property
    def descriptors(self) -> list[int]:
        """Inheritable; a rank that has them holds the devices as long as it lives."""
        return list(self._held.values())
