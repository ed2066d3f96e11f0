"""Memory of a device: what a job needs on a number of devices, and whether it has that much.

With the global batch fixed, K devices take 1/K of it each. What a device holds is

    peak(K) = resident + activations / K

`resident` (parameters, gradients, optimiser states, buckets of the all-reduce) does not
shrink with the batch, `activations` do: what the allocator peaks at beyond what is left
between two steps. One count tells both, the peak and the resident part; two counts tell the
line better than the parts do, since the allocator rounds and fragments. A count on which the
job has run out of memory is ruled out, with all below it, whatever the line says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from selfsched.core.bidding import devices_words

HEADROOM = 0.05
"""Of a device's memory that is not counted on: contexts, libraries, fragmentation."""


def gib_words(size_bytes: float) -> str:
    """An amount of memory or disk as people say it: `3.5 GiB`."""
    return f"{size_bytes / 2**30:.1f} GiB"


@dataclass
class MemoryModel:
    """Memory of one job on one kind of device."""

    device_bytes: int | None = None
    """What a device has; None: unknown, and nothing is ruled out by size."""
    resident_bytes: int | None = None
    """Allocated between two steps."""
    peaks: dict[int, int] = field(default_factory=dict)
    """The largest peak on each device count."""
    too_small: int = 0
    """The largest count on which it has run out of memory."""

    def observe(
        self, devices: int, *, peak: int | None, resident: int | None = None, device: int | None = None
    ) -> None:
        """Take a reading over; what is None or not positive says nothing.

        Args:
            devices: that the job runs on.
            peak: most bytes in use on one of them so far.
            resident: bytes in use between two steps.
            device: bytes that it has.
        """
        if devices < 1:
            return
        if peak is not None and peak > 0:
            self.peaks[devices] = max(self.peaks.get(devices, 0), peak)
        if resident is not None and resident > 0:
            self.resident_bytes = max(self.resident_bytes or 0, resident)
        if device is not None and device > 0:
            self.device_bytes = device

    def ran_out(self, devices: int) -> None:
        """The job needed more than there is on so many devices."""
        self.too_small = max(self.too_small, devices)

    def peak_bytes(self, devices: int) -> int | None:
        """Expected peak of one device; None before anything was measured."""
        if devices in self.peaks:
            return self.peaks[devices]
        if not self.peaks:
            return None
        resident, activations = self._line()
        return round(resident + activations / devices)

    def fits(self, devices: int) -> bool:
        """Whether it would not run out of memory, as far as is known."""
        if devices <= self.too_small:
            return False
        peak = self.peak_bytes(devices)
        if peak is None or self.device_bytes is None or devices in self.peaks:
            return True
        return peak <= (1.0 - HEADROOM) * self.device_bytes

    def words(self, counts: Iterable[int]) -> tuple[str, ...]:
        """Of these device counts, those on which it would run out of memory, in words."""
        words = []
        for count in [count for count in counts if not self.fits(count)]:
            peak, name = self.peak_bytes(count), devices_words(count)
            if count <= self.too_small or peak is None or self.device_bytes is None:
                words.append(f"{name}: out of memory.")
            else:
                needs, has = gib_words(peak), gib_words(self.device_bytes)
                words.append(f"{name} would run out of memory: {needs} for each, which has {has}.")
        return tuple(words)

    def _line(self) -> tuple[float, float]:
        """(resident bytes, bytes of activations of the whole batch)."""
        fewest, most = min(self.peaks), max(self.peaks)
        low, high = self.peaks[most], self.peaks[fewest]
        if fewest < most and high > low:
            activations = (high - low) / (1.0 / fewest - 1.0 / most)
            return max(0.0, low - activations / most), activations
        resident = min(self.resident_bytes or 0, low)
        return float(resident), float((low - resident) * most)

    def to_state(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "device_bytes": self.device_bytes,
            "resident_bytes": self.resident_bytes,
            "peaks": [[devices, peak] for devices, peak in sorted(self.peaks.items())],
            "too_small": self.too_small,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> MemoryModel:
        return cls(
            device_bytes=state["device_bytes"],
            resident_bytes=state["resident_bytes"],
            peaks=dict(state["peaks"]),
            too_small=state["too_small"],
        )
