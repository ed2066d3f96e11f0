"""`selfsched verify`: a script on 1-2-1 devices against the same script on one throughout.

Both runs go through the launcher, on fixed plans, with one thread a rank, for so many steps.
A witness (`selfsched.witness`), not the launcher, says what each trained on and what came of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from selfsched.commands.printing import console, plain, print_json
from selfsched.errors import EXIT_FAILED, EXIT_FINE, SelfschedError
from selfsched.witness import installation, record
from selfsched.witness.record import Record

TOLERANCE = 1e-6
"""Largest difference of weights and losses: the order of sums changes, nothing else may."""

WHY = (
    "Dropout and random augmentation draw other noise after a cut and differ by rights; "
    "BatchNorm without sync and losses over a whole batch see only the local batch."
)


@dataclass(frozen=True)
class Comparison:
    """What differs between the run that was cut and the one that was not."""

    steps: int
    devices: tuple[int, ...]
    """Of the run that was cut, one a segment."""
    same_samples: bool
    """Whether each step trained on the same samples in both."""
    loss_difference: float
    weight_difference: float

    def nothing_changed(self) -> bool:
        """Whether the two runs are the same training."""
        return self.same_samples and max(self.loss_difference, self.weight_difference) <= TOLERANCE


def verify_command(command: tuple[str, ...], *, steps: int, as_json: bool) -> int:
    """Run the comparison and print it.

    Raises:
        SelfschedError: one of the two runs failed, or trained nothing.
    """
    plan = f"1@0,2@{steps // 3},1@{2 * steps // 3}"
    if not as_json:
        console().print(plain(f"Training {steps} steps on one device, then as the plan {plan} ..."))
    with _a_directory() as directory:
        whole = _train(command, "1@0", steps, directory / "whole")
        cut = _train(command, plan, steps, directory / "cut")
        found = compare(whole, cut, directory)
    if as_json:
        print_json(
            {
                "steps": found.steps,
                "devices": list(found.devices),
                "same_samples": found.same_samples,
                "loss_difference": found.loss_difference,
                "weight_difference": found.weight_difference,
                "nothing_changed": found.nothing_changed(),
            }
        )
    else:
        _print(found)
    return EXIT_FINE if found.nothing_changed() else EXIT_FAILED


class _RunFailed(SelfschedError):
    """One of the two runs failed; the message names the directory where its logs are."""


@contextmanager
def _a_directory() -> Iterator[Path]:
    """A directory for both runs, kept only where one failed: its logs say why."""
    directory = Path(tempfile.mkdtemp(prefix="selfsched-verify-"))
    is_kept = False
    try:
        yield directory
    except _RunFailed:
        is_kept = True
        raise
    finally:
        if not is_kept:
            shutil.rmtree(directory, ignore_errors=True)


def _train(command: Sequence[str], plan: str, steps: int, directory: Path) -> Record:
    environment = installation.install(directory, os.environ, step_limit=steps)
    environment["SELFSCHED_RUNS_DIR"] = str(directory / "runs")
    launch = [sys.executable, "-m", "selfsched", "run", "--devices", "1-2", "--plan", plan, "--", *command]
    done = subprocess.run(launch, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        words = f"the run on {plan} ended with exit code {done.returncode} (kept: {directory.parent})"
        raise _RunFailed(f"{words}:\n{tail}")
    witnessed = record.read(directory)
    if not witnessed.batches:
        raise SelfschedError("no training was seen: does the command call Trainer.fit with SelfScheduler()?")
    return witnessed


def compare(whole: Record, cut: Record, directory: Path) -> Comparison:
    """Hold two records, and the weights beside them, against each other.

    Args:
        whole: of the run without a cut.
        cut: of the run with cuts.
        directory: where `whole/weights.pt` and `cut/weights.pt` are.
    """
    pairs = list(zip(whole.batches, cut.batches, strict=False))
    same = len(whole.batches) == len(cut.batches) and all(a.samples == b.samples for a, b in pairs)
    losses = [abs(a.loss - b.loss) for a, b in pairs if a.loss is not None and b.loss is not None]
    return Comparison(
        steps=max(batch.step for batch in cut.batches),
        devices=tuple(devices for devices, _ in groupby(batch.devices for batch in cut.batches)),
        same_samples=same,
        loss_difference=max(losses, default=0.0),
        weight_difference=_weight_difference(
            directory / "whole" / "weights.pt", directory / "cut" / "weights.pt"
        ),
    )


def _weight_difference(first: Path, second: Path) -> float:
    import torch

    a, b = (torch.load(path, weights_only=True) for path in (first, second))
    if a.keys() != b.keys():
        return float("inf")
    differences = [(a[name].double() - b[name].double()).abs().max().item() for name in a if a[name].numel()]
    return float(max(differences, default=0.0))


def _print(found: Comparison) -> None:
    lines = [
        f"{found.steps} steps on {'-'.join(map(str, found.devices))} devices against one device:",
        f"  samples of each step   {'the same' if found.same_samples else 'DIFFERENT'}",
        f"  largest difference     loss {found.loss_difference:.1e}, weights {found.weight_difference:.1e}",
        "Nothing changed."
        if found.nothing_changed()
        else f"Something changed (more than {TOLERANCE:g}). {WHY}",
    ]
    console().print(plain("\n".join(lines)))
