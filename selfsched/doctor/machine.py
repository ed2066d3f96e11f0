"""The machine: GPUs and their driver, shared memory, disk, the locks of devices, Jupyter."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from selfsched.core.memory import gib_words
from selfsched.doctor.finding import Finding
from selfsched.doctor.packages import installed_version
from selfsched.errors import Refused
from selfsched.launch.locks import lock_directory

MIB = 2**20
GIB = 2**30
SMALL_SHARED_MEMORY = 1 * GIB
SMALL_DISK = 10 * GIB
NO_DISK = 256 * MIB


def check_gpus(torch_build: dict[str, Any]) -> Finding:
    """NVML and the driver, and whether torch's build fits what is there."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return Finding("GPUs", "absent", "no NVIDIA driver: CPU slots are leased instead")
    except pynvml.NVMLError as error:
        return Finding("GPUs", "bad", f"NVML does not start: {error}", "Reload or reinstall the driver.")
    try:
        count, driver = pynvml.nvmlDeviceGetCount(), pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()
    return judge_gpus(count, str(driver), torch_build)


def judge_gpus(count: int, driver: str, torch_build: dict[str, Any]) -> Finding:
    """What to say of the GPUs that NVML sees and of what torch makes of them."""
    found = f"{count} GPUs, driver {driver}"
    if count and not torch_build.get("cuda_build"):
        return Finding("GPUs", "bad", f"{found}; torch is built for CPU", "Install torch with CUDA.")
    if count and not torch_build.get("cuda_works"):
        advice = "The driver is too old for torch's CUDA, or CUDA_VISIBLE_DEVICES is empty."
        return Finding("GPUs", "bad", f"{found}; torch sees none", advice)
    if installed_version("pynvml") is not None:
        advice = "pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py"
        return Finding("GPUs", "warning", f"{found}; deprecated package pynvml installed", advice)
    return Finding("GPUs", "good", found)


def check_shared_memory(path: Path = Path("/dev/shm")) -> Finding:
    """Whether data loader workers can pass their batches."""
    if not path.is_dir():
        return Finding("Shared memory", "absent", f"no {path} on this machine")
    free = shutil.disk_usage(path).free
    found = f"{gib_words(free)} free in {path}"
    if free < SMALL_SHARED_MEMORY:
        advice = "Data loader workers may die of bus errors: docker run --shm-size=8g, or num_workers=0."
        return Finding("Shared memory", "warning", found, advice)
    return Finding("Shared memory", "good", found)


def check_disk(directory: Path) -> Finding:
    """Whether restart checkpoints have room where runs are kept."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        return Finding(
            "Disk", "bad", f"{existing} is not writable", "Set SELFSCHED_RUNS_DIR to a place of yours."
        )
    free = shutil.disk_usage(existing).free
    found = f"{gib_words(free)} free for checkpoints in {directory}"
    advice = "Make room, or set SELFSCHED_RUNS_DIR to a larger disk: two checkpoints of a job lie there."
    if free < NO_DISK:
        return Finding("Disk", "bad", found, advice)
    return Finding(
        "Disk", "warning" if free < SMALL_DISK else "good", found, advice if free < SMALL_DISK else ""
    )


def check_jupyter() -> Finding:
    """Whether a notebook can run here, and with this Python."""
    if installed_version("ipykernel") is None:
        return Finding("Jupyter", "absent", "no ipykernel: notebooks cannot use this Python",
                       "Only for notebooks: pip install ipykernel")  # fmt: skip
    try:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    except ImportError:
        return Finding("Jupyter", "absent", "ipykernel without jupyter_client", "pip install jupyter_client")
    try:
        command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        advice = f"{sys.executable} -m ipykernel install --sys-prefix"
        return Finding("Jupyter", "warning", "no kernel named python3", advice)
    return judge_kernel(command, sys.executable)


def judge_kernel(command: str, executable: str) -> Finding:
    """Whether the default kernel is this Python: else it lacks what is installed here."""
    resolved = shutil.which(command) or command
    if command in ("python", "python3") or os.path.realpath(resolved) == os.path.realpath(executable):
        return Finding(
            "Jupyter", "good", f"ipykernel {installed_version('ipykernel')}, kernel python3 is this Python"
        )
    advice = f"It lacks what is installed here: {executable} -m ipykernel install --user --name selfsched"
    return Finding("Jupyter", "warning", f"kernel python3 is {resolved}", advice)


def check_locks() -> Finding:
    """Whether devices can be locked machine-wide, so that nobody else takes them."""
    try:
        directory = lock_directory()
    except Refused as error:
        return Finding(
            "Device locks", "bad", str(error), "Set SELFSCHED_LOCK_DIR to a directory all users share."
        )
    return Finding("Device locks", "good", str(directory))
