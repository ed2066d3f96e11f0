"""Python, PyTorch and Lightning: versions, builds, and whether they load at all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from selfsched.doctor.finding import Finding

LOWEST_PYTHON = (3, 11)
LOWEST_TORCH = (2, 6)
LIGHTNING_RANGE = ((2, 4), (2, 8))
SAFE_LIGHTNING = (2, 6, 6)
"""Below it, `load_from_checkpoint` executes what a foreign checkpoint holds."""
_INSTALL = "pip install 'selfsched[train]'"
_PROBE_SECONDS = 120.0

# In a process of its own: a broken build of torch may end the process that imports it.
_PROBE = """
import json, torch
print(json.dumps({
    "cuda_build": torch.version.cuda,
    "cuda_works": torch.cuda.is_available(),
    "devices": torch.cuda.device_count() if torch.cuda.is_available() else 0,
    "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
}))
"""


def parse_version(text: str) -> tuple[int, ...]:
    """The numbers at the head of a version: `2.6.6+cpu` is (2, 6, 6)."""
    numbers = []
    for part in text.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, found without importing it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_python() -> Finding:
    """Whether this Python is new enough."""
    found = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info[:2] < LOWEST_PYTHON:
        return Finding("Python", "bad", found, "Use Python 3.11 or newer.")
    return Finding("Python", "good", found)


def check_torch() -> tuple[Finding, dict[str, Any]]:
    """Whether torch is there and loads; with it, what its build can do."""
    version = installed_version("torch")
    if version is None:
        return Finding("torch", "bad", "not installed", _INSTALL), {}
    if parse_version(version) < LOWEST_TORCH:
        return Finding("torch", "bad", version, "Use torch 2.6 or newer."), {}
    build, trouble = probe_torch()
    if trouble:
        advice = f"`{sys.executable} -c 'import torch'` fails: install torch anew for this machine."
        return Finding("torch", "bad", f"{version} does not load: {trouble}", advice), {}
    kind = f"CUDA {build['cuda_build']}" if build["cuda_build"] else "built for CPU"
    if not build["gloo"]:
        return Finding("torch", "bad", f"{version}, {kind}, without gloo", "Use an official build."), build
    return Finding("torch", "good", f"{version}, {kind}"), build


def probe_torch() -> tuple[dict[str, Any], str]:
    """(what torch's build can do, what went wrong); one of both is empty."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {}, f"no answer within {_PROBE_SECONDS:.0f} s"
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {}, last[0]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer, ""


def check_lightning() -> Iterator[Finding]:
    """Whether a supported Lightning is there, under either of its names."""
    versions = {name: installed_version(name) for name in ("lightning", "pytorch-lightning")}
    present = {name: version for name, version in versions.items() if version is not None}
    if not present:
        yield Finding("Lightning", "bad", "not installed", _INSTALL)
    for name, version in present.items():
        yield judge_lightning(name, version)


def judge_lightning(name: str, version: str) -> Finding:
    """What to say of one version of Lightning."""
    low, high = LIGHTNING_RANGE
    numbers = parse_version(version)
    if not low <= numbers[:2] < high:
        return Finding(
            name, "bad", version, f"Supported: at least {low[0]}.{low[1]}, below {high[0]}.{high[1]}."
        )
    if numbers < SAFE_LIGHTNING:
        return Finding(
            name, "warning", version,
            "Before 2.6.6, load_from_checkpoint runs code from a foreign checkpoint: update, "
            "or load only your own.",
        )  # fmt: skip
    return Finding(name, "good", version)
