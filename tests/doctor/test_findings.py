"""What the doctor makes of versions, builds, kernels and disks."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from selfsched.commands.doctor import check_machine
from selfsched.doctor import machine, packages

Usage = namedtuple("Usage", "total used free")  # as shutil has it


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.6.6", (2, 6, 6)), ("2.13.0+cpu", (2, 13, 0)), ("2.7.0rc1", (2, 7, 0)), ("dev", ())],
)
def test_versions_are_read_by_their_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert packages.parse_version(text) == numbers


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("2.3.3", "bad"), ("2.4.0", "warning"), ("2.6.5", "warning"), ("2.6.6", "good"), ("2.7.1", "good"),
     ("2.8.0", "bad"), ("3.0", "bad")],
)  # fmt: skip
def test_lightning_is_judged_by_the_supported_range(version: str, verdict: str) -> None:
    found = packages.judge_lightning("lightning", version)
    assert found.verdict == verdict
    assert bool(found.advice) == (verdict != "good")


@pytest.mark.parametrize(
    ("count", "build", "verdict"),
    [
        (2, {"cuda_build": None, "cuda_works": False}, "bad"),
        (2, {"cuda_build": "12.8", "cuda_works": False}, "bad"),
        (2, {"cuda_build": "12.8", "cuda_works": True}, "good"),
        (0, {"cuda_build": None, "cuda_works": False}, "good"),
    ],
)
def test_gpus_need_a_build_of_torch_that_works_with_them(
    count: int, build: dict[str, object], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "installed_version", lambda name: None)
    assert machine.judge_gpus(count, "580.1", build).verdict == verdict


def test_the_deprecated_pynvml_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "installed_version", lambda name: "13.0.1")
    assert "nvidia-ml-py" in machine.judge_gpus(1, "580.1", {"cuda_build": "13", "cuda_works": True}).advice


@pytest.mark.parametrize(("free", "verdict"), [(2**20, "bad"), (2**30, "warning"), (2**36, "good")])
def test_disk_is_judged_by_what_checkpoints_need(
    free: int, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 0, free))
    assert machine.check_disk(tmp_path / "not" / "yet" / "there").verdict == verdict


@pytest.mark.parametrize(("free", "verdict"), [(64 * 2**20, "warning"), (2**33, "good")])
def test_docker_s_small_shared_memory_is_found(
    free: int, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 0, free))
    assert machine.check_shared_memory(tmp_path).verdict == verdict
    assert machine.check_shared_memory(tmp_path / "none").verdict == "absent"


def test_a_kernel_of_another_python_is_found() -> None:
    assert machine.judge_kernel("python3", "/opt/env/bin/python").verdict == "good"
    assert machine.judge_kernel("/opt/env/bin/python", "/opt/env/bin/python").verdict == "good"
    found = machine.judge_kernel("/usr/bin/python3", "/opt/env/bin/python")
    assert found.verdict == "warning"
    assert "/opt/env/bin/python -m ipykernel install" in found.advice


def test_the_disk_that_is_looked_at_is_that_of_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("SELFSCHED_BROKER", f"unix:{tmp_path}/none")
    (disk,) = [finding for finding in check_machine(None) if finding.subject == "Disk"]
    assert str(tmp_path / "selfsched" / "runs") in disk.found
