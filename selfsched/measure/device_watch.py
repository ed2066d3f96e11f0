"""GPUs watched from a thread of its own, at a low rate; the training thread only takes notes.

NVML can block, so the training thread never calls it. A daemon thread looks every few
seconds and adds what it saw to tallies of bounded size; `take` sums them up when there is
something to tell: after half a minute, or soon when a reason to be held back came or went.
A look that does not come back is told as what it is: the driver does not answer.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from selfsched.core.events import DeviceObserved, DevicesObserved
from selfsched.measure.nvml import DeviceReading

LOOK_EVERY_SECONDS = 5.0
TELL_EVERY_SECONDS = 30.0
TELL_SOON_SECONDS = 10.0
SILENT_SECONDS = 30.0
"""A look that takes longer: the driver does not answer."""
MAX_LOOKS = 64


class _Tally:
    """What was seen of one device since it was last told."""

    def __init__(self) -> None:
        self.readings: deque[DeviceReading] = deque(maxlen=MAX_LOOKS)
        self.problem: str | None = None
        self.link: tuple[float, int] | None = None
        """(instant, bytes) of the first look at the links of this while ..."""
        self.newest_link: tuple[float, int] | None = None
        """... and of the newest."""

    def add(self, reading: DeviceReading, at: float) -> None:
        self.problem = reading.problem
        if reading.problem is not None:
            return
        self.readings.append(reading)
        if reading.nvlink_bytes is None:
            return
        if self.newest_link is None or reading.nvlink_bytes < self.newest_link[1]:  # the counter began anew
            self.link = (at, reading.nvlink_bytes)
        self.newest_link = (at, reading.nvlink_bytes)

    def observed(self, device: str) -> DeviceObserved:
        looks = list(self.readings)
        if not looks:
            return DeviceObserved(device=device, looks=0, problem=self.problem)
        told = [reading.held_back for reading in looks if reading.held_back is not None]
        counts = Counter(word for words in told for word in words)
        return DeviceObserved(
            device=device,
            looks=len(looks),
            utilisation=_median([r.utilisation for r in looks]),
            clock_ratio=_mean([r.clock_ratio for r in looks]),
            held_back={word: counts[word] / len(told) for word in sorted(counts)} if told else None,
            memory_used_bytes=looks[-1].memory_used_bytes,
            memory_bytes=looks[-1].memory_bytes,
            pcie_bytes_per_second=_mean([r.pcie_bytes_per_second for r in looks]),
            nvlink_bytes_per_second=self._link_rate(),
            problem=self.problem,
        )

    def begin_anew(self) -> None:
        self.readings.clear()
        self.link = self.newest_link

    @property
    def reasons(self) -> frozenset[str] | None:
        return self.readings[-1].held_back if self.readings else None

    def _link_rate(self) -> float | None:
        if self.link is None or self.newest_link is None or self.newest_link[0] <= self.link[0]:
            return None
        return (self.newest_link[1] - self.link[1]) / (self.newest_link[0] - self.link[0])


class DeviceWatch:
    """Looks at devices now and then, and says what was seen.

    `look` is for the watching thread alone; `take` and `close` are for another one and never
    wait for a driver.

    Args:
        devices: UUIDs.
        read: looks at all of them; may block.
        close: lets go of what `read` uses, on the watching thread.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        devices: Sequence[str],
        read: Callable[[], Sequence[DeviceReading]],
        *,
        close: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._close, self._clock = read, close, clock
        self._lock = threading.Lock()
        self._tallies = {device: _Tally() for device in devices}
        self._told_at = clock()
        self._told_reasons: dict[str, frozenset[str] | None] = dict.fromkeys(devices, frozenset())
        self._looking_since: float | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to look, in a daemon thread: one that hangs ends with the process."""
        threading.Thread(target=self._run, name="selfsched-devices", daemon=True).start()

    def look(self) -> None:
        """One look at all devices."""
        self._looking_since = self._clock()
        readings = self._read()
        now, self._looking_since = self._clock(), None
        with self._lock:
            for reading in readings:
                self._tallies[reading.device].add(reading, now)

    def take(self, at: float) -> DevicesObserved | None:
        """What was seen since the last time it was told; None: nothing to tell yet.

        Args:
            at: CLOCK_BOOTTIME seconds now.
        """
        now = self._clock()
        seconds = now - self._told_at
        if seconds < TELL_SOON_SECONDS:
            return None
        with self._lock:
            if seconds < TELL_EVERY_SECONDS and not self._reasons_changed():
                return None
            observed = [self._observed(device, tally, now) for device, tally in self._tallies.items()]
            self._told_at = now
            self._told_reasons = {
                device: tally.reasons if tally.readings else self._told_reasons[device]
                for device, tally in self._tallies.items()
            }
            for tally in self._tallies.values():
                tally.begin_anew()
        told = tuple(device for device in observed if device.looks or device.problem)
        return DevicesObserved(devices=told, seconds=seconds, at=at) if told else None

    def close(self) -> None:
        """Look no more."""
        self._ended.set()

    # --- inside ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self.look()
                self._ended.wait(LOOK_EVERY_SECONDS)
            self._close()
        except Exception as error:  # noqa: BLE001  the thread's outermost boundary: said in what is told
            self._looking_since = None
            with self._lock:
                for tally in self._tallies.values():
                    tally.problem = f"watching ended after {type(error).__name__}: {error}"

    def _reasons_changed(self) -> bool:
        """Whether a device that says is held back for other reasons than was told."""
        return any(
            tally.reasons is not None and tally.reasons != self._told_reasons[device]
            for device, tally in self._tallies.items()
        )

    def _observed(self, device: str, tally: _Tally, now: float) -> DeviceObserved:
        since = self._looking_since
        observed = tally.observed(device)
        if since is None or now - since < SILENT_SECONDS:
            return observed
        return observed.model_copy(update={"problem": f"the driver has not answered for {now - since:.0f} s"})


def _median(values: Sequence[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return statistics.median(told) if told else None


def _mean(values: Sequence[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return statistics.fmean(told) if told else None
