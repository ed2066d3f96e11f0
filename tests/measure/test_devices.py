"""Reading devices late, or not at all: no synchronisation, no library needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from selfsched.measure.communication import CommunicationMeter
from selfsched.measure.device_marks import MARK_EVERY_STEPS, MAX_PENDING, DeviceMarks
from selfsched.measure.hardware import hardware_name, visible_devices
from selfsched.measure.metrics import MetricsReader
from selfsched.measure.nvml import DeviceMeter


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
    marks.step_started()
    for _ in range(passes):
        marks.mark()
        marks.mark()
    marks.step_ended()


def test_one_step_in_a_few_is_marked_and_read_when_it_is_past() -> None:
    device = Device()
    marks = DeviceMarks(lambda: Event(device))
    for _ in range(MARK_EVERY_STEPS):
        step(marks)
    assert device.queue == 4
    assert marks.read() is None
    device.done = 4
    assert marks.read() == pytest.approx({"forward": 0.01, "backward": 0.01, "optimiser": 0.01})
    assert marks.read() is None


def test_a_device_far_behind_has_a_bounded_number_of_marks() -> None:
    device = Device()
    marks = DeviceMarks(lambda: Event(device))
    for _ in range(MARK_EVERY_STEPS * MAX_PENDING * 3):
        step(marks)
    assert device.queue == 4 * MAX_PENDING


def test_a_step_of_several_passes_is_not_told_apart() -> None:
    device = Device()
    marks = DeviceMarks(lambda: Event(device))
    for _ in range(MARK_EVERY_STEPS):
        step(marks, passes=2)
    device.done = 1000
    assert marks.read() is None


# --- communication --------------------------------------------------------------------------


class Ddp:
    """Speaks like DDP's logger."""

    def __init__(self, **data: Any) -> None:
        self.rate, self.data = 0, data

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        self.rate = rate

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        return self.data


def test_what_ddp_communicates_and_does_not_overlap_is_exposed() -> None:
    module = Ddp(avg_backward_comm_time=6_900_000, avg_backward_compute_comm_overlap_time=900_000)
    meter = CommunicationMeter(module, 2)
    assert module.rate == 10
    assert meter.read_seconds() == pytest.approx(0.006)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"avg_backward_comm_time": 0, "avg_backward_compute_comm_overlap_time": 0},
        {"avg_backward_comm_time": float("nan"), "avg_backward_compute_comm_overlap_time": 0},
        {"avg_backward_comm_time": "7", "avg_backward_compute_comm_overlap_time": 0},
    ],
)
def test_before_ddp_has_sampled_communication_is_not_known(data: dict[str, Any]) -> None:
    assert CommunicationMeter(Ddp(**data), 2).read_seconds() is None


def test_one_rank_or_a_torch_without_the_logger_measures_nothing() -> None:
    alone = Ddp()
    assert CommunicationMeter(alone, 1).read_seconds() is None
    assert alone.rate == 0
    assert CommunicationMeter(torch.nn.Linear(1, 1), 2).read_seconds() is None


def test_torch_still_has_the_names_we_use() -> None:
    from torch.nn.parallel import DistributedDataParallel

    assert hasattr(DistributedDataParallel, "_set_ddp_runtime_logging_sample_rate")
    assert hasattr(DistributedDataParallel, "_get_ddp_logging_data")


# --- NVML -----------------------------------------------------------------------------------


class Nvml:
    """Speaks like pynvml."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, driver: bool = True, known: str = "GPU-1", mig: bool = False) -> None:
        self.driver, self.known, self.mig, self.open = driver, known, mig, 0
        self.lost = False

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != self.known:
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        if self.lost:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(used=3, total=8)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if self.mig:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=50)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        if self.mig:
            raise self.NVMLError("Not Supported")
        return 0x20


def test_a_gpu_is_read_by_its_uuid() -> None:
    nvml = Nvml()
    meter = DeviceMeter("GPU-1", nvml)
    reading = meter.read()
    assert reading is not None
    assert (reading.memory_used_bytes, reading.memory_bytes) == (3, 8)
    assert reading.utilisation == 0.5
    assert reading.throttled
    meter.close()
    assert nvml.open == 0
    assert meter.read() is None


def test_a_mig_instance_has_memory_and_no_utilisation() -> None:
    reading = DeviceMeter("GPU-1", Nvml(mig=True)).read()
    assert reading is not None
    assert (reading.utilisation, reading.throttled) == (None, False)


@pytest.mark.parametrize("nvml", [Nvml(driver=False), Nvml(known="GPU-2")])
def test_without_a_driver_or_with_a_foreign_uuid_nothing_is_read(nvml: Nvml) -> None:
    meter = DeviceMeter("GPU-1", nvml)
    assert not meter.available
    assert meter.read() is None
    meter.close()
    assert nvml.open == 0


def test_a_gpu_that_is_lost_meanwhile_reads_as_nothing() -> None:
    nvml = Nvml()
    meter = DeviceMeter("GPU-1", nvml)
    nvml.lost = True
    assert meter.read() is None


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
