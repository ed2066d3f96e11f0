"""Faults of training jobs that people met: each played again, in the situation of its thread."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import supervisor.runs
import torch
from elastic.nasty import Numbers, Seen
from elastic.test_sampler import play
from elastic.tiny import Tiny, loader, play_tiny, terminate
from supervisor.runs import Runs, fresh_runs
from torch.utils.data import DataLoader, IterableDataset

from selfsched import SelfScheduler
from selfsched.elastic.checkpoints import CheckpointStore

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")


def store_of(directory: Path) -> CheckpointStore:
    return CheckpointStore(directory / "run" / "fits" / "1")


# --- T2: eight replicas become six, and the rest of the data does not divide ----------------------


@pytest.mark.parametrize("samples", range(48, 73))
@pytest.mark.parametrize("at", [1, 2])
def test_from_eight_to_six_replicas_no_remainder_leaks_into_the_next_epoch(samples: int, at: int) -> None:
    story: dict[str, Any] = {
        "samples": samples, "global_batch": 24, "segments": [(8, at)], "last_world": 6, "drop_last": False,
        "shuffled": True,
    }  # fmt: skip
    done = play(story, epochs=3)
    for epoch in range(3):
        batches = [shares for at, _, shares in done if at == epoch]
        assert len(batches) == -(-samples // 24), "every epoch has its length"
        seen = Counter(index for shares in batches for share in shares for index in share)
        assert seen == Counter(range(samples))


# --- T4: one warning, which says what is lost, and only where something is ------------------------


class Foreign(DataLoader):  # type: ignore[misc]
    """A loader that nobody can reposition."""


def test_a_foreign_loader_is_warned_of_once_with_what_may_be_lost(tmp_path: Path) -> None:
    fixed = {"min_devices": 1, "max_devices": 1}
    train = Foreign(Numbers(16), batch_size=2, shuffle=True)
    play_tiny(tmp_path, train=train, spec={**fixed, "cut_at": (1, 5)})
    resumed = play_tiny(tmp_path, 1, train=train, spec=fixed)
    (ours,) = [text for text in resumed.warnings if "selfsched" in text]
    assert "Foreign" in ours
    assert "samples of the cut epoch may repeat or be left out" in ours
    assert not resumed.said("mid-epoch"), "Lightning's own warning does not come on top of it"


# --- T5: nothing is saved in a signal handler -----------------------------------------------------


def test_a_signal_within_a_step_only_sets_a_flag(tmp_path: Path) -> None:
    found: list[object] = []

    class Signalled(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if self.trainer.global_step == 3 and not found:
                signal.raise_signal(signal.SIGTERM)
                found.append(store_of(tmp_path).newest())
            return super().training_step(batch, batch_idx)

    left = play_tiny(tmp_path, module=Signalled)
    assert isinstance(left.left, SystemExit)
    assert found == [None], "no checkpoint while the handler ran"
    newest = store_of(tmp_path).newest()
    assert newest is not None
    assert newest.step == 4, "the step was made whole"


def test_signals_during_a_save_leave_it_whole(tmp_path: Path) -> None:
    saves: list[int] = []

    class Signalled(Tiny):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            saves.append(self.trainer.global_step)
            if len(saves) == 1:
                signal.raise_signal(signal.SIGTERM)

    seen = Seen()
    left = play_tiny(tmp_path, module=Signalled, acts={3: terminate}, seen=seen)
    assert isinstance(left.left, SystemExit)
    assert saves == [3], "neither twice nor within another"
    assert not list(store_of(tmp_path).directory.glob(".saving-*"))
    last = play_tiny(tmp_path, 1, module=Signalled, seen=seen)
    assert last.trainer.global_step == 16
    assert len(seen.samples) == len(set(seen.samples)) == 32


# --- T6: SIGTERM is not swallowed, and its grace is kept ------------------------------------------


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    (tmp_path / "locks").mkdir()
    monkeypatch.setenv("SELFSCHED_LOCK_DIR", str(tmp_path / "locks"))
    brief = "from selfsched.elastic import attach\nattach._TERMINATION_GRACE_SECONDS = 0.5\n"
    monkeypatch.setattr(supervisor.runs, "_CLIENT", brief + supervisor.runs._CLIENT)
    yield from fresh_runs(tmp_path / "runs")


@pytest.mark.slow
def test_what_hangs_when_sigterm_comes_is_ended_after_the_grace(runs: Runs, tmp_path: Path) -> None:
    run = runs.tiny(tmp_path / "state", 10, "hang", plan="1@0")
    run.wait_for_event("progressed", step=5)
    run.client.send_signal(signal.SIGTERM)
    assert run.finish() == 75
    assert len(run.events("stop_asked")) == 1, "nobody asked twice"
    run.assert_nothing_left()


# --- T8: processes that a rank forked save nothing ------------------------------------------------


def test_a_signal_to_the_whole_group_is_one_save_by_the_rank(tmp_path: Path) -> None:
    note = tmp_path / "saves"

    class Forking(Tiny):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            with note.open("a") as file:
                file.write(f"{os.getpid()}\n")

    codes: list[int] = []

    def signal_all(trainer: Any) -> None:
        child = os.fork()
        if child == 0:
            try:  # a forked worker, which inherits the rank's handler
                signal.raise_signal(signal.SIGTERM)
            finally:
                os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        terminate(trainer)

    left = play_tiny(tmp_path, module=Forking, acts={3: signal_all})
    assert isinstance(left.left, SystemExit)
    assert codes == [-signal.SIGTERM], "the worker ends as the signal says"
    assert note.read_text().split() == [str(os.getpid())]
    newest = store_of(tmp_path).newest()
    assert newest is not None
    assert newest.step == 3


@pytest.mark.slow
def test_loader_workers_that_get_the_signal_save_nothing_either(tmp_path: Path) -> None:
    savers: list[int] = []

    class Saving(Tiny):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            savers.append(os.getpid())

    def signal_all(trainer: Any) -> None:
        workers = multiprocessing.active_children()
        assert len(workers) == 2
        for worker in workers:
            worker.terminate()
        terminate(trainer)

    left = play_tiny(tmp_path, module=Saving, train=loader(num_workers=2), acts={3: signal_all})
    assert isinstance(left.left, SystemExit)
    assert savers == [os.getpid()]
    assert store_of(tmp_path).newest() is not None


# --- T16: a stated length that is not that of this rank -------------------------------------------


class Stream(IterableDataset[Any]):
    """Says how long it is for all ranks together, and gives one rank's part."""

    def __len__(self) -> int:
        return 80

    def __iter__(self) -> Any:
        return iter(torch.randn(40, 4))


def test_a_length_not_divided_by_the_world_size_is_found_out_after_one_epoch(tmp_path: Path) -> None:
    from callback.fits import PACKAGES, module, spy, trainer

    callback = SelfScheduler(explain=False)
    planned: list[int | None] = []
    look = spy(
        PACKAGES[0], "on_train_batch_end", lambda t: planned.append(callback.model.progress().planned_steps)
    )
    fit = trainer(PACKAGES[0], tmp_path, callback, look, max_epochs=3)
    fit.fit(module(), DataLoader(Stream(), batch_size=4))
    assert fit.global_step == 30
    assert planned[:10] == [60] * 10
    assert planned[10:] == [30] * 20


# --- T20: what the script states stays as it is ---------------------------------------------------


def test_the_global_batch_and_the_schedule_are_the_scripts(tmp_path: Path) -> None:
    """A script for two devices: whatever range it is given, the same steps and rates."""
    found: list[tuple[int, list[float]]] = []

    class Scheduled(Tiny):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), 0.05)
            steps = int(self.trainer.estimated_stepping_batches)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

        def on_train_batch_end(self, *arguments: Any) -> None:
            found[-1][1].append(self.optimizers().param_groups[0]["lr"])

    for most in (1, 2, 4):
        (tmp_path / str(most)).mkdir()
        found.append((most, []))
        spec = {"min_devices": 1, "max_devices": most}
        train = loader(24, batch_size=6)
        played = play_tiny(tmp_path / str(most), module=Scheduled, devices=2, train=train, spec=spec)
        assert played.trainer.global_step == 4, "two epochs of two batches of 2 x 6"
    assert len(set(found[0][1])) == 4
    assert found[0][1] == found[1][1] == found[2][1]
