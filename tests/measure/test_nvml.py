"""NVML through the real bindings, against a library that stands in for NVIDIA's."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from measure.nvml_stand_in import GPU, OTHER, StandIn, build

from selfsched.measure.device_watch import DeviceWatch
from selfsched.measure.nvml import NvmlReader

pynvml = pytest.importorskip("pynvml")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


def loaded(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn(library, tmp_path / "driver.txt")
    monkeypatch.setenv("NVML_STAND_IN", str(stand_in.state_file))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return stand_in


@pytest.fixture
def driver(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return loaded(library, tmp_path, monkeypatch)


def test_what_the_driver_says_of_each_device_is_read(driver: StandIn) -> None:
    driver.set("nvlink.1", 100)
    reader = NvmlReader([OTHER, GPU])
    other, gpu = reader.read()
    assert (other.device, gpu.device) == (OTHER, GPU)
    assert (gpu.utilisation, gpu.clock_ratio, gpu.held_back) == (0.9, 0.75, frozenset())
    assert (gpu.memory_used_bytes, gpu.memory_bytes) == (3 << 30, 8 << 30)
    assert gpu.pcie_bytes_per_second == 10e6
    assert (gpu.nvlink_bytes, other.nvlink_bytes) == (None, 2 * 100 * 1024)
    assert gpu.problem is None
    reader.close()
    assert driver.opened() == 0


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x01, set()),  # idle
        (0x20, {"heat"}),
        (0x48, {"heat"}),
        (0x08, {"hardware"}),
        (0x88 | 0x04, {"power", "power_brake"}),
        (0x600, {"board_limit", "reliability"}),
    ],
)
def test_reasons_to_be_held_back_are_words(driver: StandIn, bits: int, words: set[str]) -> None:
    driver.set("reasons.0", bits)
    reader = NvmlReader([GPU])
    (reading,) = reader.read()
    assert reading.held_back == words
    reader.close()


@pytest.mark.parametrize("error", [3, 4, 13])  # not supported, no permission, no such function
def test_a_value_that_is_missing_is_unknown_and_never_zero(driver: StandIn, error: int) -> None:
    for name in ("UtilizationRates", "ClockInfo", "PcieThroughput", "FieldValues", "MemoryInfo"):
        driver.set(f"answer.nvmlDeviceGet{name}", error)
    driver.set("answer.nvmlDeviceGetCurrentClocksEventReasons", error)
    driver.set("answer.nvmlDeviceGetCurrentClocksThrottleReasons", error)
    reader = NvmlReader([GPU])
    (reading,) = reader.read()
    assert reading.problem is None
    assert (reading.utilisation, reading.clock_ratio, reading.held_back) == (None, None, None)
    assert (reading.memory_bytes, reading.pcie_bytes_per_second, reading.nvlink_bytes) == (None, None, None)
    reader.close()


def test_a_lost_gpu_says_so_and_hides_no_other_one(driver: StandIn) -> None:
    reader = NvmlReader([GPU, OTHER])
    reader.read()
    driver.set("error.0", 15)
    lost, well = reader.read()
    assert "lost" in str(lost.problem).lower()
    assert lost.utilisation is None
    assert (well.problem, well.utilisation) == (None, 0.4)
    driver.unset("error.0")
    assert [reading.problem for reading in reader.read()] == [None, None]
    reader.close()


def test_devices_that_were_renumbered_are_found_again_by_their_uuid(driver: StandIn) -> None:
    reader = NvmlReader([GPU])
    reader.read()
    driver.set("error.0", 15)
    reader.read()
    driver.unset("error.0")
    driver.set("uuid.0", OTHER)
    driver.set("uuid.1", GPU)
    assert reader.read()[0].utilisation == 0.4  # that of what is number 1 now
    reader.close()


def test_a_driver_that_was_unloaded_and_comes_back_is_opened_again(driver: StandIn) -> None:
    reader = NvmlReader([GPU])
    reader.read()
    driver.set("answer.nvmlDeviceGetMemoryInfo", 1)
    assert reader.read()[0].problem is not None
    assert driver.opened() == 0
    driver.set("init", 9)
    assert "driver" in str(reader.read()[0].problem).lower()
    driver.unset("init")
    driver.unset("answer.nvmlDeviceGetMemoryInfo")
    assert reader.read()[0].problem is None
    reader.close()
    assert driver.opened() == 0


def test_a_device_that_is_not_there_says_so(driver: StandIn) -> None:
    reader = NvmlReader(["GPU-gone", GPU])
    gone, well = reader.read()
    assert gone.problem is not None
    assert well.problem is None
    reader.close()


def test_an_old_driver_without_the_newer_functions_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = loaded(build(tmp_path, "-DOLD_DRIVER"), tmp_path, monkeypatch)
    old.set("reasons.0", 0x40)
    reader = NvmlReader([GPU])
    (reading,) = reader.read()
    assert (reading.held_back, reading.nvlink_bytes) == ({"heat"}, None)
    reader.close()


def test_a_hanging_driver_holds_up_its_own_thread_and_nobody_else(driver: StandIn) -> None:
    now = 0.0
    reader = NvmlReader([GPU])
    watch = DeviceWatch([GPU], reader.read, clock=lambda: now)
    driver.set("hang", "nvmlDeviceGetPcieThroughput")
    looking = threading.Thread(target=watch.look, daemon=True)
    looking.start()
    while watch._looking_since is None:  # until it has begun
        pass
    now = 42.0
    told = watch.take(0.0)
    assert told is not None
    assert told.devices[0].looks == 0
    assert told.devices[0].problem == "the driver has not answered for 42 s"
    assert looking.is_alive()
    driver.unset("hang")
    looking.join(timeout=60)
    now = 90.0
    told = watch.take(0.0)
    assert told is not None
    assert (told.devices[0].looks, told.devices[0].problem) == (1, None)
    reader.close()


def test_a_machine_without_the_library_has_nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert NvmlReader([GPU]).read() == ()


@pytest.mark.slow
def test_a_program_finds_the_library_as_it_finds_nvidias(library: Path, tmp_path: Path) -> None:
    driver = StandIn(library, tmp_path / "driver.txt")
    environment = {
        **os.environ, "LD_LIBRARY_PATH": str(library.parent), "NVML_STAND_IN": str(driver.state_file),
    }  # fmt: skip
    program = "import sys; from selfsched.measure import nvml; print(nvml.NvmlReader(sys.argv[1:]).read())"
    done = subprocess.run(
        [sys.executable, "-c", program, GPU],
        env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "utilisation=0.9" in done.stdout
