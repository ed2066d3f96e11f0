"""GPUs that a test makes: the real pynvml before a stand-in for NVIDIA's library."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


class Locks:
    """Locks of which the named ones are taken."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def is_free(self, device_id: str) -> bool:
        return device_id not in self.taken

    def take(self, device_id: str) -> int | None:
        raise AssertionError("an agent takes no lock")


class Machine:
    """The file that the stand-in reads; its path goes into `FAKE_NVML`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, *gpus: str, init: int = 0) -> None:
        """Say what the driver shows: `UUID NAME USED_MIB ERROR PID[,PID...]` for each GPU, `-` for no pid."""
        self.path.write_text(f"init {init}\n" + "".join(f"gpu {gpu}\n" for gpu in gpus))


def build_library(directory: Path) -> Path:
    """The stand-in, compiled."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc to build the stand-in")
    built = directory / "fake.so"
    source = Path(__file__).with_name("fake_nvml.c")
    # A soname of its own: nobody else in this process must find it in place of the real one.
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wl,-soname,fake-nvml", "-o", str(built), str(source)]
    subprocess.run(command, check=True)
    return built


def own_pynvml(library: Path, patch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of pynvml of the test's own, bound to the stand-in."""
    installed = importlib.util.find_spec("pynvml")
    assert installed is not None
    assert installed.origin is not None
    spec = importlib.util.spec_from_file_location("pynvml_of_this_test", installed.origin)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    module.nvmlLib = ctypes.CDLL(str(library))
    return module
