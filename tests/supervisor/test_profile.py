"""`selfsched profile`: each device count for a moment, then the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from selfsched.core.events import FitStarted, StepsTimed, StepTiming
from selfsched.core.step_knowledge import VISIT_SECONDS, VISIT_STEPS
from selfsched.elastic.job import JobDescription
from selfsched.elastic.profile import Profile, slots
from selfsched.errors import Refused
from selfsched.launch import local_devices


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Played:
    """A profile whose segments begin and end as the supervisor would have it."""

    def __init__(self, directory: Path, most: int) -> None:
        self.clock = Clock()
        self.profile = Profile(local_devices.private_cpu_devices(most), now=self.clock)
        job = JobDescription(
            run_directory=directory,
            program="command",
            working_directory=directory,
            max_devices=most,
            profile=True,
        )
        self.profile.start(job, lambda: None)
        self.step = 0

    def wanted(self) -> int:
        return len(self.profile.wanted(self.clock.now).devices)

    def begin(self, allowed: tuple[int, ...]) -> None:
        self.profile.segment_started(1, self.profile.wanted(self.clock.now).devices)
        fit = FitStarted(
            at=self.clock.now, fit=1, step=self.step, allowed_devices=allowed, resume="elastic",
            package="lightning.pytorch", global_batch=8, reference_devices=1, planned_steps=None,
        )  # fmt: skip
        self.profile.handle(fit)

    def make_steps(self, count: int, *, warm_up: bool = False, seconds: float = 0.1) -> None:
        for _ in range(count):
            self.step += 1
            self.clock.now += seconds
            timing = StepTiming(step=self.step, seconds=seconds, warm_up=warm_up)
            self.profile.handle(StepsTimed(timings=(timing,)))


def test_it_visits_the_counts_that_keep_the_global_batch_and_ends(tmp_path: Path) -> None:
    played = Played(tmp_path, 4)
    visited = []
    for _ in range(3):
        visited.append(played.wanted())
        played.begin(allowed=(1, 2, 4))
        played.make_steps(5, warm_up=True)
        played.make_steps(VISIT_STEPS - 1)
        assert played.wanted() == visited[-1]
        played.make_steps(1)
        assert played.wanted() != visited[-1]
    assert visited == [1, 2, 4]
    assert played.profile.wanted(played.clock.now).ends_because


def test_slow_steps_are_watched_for_a_minute_only(tmp_path: Path) -> None:
    played = Played(tmp_path, 2)
    played.begin(allowed=(1, 2))
    played.clock.now += 10 * VISIT_SECONDS  # its start, compiling: no step yet
    assert played.wanted() == 1
    played.make_steps(2, seconds=VISIT_SECONDS / 4)
    assert played.wanted() == 1
    played.make_steps(3, seconds=VISIT_SECONDS / 4)
    assert played.wanted() == 2


def test_slots_share_the_cores_out_evenly() -> None:
    assert [device.cores for device in slots([0, 1, 2, 3, 4], 2)] == [(0, 1), (2, 3)]
    assert len(slots([0, 1], 4)) == 2


def test_more_devices_than_there_are_is_refused(tmp_path: Path) -> None:
    profile = Profile(local_devices.private_cpu_devices(2))
    job = JobDescription(
        run_directory=tmp_path, program="command", working_directory=tmp_path, max_devices=3, profile=True
    )
    with pytest.raises(Refused, match="this machine has 2"):
        profile.start(job, lambda: None)


PROGRAM = """
import lightning as L, torch, sys
from lightning.pytorch.demos.boring_classes import BoringModel
from selfsched import SelfScheduler
if sys.argv[1] == "fail": raise SystemExit(3)
trainer = L.Trainer(max_epochs=9999, callbacks=[SelfScheduler()], accelerator="cpu", logger=False,
                    enable_checkpointing=False, enable_model_summary=False, limit_val_batches=0)
if sys.argv[1] == "train":
    trainer.fit(BoringModel(), torch.utils.data.DataLoader(torch.randn(256, 32), batch_size=4))
"""


def profiled(tmp_path: Path, what: str, *options: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    return subprocess.run(
        [sys.executable, "-m", "selfsched", "profile", *options, "--", sys.executable, str(program), what],
        capture_output=True, text=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip


@pytest.mark.slow
def test_a_script_is_measured_on_each_count_and_not_trained_to_its_end(tmp_path: Path) -> None:
    done = profiled(tmp_path, "train", "--devices", "1-2", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [point["devices"] for point in told["measured"]] == [1, 2]
    assert set(told["parts"]) >= {"forward", "backward", "optimiser"}
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "words"), [("fail", "exit code 3"), ("nothing", "no training step was measured")]
)
def test_a_program_that_does_not_train_is_told_in_a_line(tmp_path: Path, what: str, words: str) -> None:
    done = profiled(tmp_path, what, "--devices", "1")
    assert done.returncode == 1
    assert words in done.stderr
    assert "selfsched/" not in done.stderr
    assert done.stdout == ""
