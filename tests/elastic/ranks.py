"""Plays segments with several real ranks, as a launcher would: fork, gloo, exit codes.

Run as a program: `python -m elastic.ranks scenario.json`. It imports torch once, touches no
tensor, and forks one process for each rank of each segment.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from selfsched.elastic.segment import ControlBlock

HERE = Path(__file__).resolve()


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def play_ranks(directory: Path, scenarios: list[dict[str, Any]]) -> None:
    """Run scenarios one after the other in a process of their own.

    Args:
        directory: Where results and the scenarios' run directories go.
        scenarios: Each with `name`, `package`, `script` (a function of this package as
            `module:function`), `segments` (a list of fields of `SegmentSpec`), `options`.
    """
    (directory / "scenarios.json").write_text(json.dumps(scenarios))
    path = os.pathsep.join([str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-m", "elastic.ranks", str(directory)], env=environment, capture_output=True,
        text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-9000:]


def results(directory: Path, name: str) -> list[list[dict[str, Any]]]:
    """What each rank of each segment of a scenario left: `code`, `result`, `seen`, `warnings`."""
    import torch

    found: list[list[dict[str, Any]]] = []
    for ordinal in range(100):
        ranks = sorted((directory / name).glob(f"segment-{ordinal}-rank-*.pt"))
        if not ranks:
            break
        found.append([torch.load(path, weights_only=False) for path in ranks])
    return found


def _rank(scenario: dict[str, Any], home: Path, ordinal: int, rank: int) -> int:
    import warnings
    from importlib import import_module

    import torch
    from elastic.nasty import Seen, segment

    from selfsched.elastic import hooks

    torch.set_num_threads(1)
    fields = dict(scenario["segments"][ordinal])
    if fields.get("cut_at"):
        fields["cut_at"] = tuple(fields["cut_at"])
    module, function = scenario["script"].split(":")
    seen, result, code = Seen(), None, 0
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        hooks.install(segment(home / "run", ordinal, **fields))
        try:
            script = getattr(import_module(module), function)
            result = script(scenario["package"], home / "logs", seen, **scenario.get("options", {}))
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
    texts = [str(warning.message) for warning in warned]
    left_behind = {"code": code, "result": result, "seen": seen, "warnings": texts}
    torch.save(left_behind, home / f"segment-{ordinal}-rank-{rank}.pt")
    return code


def _segment(scenario: dict[str, Any], home: Path, ordinal: int) -> None:
    world = scenario["segments"][ordinal].get("world_size", 1)
    port = str(free_port())
    (home / "run").mkdir(mode=0o700, exist_ok=True)
    ControlBlock(home / "run" / "control", create=True).close()
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ.update(
                    RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), NODE_RANK="0",
                    MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                )  # fmt: skip
                code = _rank(scenario, home, ordinal, rank)
            except BaseException:  # noqa: BLE001  the outermost loop of a process
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    expected = scenario.get("codes", {}).get(str(ordinal))
    wanted = {expected} if expected is not None else {0, 75}
    if not set(codes) <= wanted:
        sys.exit(f"{scenario['name']}: segment {ordinal} ended with {codes}")


def main(directory: Path) -> None:
    """Play `scenarios.json` of the directory."""
    import logging
    from importlib import import_module

    for package in ("lightning.pytorch", "pytorch_lightning"):
        import_module(package)
        logging.getLogger(package).setLevel(logging.ERROR)
    for scenario in json.loads((directory / "scenarios.json").read_text()):
        home = directory / scenario["name"]
        home.mkdir()
        for ordinal in range(len(scenario["segments"])):
            _segment(scenario, home, ordinal)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
