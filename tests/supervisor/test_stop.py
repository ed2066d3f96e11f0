"""A Stop is obeyed at the end of the step that is under way, counted in steps and not in seconds."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from supervisor.runs import Runs, wait_for

from selfsched.elastic.checkpoints import CheckpointStore
from selfsched.elastic.segment import ControlBlock, Order

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("gated_program.py")
GATED_STEP = 3


def ordered(control_block: Path) -> Order:
    """What the supervisor has told the ranks so far."""
    block = ControlBlock(control_block)
    try:
        return block.read()[0]
    finally:
        block.close()


@pytest.mark.parametrize(
    ("devices", "step_seconds"),
    # Ranks that talk with each other do so twice a second: steps of that length or more are counted.
    [(1, 0.0), (2, 0.5)],
)
def test_after_a_stop_at_most_one_more_step_is_made_and_it_is_kept(
    runs: Runs, tmp_path: Path, devices: int, step_seconds: float
) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), str(GATED_STEP), str(step_seconds)]
    run = runs.start(command, plan=f"{devices}@0", max_devices=devices)
    wait_for((tmp_path / "begun").exists, what="the step that waits")
    run.client.send_signal(signal.SIGINT)
    wait_for(lambda: ordered(run.directory / "control-0") is Order.STOP, what="the order to stop")
    (tmp_path / "go").touch()
    assert run.finish() == 130, run.output()
    made = (tmp_path / "made").read_text().count("step")
    assert GATED_STEP <= made <= GATED_STEP + 1
    kept = CheckpointStore(run.directory / "fits" / "1").newest()
    assert kept is not None
    assert (kept.step, kept.finished) == (made, False)
    assert f"checkpoint at step {made}" in run.output()
