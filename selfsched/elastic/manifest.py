"""What a restart checkpoint says of itself on disk, read without torch: which are there, and whole."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from selfsched.elastic.private_files import fault_of_directory, fault_of_file
from selfsched.errors import CheckpointUnusable

FILES = ("lightning.ckpt", "selfsched.pt")
FINISHED = "finished"
"""Name of the checkpoint that a fit leaves at its own end; the others are called `step-<n>`."""


@dataclass(frozen=True)
class Manifest:
    """Of one complete checkpoint."""

    step: int
    """Global step after which it was made."""
    finished: bool
    """Whether its fit had come to its own end."""
    size_bytes: int


def candidates(fit: Path) -> list[Path]:
    """The checkpoints of one fit, whole or not, the newest first."""
    finished = fit / FINISHED
    return ([finished] if finished.exists() else []) + sorted(fit.glob("step-*"), reverse=True)


def read_manifest(path: Path) -> Manifest:
    """What a checkpoint says of itself, once it is found to be ours alone and whole.

    Raises:
        CheckpointUnusable: it is neither or not both.
    """
    if path.is_symlink():
        raise CheckpointUnusable(f"{path} is a symbolic link")
    try:
        for directory in (path.parent, path):
            fault = fault_of_directory(directory)
            if fault is not None:
                raise CheckpointUnusable(f"{directory} {fault}: the checkpoint in it is not read")
        manifest = json.loads((path / "manifest.json").read_text())
        sizes, step = dict(manifest["sizes"]), int(manifest["step"])
        finished = bool(manifest["finished"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointUnusable(f"the checkpoint {path} has no readable manifest") from error
    for name in FILES:
        try:
            status, fault = os.lstat(path / name), fault_of_file(path / name)
        except OSError as error:
            raise CheckpointUnusable(f"the checkpoint {path} lacks {name}") from error
        if fault is not None:
            raise CheckpointUnusable(f"{path / name} {fault}: it is not read")
        if status.st_size != sizes.get(name):
            raise CheckpointUnusable(
                f"the checkpoint {path} is truncated ({name}: {status.st_size} of {sizes.get(name)} bytes)"
            )
    return Manifest(step, finished, sum(sizes.values()))


def fits_of(run_directory: Path) -> list[Path]:
    """The directories of a run's fits, in their order."""
    numbered = [path for path in (run_directory / "fits").glob("*") if path.name.isdigit()]
    return sorted(numbered, key=lambda path: int(path.name))


def newest_step(run_directory: Path) -> int | None:
    """Global step of the newest whole checkpoint that lies in a run's directory, whoever's life of the run
    made it; None: there is none."""
    for fit in reversed(fits_of(run_directory)):
        for path in candidates(fit):
            try:
                return read_manifest(path).step
            except CheckpointUnusable:
                continue
    return None
