"""Reading devices late, or not at all: no synchronisation, no library needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from selfsched.measure.communication import ENOUGH, CommunicationMeter
from selfsched.measure.device_marks import MARK_EVERY_STEPS, MAX_MARKS, MAX_PENDING, DeviceMarks
from selfsched.measure.hardware import hardware_name, visible_devices
from selfsched.measure.metrics import MetricsReader


class Event:
    """A device's event that is past when the test says so; waiting for it is not offered."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.at_ms = 0.0
        self.position = -1

    def record(self) -> None:
        self._device.queue += 1
        self._device.clock_ms += 10.0
        self.position, self.at_ms = self._device.queue, self._device.clock_ms

    def query(self) -> bool:
        return self._device.done >= self.position

    def elapsed_time(self, other: Event) -> float:
        return other.at_ms - self.at_ms


class Device:
    def __init__(self) -> None:
        self.queue, self.done, self.clock_ms = 0, 0, 0.0


def step(marks: DeviceMarks, passes: int = 1) -> None:
    for _ in range(passes):
        marks.batch_started()
        marks.forward_ended()
        marks.backward_ended()
    marks.step_ended()


def test_one_step_in_a_few_is_marked_and_read_when_it_is_past() -> None:
    device = Device()
    marks = DeviceMarks(lambda: Event(device))
    for _ in range(MARK_EVERY_STEPS):
        step(marks)
    assert device.queue == 4
    assert marks.read() is None
    device.done = 4
    times = marks.read()
    assert times is not None
    assert times == pytest.approx((0.01, 0.01, 0.01, None))
    assert marks.read() is None


def test_the_newest_step_that_is_past_is_read() -> None:
    device = Device()
    marks = DeviceMarks(lambda: Event(device))
    for _ in range(2 * MARK_EVERY_STEPS):
        step(marks)
    device.clock_ms += 1000.0
    for _ in range(MARK_EVERY_STEPS):
        step(marks)
    device.done = 8
    assert marks.read() == pytest.approx((0.01, 0.01, 0.01, None))
    device.done = 12
    assert marks.read() is not None
    assert marks.read() is None


def test_a_device_far_behind_has_a_bounded_number_of_marks() -> None:
    device = Device()
    marks = DeviceMarks(lambda: Event(device))
    for _ in range(MARK_EVERY_STEPS * MAX_PENDING * 3):
        step(marks)
    assert device.queue == 4 * MAX_PENDING


def test_the_passes_of_an_accumulated_step_are_summed_and_tell_the_exchange() -> None:
    device = Device()
    marks = DeviceMarks(lambda: Event(device))
    for _ in range(MARK_EVERY_STEPS - 1):
        step(marks)
    marks.batch_started()
    marks.forward_ended()
    marks.backward_ended()
    marks.batch_started()
    marks.forward_ended()
    device.clock_ms += 30.0  # the exchange
    marks.backward_ended()
    marks.step_ended()
    device.done = 1000
    times = marks.read()
    assert times is not None
    assert times == pytest.approx((0.02, 0.05, 0.01, 0.03))


def test_a_step_whose_hooks_came_otherwise_or_of_too_many_passes_is_not_told() -> None:
    device = Device()
    marks = DeviceMarks(lambda: Event(device))
    for _ in range(MARK_EVERY_STEPS):
        marks.batch_started()
        marks.backward_ended()  # manual optimisation may do as it likes
        marks.step_ended()
    for _ in range(MARK_EVERY_STEPS):
        step(marks, passes=MAX_MARKS)
    device.done = 10_000
    assert marks.read() is None
    assert device.queue <= MAX_MARKS + 5


# --- communication --------------------------------------------------------------------------


class Ddp:
    """Speaks like DDP's logger."""

    def __init__(self, **data: Any) -> None:
        self.rate, self.data = 0, data

    def sample(self, iteration: int, spent_ms: float, overlapped_ms: float = 0.0) -> None:
        self.data = {
            "iteration": iteration, "backward_comm_time": int(1e6 * spent_ms),
            "backward_compute_comm_overlap_time": int(1e6 * overlapped_ms),
        }  # fmt: skip

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        self.rate = rate

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        return self.data


def test_what_ddp_communicates_and_does_not_overlap_is_exposed_and_told_once() -> None:
    module = Ddp()
    meter = CommunicationMeter(module, 2)
    assert module.rate == 10
    module.sample(20, 6.9, 0.9)
    assert meter.read_seconds() == pytest.approx(0.006)
    assert meter.read_seconds() is None
    module.sample(30, 5.0, 1.0)
    assert meter.read_seconds() == pytest.approx(0.004)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"backward_comm_time": 0, "backward_compute_comm_overlap_time": 0},
        {"backward_comm_time": float("nan"), "backward_compute_comm_overlap_time": 0},
        {"backward_comm_time": "7", "backward_compute_comm_overlap_time": 0},
    ],
)
def test_before_ddp_has_sampled_communication_is_not_known(data: dict[str, Any]) -> None:
    assert CommunicationMeter(Ddp(**data), 2).read_seconds() is None


def test_one_rank_or_a_torch_without_the_logger_measures_nothing() -> None:
    alone = Ddp()
    assert CommunicationMeter(alone, 1).read_seconds() is None
    assert alone.rate == 0
    without = CommunicationMeter(torch.nn.Linear(1, 1), 2)
    assert without.read_seconds() is None
    assert without.buckets_settled()


@pytest.mark.parametrize(
    ("passes_ms", "ddp_ms", "differs"), [(8.0, 5.8, False), (8.0, 3.0, True), (0.2, 0.05, False)]
)
def test_passes_and_ddp_check_each_other(passes_ms: float, ddp_ms: float, differs: bool) -> None:
    module = Ddp()
    meter = CommunicationMeter(module, 2)
    for iteration in range(ENOUGH):
        assert not meter.told_by_passes
        assert meter.disagreement() is None
        module.sample(iteration, ddp_ms)
        meter.read_seconds()
        meter.accumulated(passes_ms * 1e-3, 0.020)
    assert meter.told_by_passes
    words = meter.disagreement()
    assert (words is not None) == differs
    if words is not None:
        assert "8 ms" in words
        assert "3 ms" in words


def test_torch_still_has_the_names_we_use() -> None:
    from torch.nn.parallel import DistributedDataParallel

    assert hasattr(DistributedDataParallel, "_set_ddp_runtime_logging_sample_rate")
    assert hasattr(DistributedDataParallel, "_get_ddp_logging_data")


# --- metrics and hardware ---------------------------------------------------------------------


def test_scalars_on_the_host_are_numbers_and_the_rest_is_left_out() -> None:
    values = {"loss": torch.tensor(2.0), "epoch": 3, "vector": torch.zeros(4), "word": "x"}
    assert MetricsReader().read(values) == {"loss": 2.0, "epoch": 3.0}


def test_earlier_numbers_stay_until_there_are_newer_ones() -> None:
    reader = MetricsReader()
    reader.read({"val": 1.0})
    assert reader.read({"loss": 2.0}) == {"val": 1.0, "loss": 2.0}


def test_a_module_on_the_cpu_names_its_hardware() -> None:
    module = SimpleNamespace(device=torch.device("cpu"))
    assert hardware_name(module) == "cpu"
    assert visible_devices(module) >= 1
