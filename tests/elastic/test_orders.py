"""How a rank leaves: by order, by its lease's end, by a signal; and what is done before (T5, T6)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic.nasty import Seen
from elastic.tiny import Tiny, loader, make_block, order, play_tiny, terminate

from selfsched.core.events import (
    CheckpointSaved,
    FitFinished,
    FitStarted,
    Left,
    RankRaised,
    RankStarted,
    StretchTimed,
)
from selfsched.elastic import fit as fit_module
from selfsched.elastic import process as process_module
from selfsched.elastic.checkpoints import CheckpointStore
from selfsched.elastic.process import Termination
from selfsched.elastic.segment import Order, boottime
from selfsched.errors import Stopped, Yielded

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every event this rank sends."""
    events: list[Any] = []
    monkeypatch.setattr(process_module.EventWriter, "send", lambda self, event: events.append(event) or True)
    return events


def of(events: list[Any], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def newest(directory: Path, fit: int = 1) -> Any:
    return CheckpointStore(directory / "run" / "fits" / str(fit)).newest()


def test_a_yield_is_obeyed_after_the_step_in_which_it_came(tmp_path: Path, told: list[Any]) -> None:
    make_block(tmp_path)
    played = play_tiny(tmp_path, acts={3: order(tmp_path, Order.YIELD)})
    assert isinstance(played.left, SystemExit)
    assert played.left.code == 75
    assert played.trainer.global_step == 3
    assert newest(tmp_path).step == 3
    assert of(told, Left) == [Left(rank=0, step=3, reason="ordered")]
    (saved,) = of(told, CheckpointSaved)
    assert (saved.step, saved.fit) == (3, 1)
    assert saved.path == newest(tmp_path).path
    assert saved.size_bytes == newest(tmp_path).size_bytes


def test_a_worker_gets_an_exception_instead_of_an_exit(tmp_path: Path) -> None:
    make_block(tmp_path)
    played = play_tiny(tmp_path, acts={3: order(tmp_path, Order.YIELD)}, on_leave="raise")
    assert isinstance(played.left, Yielded)


def test_stop_saves_and_says_so(tmp_path: Path, told: list[Any]) -> None:
    make_block(tmp_path)
    played = play_tiny(tmp_path, acts={2: order(tmp_path, Order.STOP)}, on_leave="raise")
    assert isinstance(played.left, Stopped)
    assert of(told, Left)[0].reason == "stopped"
    assert newest(tmp_path).step == 2


def test_the_end_of_the_lease_is_heeded_without_any_order(tmp_path: Path, told: list[Any]) -> None:
    make_block(tmp_path, lease_seconds=-1.0)
    played = play_tiny(tmp_path)
    assert isinstance(played.left, SystemExit)
    assert played.trainer.global_step == 0  # before the first step: no network was asked
    assert of(told, Left)[0].reason == "deadline"


def test_a_cut_waits_for_half_accumulated_gradients(tmp_path: Path) -> None:
    make_block(tmp_path)

    class Early(Tiny):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 3:  # the first of two passes of the second step
                order(tmp_path, Order.YIELD)(self.trainer)

    played = play_tiny(tmp_path, module=Early, accumulate_grad_batches=3)
    assert played.trainer.global_step == 2
    assert played.trainer.fit_loop.epoch_loop.batch_progress.current.ready == 6


def test_a_cut_on_an_epochs_last_batch_comes_before_the_next_epoch(tmp_path: Path) -> None:
    seen = Seen()
    make_block(tmp_path)
    validation = loader(4, shuffle=False)
    play_tiny(tmp_path, acts={8: order(tmp_path, Order.YIELD)}, seen=seen, validation=validation)
    order(tmp_path, Order.GO_ON)(None)
    play_tiny(tmp_path, 1, seen=seen, validation=validation)
    assert [step for _, step, _ in seen.validations] == [8, 16]
    assert len(seen.samples) == len(set(seen.samples)) == 32


def test_a_validation_that_fits_comes_before_the_cut(tmp_path: Path) -> None:
    seen = Seen()
    make_block(tmp_path)
    play_tiny(
        tmp_path, acts={4: order(tmp_path, Order.YIELD, leave_by=boottime() + 3600)}, seen=seen,
        validation=loader(4, shuffle=False), val_check_interval=4,
    )  # fmt: skip
    assert [step for _, step, _ in seen.validations] == [4]


@pytest.mark.parametrize("at", [4, 8])
def test_a_validation_that_does_not_fit_is_owed_to_the_next_segment(tmp_path: Path, at: int) -> None:
    runs = {}
    for name, acts in (("whole", None), ("cut", at)):
        directory = tmp_path / name
        directory.mkdir()
        seen = runs[name] = Seen()
        validation = loader(4, shuffle=False)
        options: dict[str, Any] = {"validation": validation, "val_check_interval": 4, "seen": seen}
        make_block(directory)
        if acts:
            late = {at: order(directory, Order.YIELD, leave_by=boottime())}
            left = play_tiny(directory, acts=late, **options).left
            assert isinstance(left, SystemExit)
            assert len(seen.validations) == at // 4 - 1
            order(directory, Order.GO_ON)(None)
        last = play_tiny(directory, int(bool(acts)), **options)
        assert last.left is None
        seen.rates.append(("weight", 0, float(last.module.layer.weight.detach().sum())))
        seen.epoch_means.append(("loss", 0, float(last.trainer.callback_metrics["loss_epoch"]), 0.0))
    assert runs["cut"] == runs["whole"]
    assert [step for _, step, _ in runs["cut"].validations] == [4, 8, 12, 16]


def test_sigterm_saves_at_the_next_step_and_keeps_earlier_handlers(tmp_path: Path) -> None:
    heard: list[int] = []
    earlier = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    mine = signal.getsignal(signal.SIGTERM)
    try:
        played = play_tiny(tmp_path, acts={3: terminate})
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert isinstance(played.left, SystemExit)
    assert played.left.code == 75
    assert heard == [signal.SIGTERM]
    assert newest(tmp_path).step == 3


def test_an_earlier_handler_that_exits_is_heard_after_the_checkpoint(tmp_path: Path) -> None:
    def leave(number: int, frame: Any) -> None:
        raise SystemExit(9)

    earlier = signal.signal(signal.SIGTERM, leave)
    try:
        played = play_tiny(tmp_path, acts={3: terminate})
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert isinstance(played.left, SystemExit)
    assert played.left.code == 9
    assert newest(tmp_path).step == 3


def test_a_forked_worker_of_the_loader_has_nothing_to_save(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    earlier = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    termination = Termination()
    try:
        termination.install()
        monkeypatch.setattr(os, "getpid", lambda: -1)  # as a fork sees it
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert heard == [signal.SIGTERM]
    assert not termination.requested


@pytest.mark.parametrize(
    ("error", "out_of_memory"),
    [
        (ValueError("boom"), False),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (MemoryError(), True),
        (torch.OutOfMemoryError("no more of it"), True),
    ],
)
def test_what_the_users_code_raises_is_told_with_its_traceback(
    tmp_path: Path, told: list[Any], error: Exception, out_of_memory: bool
) -> None:
    def fail(trainer: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        play_tiny(tmp_path, acts={3: fail})
    (raised,) = of(told, RankRaised)
    assert (raised.type, raised.out_of_memory) == (type(error).__name__, out_of_memory)
    assert "raise error" in raised.traceback


def test_restart_checkpoints_come_by_the_clock_and_stay_two(
    tmp_path: Path, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_module, "CHECKPOINT_SECONDS", 0.0)
    kept: list[int] = []

    class Counting(Tiny):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            kept.append(len(list((tmp_path / "run" / "fits" / "1").glob("*step-*"))))

    play_tiny(tmp_path, module=Counting)
    steps = [event.step for event in of(told, CheckpointSaved)]
    assert steps == [*range(16), 16]
    assert max(kept) == 2
    assert [path.name for path in (tmp_path / "run" / "fits" / "1").glob("*step-*")] == []


def test_periodic_checkpoints_do_not_change_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noisy(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            batch[1].mul_(1 + 0.1 * torch.rand(1))
            return super().training_step(batch, batch_idx)

    (tmp_path / "whole").mkdir()
    (tmp_path / "saved").mkdir()
    (tmp_path / "plain").mkdir()
    expected = play_tiny(tmp_path / "whole", module=Noisy).module.layer.weight
    plain = play_tiny(tmp_path / "plain").module.layer.weight
    assert (plain != expected).all()
    monkeypatch.setattr(fit_module, "CHECKPOINT_SECONDS", 0.0)
    assert (play_tiny(tmp_path / "saved", module=Noisy).module.layer.weight == expected).all()


def test_what_a_fit_tells_its_supervisor(tmp_path: Path, told: list[Any]) -> None:
    play_tiny(tmp_path, validation=loader(4, shuffle=False), val_check_interval=4, spec={"max_devices": 3})
    assert isinstance(told[0], RankStarted)
    (started,) = of(told, FitStarted)
    assert (started.fit, started.step, started.planned_steps) == (1, 0, 16)
    assert (started.batches_per_epoch, started.steps_per_epoch, started.max_epochs) == (8, 8, 2)
    assert (started.global_batch, started.reference_devices, started.allowed_devices) == (2, 1, (1, 2))
    assert (started.validations, started.early_stopping, started.resume) == (4, False, "elastic")
    assert started.gradient_bytes == 5 * 4
    assert {event.stretch for event in of(told, StretchTimed)} == {"start", "checkpoint_save"}
    (finished,) = of(told, FitFinished)
    assert (finished.step, finished.epoch) == (16, 2)
    assert finished.metrics.keys() == {"loss", "loss_step", "loss_epoch", "val_loss"}
    assert finished.final_path is not None
    assert finished.final_path.is_file()


def test_a_later_segment_goes_on_from_its_step(tmp_path: Path, told: list[Any]) -> None:
    play_tiny(tmp_path, spec={"cut_at": (1, 5)})
    play_tiny(tmp_path, 1, validation=loader(4, shuffle=False), val_check_interval=4)
    first, second = of(told, FitStarted)
    assert (first.step, second.step, second.validations) == (0, 5, 3)
    assert [event.reason for event in of(told, Left)] == ["planned"]
    assert [event.stretch for event in of(told, StretchTimed)].count("checkpoint_load") == 1
