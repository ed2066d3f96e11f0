"""GPUs through the real pynvml and a stand-in for NVIDIA's library."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest
from broker.node.stand_in_gpus import Locks, Machine, build_library, own_pynvml

from selfsched.protocol import DeviceReport
from selfsched_broker.node.gpus import NvmlGpus
from selfsched_broker.node.processes import Processes


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(library: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return own_pynvml(library, monkeypatch)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "machine"))
    return Machine(tmp_path / "machine")


@pytest.fixture
def locks() -> Locks:
    return Locks()


@pytest.fixture
def gpus(nvml: ModuleType, locks: Locks) -> NvmlGpus:
    return NvmlGpus(locks=locks, library=nvml)


def _states(reports: tuple[DeviceReport, ...]) -> dict[str, str]:
    return {report.id: report.state for report in reports}


ME = os.getpid()


def test_an_idle_gpu_is_empty_and_described(machine: Machine, gpus: NvmlGpus) -> None:
    machine.has("GPU-a A100-80GB 3 0 -")
    (report,) = gpus.read()
    assert (report.id, report.index, report.model, report.kind) == ("GPU-a", 0, "A100-80GB", "gpu")
    assert (report.state, report.memory_bytes, report.memory_used_bytes) == ("empty", 80 * 2**30, 3 * 2**20)
    assert report.utilisation == 0.5


def test_d28_a_process_without_a_lease_is_reported_with_its_start_and_owner(
    machine: Machine, gpus: NvmlGpus
) -> None:
    machine.has(f"GPU-a A100 900 0 {ME}")
    (report,) = gpus.read()
    (process,) = report.processes
    stat = Processes().stat(ME)
    assert stat is not None
    assert report.state == "occupied"
    assert (process.pid, process.started, process.used_bytes) == (ME, stat.started, 2**30)
    assert (process.account, process.session) == (Processes().account_of(ME), os.getsid(ME))
    assert process.command == Path("/proc/self/comm").read_text().rstrip("\n")
    assert process.parents[:1] == ((os.getppid(),) if os.getppid() > 1 else ())
    machine.has("GPU-a A100 3 0 -")
    assert _states(gpus.read()) == {"GPU-a": "empty"}


def test_d28_a_process_that_is_not_in_proc_makes_it_unknown(machine: Machine, gpus: NvmlGpus) -> None:
    machine.has("GPU-a A100 900 0 4194304")
    (report,) = gpus.read()
    assert report.state == "unknown"
    assert "not in /proc" in report.detail


def test_u9_memory_held_by_nobody_keeps_it_occupied(machine: Machine, gpus: NvmlGpus) -> None:
    machine.has("GPU-a A100 20000 0 -")
    (report,) = gpus.read()
    assert report.state == "occupied"
    assert "20000 MiB are in use by no process" in report.detail


def test_a_taken_lock_keeps_it_occupied(machine: Machine, gpus: NvmlGpus, locks: Locks) -> None:
    machine.has("GPU-a A100 3 0 -")
    locks.taken.add("GPU-a")
    assert _states(gpus.read()) == {"GPU-a": "occupied"}


@pytest.mark.parametrize(
    ("code", "state"), [(15, "sick"), (16, "sick"), (999, "unknown"), (4, "unknown"), (10, "unknown")]
)
def test_d13_an_error_of_one_gpu_hides_no_other_and_is_never_empty(
    machine: Machine, gpus: NvmlGpus, code: int, state: str
) -> None:
    machine.has("GPU-a A100 3 0 -", "GPU-b A100 3 0 -", "GPU-c A100 3 0 -")
    gpus.read()
    machine.has("GPU-a A100 3 0 -", f"GPU-b A100 3 {code} -", "GPU-c A100 3 0 -")
    assert _states(gpus.read()) == {"GPU-a": "empty", "GPU-b": state, "GPU-c": "empty"}
    machine.has("GPU-a A100 3 0 -", "GPU-b A100 3 0 -", "GPU-c A100 3 0 -")
    assert _states(gpus.read()) == {"GPU-a": "empty", "GPU-b": "empty", "GPU-c": "empty"}


def test_d13_a_gpu_that_has_vanished_is_sick(machine: Machine, gpus: NvmlGpus) -> None:
    machine.has("GPU-a A100 3 0 -", "GPU-b A100 3 0 -")
    gpus.read()
    machine.has("GPU-b A100 3 0 -")
    assert _states(gpus.read()) == {"GPU-a": "sick", "GPU-b": "empty"}


def test_d14_a_permuted_order_changes_the_index_alone(machine: Machine, gpus: NvmlGpus) -> None:
    machine.has(f"GPU-a A100 900 0 {ME}", "GPU-b A100 3 0 -")
    gpus.read()
    machine.has("GPU-b A100 3 0 -", f"GPU-a A100 900 0 {ME}")
    assert {r.id: (r.index, r.state) for r in gpus.read()} == {
        "GPU-a": (1, "occupied"),
        "GPU-b": (0, "empty"),
    }


def test_a_driver_that_goes_away_makes_all_unknown_until_it_is_back(machine: Machine, gpus: NvmlGpus) -> None:
    machine.has("GPU-a A100 3 0 -")
    gpus.read()
    machine.has("GPU-a A100 3 18 -", init=18)
    assert _states(gpus.read()) == {"GPU-a": "unknown"}
    assert _states(gpus.read()) == {"GPU-a": "unknown"}
    machine.has("GPU-a A100 3 0 -")
    assert _states(gpus.read()) == {"GPU-a": "empty"}
    gpus.close()


def test_a_machine_without_a_driver_has_no_gpus(machine: Machine, gpus: NvmlGpus) -> None:
    machine.has(init=9)
    assert gpus.read() == ()
