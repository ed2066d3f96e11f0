"""How a witness gets into a run: an entry point that only the watched processes can see."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

DIRECTORY_VARIABLE = "_SELFSCHED_WITNESS"
STEPS_VARIABLE = "_SELFSCHED_WITNESS_STEPS"


def install(
    directory: Path, environment: Mapping[str, str], *, step_limit: int | None = None
) -> dict[str, str]:
    """Prepare a record in `directory` and return the environment of the processes to watch.

    Lightning asks the installed distributions for the entry point group
    `lightning.pytorch.callbacks_factory`. A distribution that consists of nothing but that
    entry lies in `directory` and is on the path of these processes alone.

    Args:
        directory: empty or new; the record is written there.
        environment: what the processes would run in.
        step_limit: end each fit after so many steps and keep its weights.
    """
    distribution = directory / "path" / "selfsched_witness-1.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: selfsched-witness\nVersion: 1\n")
    factory = "witness = selfsched.witness.callback:callbacks"
    (distribution / "entry_points.txt").write_text(
        f"[lightning.pytorch.callbacks_factory]\n{factory}\n"
        f"[pytorch_lightning.callbacks_factory]\n{factory}\n"
    )
    path = os.pathsep.join(filter(None, [str(distribution.parent), environment.get("PYTHONPATH")]))
    watched = {**environment, "PYTHONPATH": path, DIRECTORY_VARIABLE: str(directory)}
    if step_limit is not None:
        watched[STEPS_VARIABLE] = str(step_limit)
    return watched
