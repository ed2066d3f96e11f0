"""A rank without torch that speaks the contract of a segment: quick to start, easy to kill.

`tiny_rank.py STATE_FILE STEPS [BEHAVIOUR]`: counts steps from where STATE_FILE says, and
leaves with a "checkpoint" (the number in STATE_FILE) when told to. Behaviours happen at
half of the steps: `raise:RANK` (the others lose it), `raise-first:RANK` (before rank 0 has said
that its fit began), `exit:CODE`, `refuse`, `hang` (for ever in one step),
`child` (starts a grandchild at once, which outlives it unless somebody ends it),
`die:RANK` (kills itself every time), `port` (as if its port was taken, the first time).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from selfsched.core.events import (
    CheckpointSaved,
    FitFinished,
    FitStarted,
    Left,
    Progressed,
    RankRaised,
    RankRefused,
    RankStarted,
)
from selfsched.elastic.events import EventWriter
from selfsched.elastic.segment import ControlBlock, Order, SegmentSpec

STEP_SECONDS = 0.01


def main(state: Path, steps: int, behaviour: str) -> int:
    spec = SegmentSpec.from_environment()
    assert spec is not None
    rank = int(os.environ["RANK"])
    writer = EventWriter(spec.events_socket)
    control = ControlBlock(spec.control_block)
    writer.send(RankStarted(rank=rank, pid=os.getpid()))
    step = int(state.read_text()) if state.exists() else 0
    if rank == 0:
        if behaviour.startswith("raise-first"):
            wait_for_loss(spec)
        writer.send(
            FitStarted(
                fit=1, package="none", global_batch=8, reference_devices=1, step=step, planned_steps=steps
            )
        )
    print(f"rank {rank} of {spec.world_size} goes on from {step}", flush=True)
    if behaviour == "child":
        child = subprocess.Popen(["sleep", "600"])
        (spec.run_directory / f"child-{rank}").write_text(str(child.pid))
    while step < steps:
        time.sleep(STEP_SECONDS)
        step += 1
        if rank == 0:
            writer.send(Progressed(fit=1, step=step, epoch=0, samples=8 * step))
        if step == steps // 2:
            code = misbehave(behaviour, rank, writer, spec)
            if code is not None:
                return code
        if spec.cut_at == (1, step) or control.read()[0] is not Order.GO_ON:
            return leave(state, step, rank, writer, spec, control)
    if rank == 0:
        writer.send(FitFinished(fit=1, step=step, epoch=1, metrics={}))
    writer.close()
    return 0


def leave(
    state: Path, step: int, rank: int, writer: EventWriter, spec: SegmentSpec, control: ControlBlock
) -> int:
    if rank == 0:
        state.write_text(str(step))
        writer.send(CheckpointSaved(fit=1, step=step, path=state, size_bytes=1, seconds=0.0))
    reason = "planned" if spec.cut_at == (1, step) else "ordered"
    writer.send(Left(rank=rank, step=step, reason="stopped" if control.read()[0] is Order.STOP else reason))
    writer.close()
    return 75


def wait_for_loss(spec: SegmentSpec) -> None:
    """Until the rank that raises has done so: a connection breaks after that, never before."""
    while not (spec.run_directory / "lost").exists():
        time.sleep(STEP_SECONDS)


def misbehave(behaviour: str, rank: int, writer: EventWriter, spec: SegmentSpec) -> int | None:
    name, _, value = behaviour.partition(":")
    if name in ("raise", "raise-first") and rank == int(value):
        writer.send(
            RankRaised(rank=rank, fit=1, type="ValueError", message="boom", traceback="Traceback: here\n")
        )
        writer.close()
        (spec.run_directory / "lost").touch()
        return 1
    if name in ("raise", "raise-first"):  # the others lose it, and not before
        wait_for_loss(spec)
        words = "Connection closed by peer"
        writer.send(RankRaised(rank=rank, type="RuntimeError", message=words, traceback="Traceback: there\n"))
        writer.close()
        return 1
    if name == "port" and spec.ordinal == 0:
        words = "EADDRINUSE, the server socket has failed to listen"
        writer.send(RankRaised(rank=rank, type="DistNetworkError", message=words, traceback=""))
        writer.close()
        return 1
    if name == "refuse":
        writer.send(RankRefused(rank=rank, message="fsdp is not elastic yet"))
        writer.close()
        return 2
    if name == "exit":
        writer.close()
        print("something is wrong here", file=sys.stderr, flush=True)
        return int(value)
    if name == "hang":
        signal.pause()
    if name == "die" and rank == int(value):
        os.kill(os.getpid(), signal.SIGKILL)
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""))
