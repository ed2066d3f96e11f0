"""Watching devices: what is told, when, and that it stays small."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from selfsched.core.events import DevicesObserved, event_from_line, event_to_line
from selfsched.measure.device_watch import (
    LOOK_EVERY_SECONDS,
    MAX_LOOKS,
    TELL_EVERY_SECONDS,
    TELL_SOON_SECONDS,
    DeviceWatch,
)
from selfsched.measure.nvml import DeviceReading


class Watched:
    """A device whose readings and clock the test turns."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.reading = DeviceReading(device="GPU-1", utilisation=0.9, clock_ratio=1.0, held_back=frozenset())
        self.watch = DeviceWatch(["GPU-1"], self._read, clock=lambda: self.now)

    def _read(self) -> Sequence[DeviceReading]:
        return [self.reading]

    def say(self, **values: object) -> None:
        self.reading = DeviceReading(**{"device": "GPU-1", **values})  # type: ignore[arg-type]

    def look(self, times: int = 1) -> DevicesObserved | None:
        for _ in range(times):
            self.now += LOOK_EVERY_SECONDS
            self.watch.look()
        return self.watch.take(7.0)


def test_looks_are_summed_up_over_half_a_minute() -> None:
    watched = Watched()
    watched.say(utilisation=0.2, clock_ratio=0.5, held_back=frozenset())
    assert watched.look(2) is None
    watched.say(utilisation=1.0, clock_ratio=1.0, held_back=frozenset())
    told = watched.look(4)
    assert told is not None
    assert (told.seconds, told.at) == (TELL_EVERY_SECONDS, 7.0)
    (device,) = told.devices
    assert device.looks == 6
    assert device.utilisation == 1.0
    assert device.clock_ratio == pytest.approx(5 / 6)
    assert device.held_back == {}
    assert watched.look() is None


def test_what_is_told_goes_over_the_events_socket_as_it_is() -> None:
    watched = Watched()
    watched.say(held_back=frozenset({"heat"}), memory_bytes=8, nvlink_bytes=5)
    told = watched.look(6)
    assert told is not None
    assert event_from_line(event_to_line(told)) == told


def test_a_reason_that_comes_or_goes_is_told_soon_with_its_share() -> None:
    watched = Watched()
    watched.look(6)
    watched.look()
    watched.say(held_back=frozenset({"heat"}))
    told = watched.look(int(TELL_SOON_SECONDS / LOOK_EVERY_SECONDS) - 1)
    assert told is not None
    assert told.devices[0].held_back == {"heat": 0.5}
    assert watched.look(2) is None  # nothing new
    watched.say(held_back=frozenset())
    told = watched.look()
    assert told is not None
    assert told.devices[0].held_back == {"heat": pytest.approx(2 / 3)}


def test_what_a_device_does_not_say_is_unknown() -> None:
    watched = Watched()
    watched.say()
    told = watched.look(6)
    assert told is not None
    (device,) = told.devices
    assert device.looks == 6
    assert (device.utilisation, device.clock_ratio, device.held_back) == (None, None, None)
    assert (device.pcie_bytes_per_second, device.nvlink_bytes_per_second) == (None, None)


def test_the_rate_over_the_links_comes_from_their_counter_and_outlives_a_reset() -> None:
    watched = Watched()
    rates = []
    for _ in range(3):
        for bytes_so_far in (0, 50, 100, 150, 200, 250):
            watched.say(nvlink_bytes=bytes_so_far)
            told = watched.look()
        assert told is not None
        rates.append(told.devices[0].nvlink_bytes_per_second)
    assert rates == pytest.approx([10.0] * 3)


def test_a_device_that_cannot_be_read_says_why() -> None:
    watched = Watched()
    watched.say(problem="the driver says: GPU is lost")
    told = watched.look(6)
    assert told is not None
    assert (told.devices[0].looks, told.devices[0].problem) == (0, "the driver says: GPU is lost")


def test_a_fault_in_the_thread_is_told_and_ends_it() -> None:
    now = 0.0

    def fault() -> Sequence[DeviceReading]:
        raise RuntimeError("odd")

    watch = DeviceWatch(["GPU-1"], fault, clock=lambda: now)
    watch._run()
    now = TELL_EVERY_SECONDS
    told = watch.take(0.0)
    assert told is not None
    assert told.devices[0].problem == "watching ended after RuntimeError: odd"


def test_a_month_without_anybody_who_asks_takes_no_more_room() -> None:
    watched = Watched()
    for _ in range(10 * MAX_LOOKS):
        watched.watch.look()
    tally = watched.watch._tallies["GPU-1"]
    assert len(tally.readings) == MAX_LOOKS


def test_the_thread_ends_when_it_is_told_to_and_lets_the_library_go() -> None:
    closed = []
    watched = Watched()
    watch = DeviceWatch(["GPU-1"], watched._read, close=lambda: closed.append(True))
    watch.start()
    watch.close()
    for thread in threading.enumerate():
        if thread.name == "selfsched-devices":
            thread.join(timeout=60)
    assert closed == [True]
