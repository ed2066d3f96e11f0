"""Restart checkpoints on disk: complete or not there, bounded in number, ours alone to read.

A checkpoint is a directory `step-<n>`:

    lightning.ckpt   what `Trainer.save_checkpoint` wrote (may hold the user's own objects)
    selfsched.pt     our own named fields: plain types and tensors only
    manifest.json    the size of both, written last

It is made under another name, every file and the directory are fsynced, then it is renamed:
what has the name is complete. One that is truncated all the same (a full disk, a copied
directory) does not match its manifest and is skipped, with a warning, for the one before.

`lightning.ckpt` is a pickle and loading it can run code. So it is loaded only from the run's
own directory: mode 0700, owned by this user, no symbolic link on the way.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from selfsched.elastic.manifest import FILES, FINISHED, candidates, read_manifest
from selfsched.elastic.private_files import fault_of_directory, make_private
from selfsched.errors import CheckpointUnusable

_VERSION = 1
KEEP = 2
"""Complete checkpoints kept for each fit: the newest, and the one before it."""


@dataclass(frozen=True)
class Checkpoint:
    """One complete restart checkpoint."""

    path: Path
    step: int
    """Global step after which it was made."""
    finished: bool
    """Whether its fit had come to its own end."""
    size_bytes: int

    @property
    def lightning_path(self) -> Path:
        """What Lightning resumes from."""
        return self.path / FILES[0]

    def own_fields(self) -> dict[str, Any]:
        """Our own part. Raises CheckpointUnusable if it cannot be read."""
        try:
            fields = torch.load(self.path / FILES[1], map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise CheckpointUnusable(f"{self.path / FILES[1]} cannot be read: {error}") from error
        if fields.get("version") != _VERSION:
            raise CheckpointUnusable(
                f"{self.path} was written by another version of selfsched (format "
                f"{fields.get('version')}, this one reads {_VERSION})"
            )
        return dict(fields)


class CheckpointStore:
    """The restart checkpoints of one fit. One writer (rank 0), readers on all ranks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def free_bytes(self) -> int:
        """Room left on the file system."""
        make_private(self.directory)
        return shutil.disk_usage(self.directory).free

    def begin(self, step: int) -> Path:
        """The directory to write `lightning.ckpt` into; the same on every rank."""
        return self.directory / f".saving-{step:012d}"

    def make_room(self, step: int) -> None:
        """Rank 0, before anyone writes: an empty directory to write into."""
        temporary = self.begin(step)
        if temporary.exists():
            shutil.rmtree(temporary)
        make_private(temporary)

    def complete(self, step: int, own: dict[str, Any], *, finished: bool = False) -> Checkpoint:
        """Rank 0, after `lightning.ckpt` is written: add our part, make it durable, prune."""
        temporary = self.begin(step)
        torch.save({"version": _VERSION, "step": step, **own}, temporary / FILES[1])
        sizes = {}
        for name in FILES:
            (temporary / name).chmod(0o600)  # whatever umask the program has set
            _sync(temporary / name)
            sizes[name] = (temporary / name).stat().st_size
        manifest = {"version": _VERSION, "step": step, "finished": finished, "sizes": sizes}
        (temporary / "manifest.json").write_text(json.dumps(manifest))
        _sync(temporary / "manifest.json")
        _sync(temporary)
        final = self.directory / (FINISHED if finished else f"step-{step:012d}")
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        _sync(self.directory)
        self._prune(KEEP if not finished else 0)
        return Checkpoint(final, step, finished, sum(sizes.values()))

    def discard(self, step: int) -> None:
        """Remove what was begun and could not be written whole."""
        shutil.rmtree(self.begin(step), ignore_errors=True)

    def newest(self) -> Checkpoint | None:
        """The newest complete one; what is broken is skipped with a warning."""
        found = candidates(self.directory)
        for path in found:
            try:
                return _checked(path)
            except CheckpointUnusable as unusable:
                after = "the fit starts anew" if path == found[-1] else "taking the one before it"
                warnings.warn(f"selfsched: {unusable}; {after}", stacklevel=2)
        return None

    def keep_newest(self) -> None:
        """Make room: the newest complete one stays, those before it go."""
        self._prune(1)

    def _prune(self, keep: int) -> None:
        """Remove what is older than the `keep` newest; the newest is proven by now."""
        for old in sorted(self.directory.glob("step-*"), reverse=True)[keep:]:
            shutil.rmtree(old, ignore_errors=True)
        for left in self.directory.glob(".saving-*"):
            shutil.rmtree(left, ignore_errors=True)


def ensure_private(directory: Path) -> None:
    """Raise CheckpointUnusable unless a run's directory is ours alone: 0700, our uid, no link."""
    for path in (directory, directory / "fits"):
        fault = fault_of_directory(path) if path == directory or os.path.lexists(path) else None
        if fault is not None:
            raise CheckpointUnusable(
                f"{path} {fault}: nothing is read from there. If you do not know who put what it holds "
                "there, remove it"
            )
    mode = stat.S_IMODE(directory.lstat().st_mode)
    if mode & 0o077:
        raise CheckpointUnusable(
            f"{directory} has mode {mode:04o}: others can look into it. If it is yours: chmod 700 {directory}"
        )


def _checked(path: Path) -> Checkpoint:
    manifest = read_manifest(path)
    return Checkpoint(path, manifest.step, manifest.finished, manifest.size_bytes)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
