"""Builds the stand-in for NVIDIA's library and says what its driver says."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("nvml_stand_in.c")
GPU = "GPU-00000000-0000-0000-0000-000000000001"
OTHER = "GPU-00000000-0000-0000-0000-000000000002"
TWO_DEVICES: dict[str, Any] = {
    "count": 2, "uuid.0": GPU, "uuid.1": OTHER, "name.0": "NVIDIA Stand-In", "name.1": "NVIDIA Stand-In",
    "used.0": 3 << 30, "total.0": 8 << 30, "used.1": 1 << 30, "total.1": 8 << 30,
    "util.0": 90, "util.1": 40, "sm.0": 1500, "sm_max.0": 2000, "sm.1": 2000, "sm_max.1": 2000,
    "reasons.0": 0, "reasons.1": 0, "pcie.0": 5000, "pcie.1": 7,
}  # fmt: skip


def build(directory: Path, *options: str) -> Path:
    """The library, compiled into `directory` under the name that programs load."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    library = directory / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", *options, "-o", library, SOURCE], check=True
    )
    return library


class StandIn:
    """What the driver says; changed while a program runs."""

    def __init__(self, library: Path, state: Path) -> None:
        self.library, self.state_file = library, state
        self._lines: dict[str, Any] = dict(TWO_DEVICES)
        self._write()


    def set(self, key: str, value: Any) -> None:
        self._lines[key] = value
        self._write()

    def unset(self, key: str) -> None:
        self._lines.pop(key, None)
        self._write()

    def opened(self) -> int:
        """How often the library is open in this process."""
        return int(ctypes.CDLL(str(self.library)).stand_in_opened())

    def _write(self) -> None:
        partial = self.state_file.with_suffix(".new")
        partial.write_text("".join(f"{key} {value}\n" for key, value in self._lines.items()))
        partial.replace(self.state_file)
