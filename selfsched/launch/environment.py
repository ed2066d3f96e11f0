"""The environment of a rank: who it is, what it may use, and what must not mislead it."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from selfsched.elastic.segment import SEGMENT_VARIABLE
from selfsched.protocol import LeasedDevice

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_OTHER_LAUNCHERS = (
    # Lightning would take its ranks from these launchers' variables instead of ours.
    "SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "KUBERNETES_PORT", "LSB_DJOB_RANKFILE", "GROUP_RANK",
)


def rank_environment(
    rank: int, devices: Sequence[LeasedDevice], *, port: int, segment: Path
) -> dict[str, str | None]:
    """What a rank's environment has beyond its supervisor's; None: unset."""
    return {
        **dict.fromkeys(_OTHER_LAUNCHERS),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
        "WORLD_SIZE": str(len(devices)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        SEGMENT_VARIABLE: str(segment),
        "PYTHONUNBUFFERED": "1",
        # All ranks are on this machine: no name look-up, and nothing listens outside of it.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        **device_environment(devices, threads=threads_per_rank(devices)),
    }


def device_environment(devices: Sequence[LeasedDevice], *, threads: int) -> dict[str, str | None]:
    """The devices a program may see: GPUs by UUID, threads by the slots' cores."""
    visible = ",".join(device.id for device in devices if device.kind == "gpu")
    return {
        "CUDA_VISIBLE_DEVICES": visible,
        **{name: os.environ.get(name, str(threads)) for name in _THREAD_VARIABLES},
    }


def threads_per_rank(devices: Sequence[LeasedDevice]) -> int:
    """CPU threads for each rank: what the user says, else its slot's cores, else an even part."""
    stated = os.environ.get("OMP_NUM_THREADS", "")
    if stated.isdigit() and int(stated) > 0:
        return int(stated)
    slots = [len(device.cores) for device in devices if device.cores]
    if slots:
        return min(slots)
    return max(1, len(os.sched_getaffinity(0)) // max(1, len(devices)))


def free_port() -> int:
    """A TCP port that is free at this moment; somebody may be faster, so be ready to retry."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def memory_kills() -> int:
    """How many processes the kernel's out-of-memory killer has ended here since boot."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
