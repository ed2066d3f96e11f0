"""What holds over restarts: limits, monitors, logs, finished fits; and what stops a replay (T3, T4, T9)."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from elastic.nasty import Numbers, Seen, csv_rows, segment
from elastic.tiny import QUIET, Act, Tiny, as_rank, loader, make_block, order, play_tiny
from torch.utils.data import DataLoader

from selfsched import SelfScheduler
from selfsched.elastic import attributes, hooks
from selfsched.elastic import lightning_internals as internals
from selfsched.elastic.checkpoints import CheckpointStore
from selfsched.elastic.segment import Order


def cut(directory: Path, steps: list[int], **options: Any) -> Any:
    """A tiny run cut at these steps; the last segment."""
    directory.mkdir(exist_ok=True)
    for ordinal, step in enumerate([*steps, None]):
        made = {name: options[name]() for name in ("callbacks", "logger") if name in options}
        spec = {"cut_at": (1, step) if step else None}
        played = play_tiny(directory, ordinal, spec=spec, **{**options, **made})
        assert isinstance(played.left, SystemExit) == (step is not None)
    return played


@pytest.mark.parametrize("limit", [{"max_steps": 13, "max_epochs": -1}, {"max_epochs": 3}, {"max_steps": 9}])
def test_limits_hold_over_restarts(tmp_path: Path, limit: dict[str, int]) -> None:
    whole = cut(tmp_path / "whole", [], **limit)
    last = cut(tmp_path / "cut", [2, 5, 8], **limit)
    for found in ("global_step", "current_epoch"):
        assert getattr(last.trainer, found) == getattr(whole.trainer, found)
    assert torch.equal(last.module.layer.weight, whole.module.layer.weight)


class Clocked(pl.callbacks.Timer):  # type: ignore[misc]
    """A timer of a segment that took so many seconds more."""

    more_seconds = 0.0

    def time_elapsed(self, stage: Any = "train") -> float:
        return float(super().time_elapsed(stage)) + self.more_seconds


def test_time_spent_counts_over_restarts(tmp_path: Path) -> None:
    first, second, third = (Clocked(timedelta(hours=3)) for _ in range(3))
    first.more_seconds = second.more_seconds = 2 * 3600.0
    play_tiny(tmp_path, spec={"cut_at": (1, 5)}, callbacks=[first])
    stopped = play_tiny(tmp_path, 1, callbacks=[second])  # four hours by now
    assert stopped.trainer.global_step == 5
    assert third.time_elapsed() == 0
    assert play_tiny(tmp_path, 2, callbacks=[third]).trainer.global_step == 5


def test_an_exact_resume_in_the_middle_of_an_epoch_warns_of_nothing(tmp_path: Path) -> None:
    last = cut(tmp_path, [3], validation=loader(4, shuffle=False))
    assert not [text for text in last.warnings if "resum" in text or "checkpoint" in text.lower()]


def test_a_fit_that_stopped_early_is_not_trained_again(tmp_path: Path) -> None:
    def patience() -> list[Any]:
        return [pl.callbacks.EarlyStopping("val_loss", patience=1, min_delta=100.0)]

    validation = loader(4, shuffle=False)
    first = play_tiny(tmp_path, callbacks=patience(), validation=validation, max_epochs=9)
    assert first.trainer.global_step == 16
    again = play_tiny(
        tmp_path, 1, callbacks=patience(), validation=validation, max_epochs=9, num_sanity_val_steps=2
    )
    assert (again.trainer.num_sanity_val_steps, again.trainer.should_stop) == (2, False)
    assert again.module.seen.samples == []
    assert again.module.seen.validations == []
    assert (again.trainer.global_step, again.trainer.current_epoch) == (16, first.trainer.current_epoch)
    assert torch.equal(again.module.layer.weight, first.module.layer.weight)
    assert again.trainer.callback_metrics == first.trainer.callback_metrics
    (stopper,) = [c for c in again.trainer.callbacks if isinstance(c, pl.callbacks.EarlyStopping)]
    assert stopper.wait_count == 1


def test_early_stopping_decides_the_same_after_a_cut(tmp_path: Path) -> None:
    def patience() -> list[Any]:
        return [pl.callbacks.EarlyStopping("val_loss", patience=2, min_delta=100.0)]

    options: dict[str, Any] = {
        "callbacks": patience, "validation": loader(4, shuffle=False), "val_check_interval": 2,
        "max_epochs": 9,
    }  # fmt: skip
    whole = cut(tmp_path / "whole", [], **options)
    last = cut(tmp_path / "cut", [1, 3, 4], **options)
    assert last.trainer.global_step == whole.trainer.global_step == 6


def test_the_best_checkpoints_of_earlier_segments_are_kept(tmp_path: Path) -> None:
    def keeper() -> list[Any]:
        return [pl.callbacks.ModelCheckpoint(monitor="val_loss", save_top_k=2)]

    options: dict[str, Any] = {
        "callbacks": keeper, "validation": loader(4, shuffle=False), "val_check_interval": 2,
        "enable_checkpointing": True, "logger": lambda: pl.loggers.CSVLogger(tmp_path / "logs"),
    }  # fmt: skip
    last = cut(tmp_path, [3, 5, 11], **options)
    callback = last.trainer.checkpoint_callback
    files = sorted((tmp_path / "logs").rglob("*.ckpt"))
    assert sorted(Path(path) for path in callback.best_k_models) == files
    assert len(files) == 2
    assert not last.said("dirpath has changed")
    assert not last.said("is not empty")


def weight_average() -> list[Any]:
    """Lightning's own average of weights, from 2.6 on."""
    if not hasattr(pl.callbacks, "WeightAveraging"):
        pytest.skip("this Lightning has no WeightAveraging")
    blend = {"avg_fn": lambda average, current, _: 0.8 * average + 0.2 * current}
    return [pl.callbacks.WeightAveraging(**blend)]


@pytest.mark.parametrize(
    "options",
    [
        {"callbacks": weight_average},
        {"precision": "bf16-mixed"},
        {"gradient_clip_val": 0.1},
        {"limit_train_batches": 0.5},
        {"limit_train_batches": 3},
        {"check_val_every_n_epoch": None, "val_check_interval": 5, "validation": loader(4, shuffle=False)},
        {"train": loader(15, batch_size=4), "accumulate_grad_batches": 3},
        {"train": loader(shuffle=False)},
        {"max_epochs": 6, "train": loader(4, batch_size=4)},
        {"max_epochs": 3, "accumulate_grad_batches": 8},
        {"callbacks": lambda: [pl.callbacks.GradientAccumulationScheduler({0: 1, 1: 4})]},
        {"fast_dev_run": 4, "validation": loader(4, shuffle=False)},
        {"validation": [loader(4, shuffle=False), loader(6, shuffle=False)], "limit_val_batches": 0.5},
    ],
    ids=lambda options: "-".join(options),
)
def test_other_ways_to_train_are_cut_exactly(tmp_path: Path, options: dict[str, Any]) -> None:
    runs = {name: Seen() for name in ("whole", "cut")}
    whole = cut(tmp_path / "whole", [], seen=runs["whole"], **options)
    end = whole.trainer.global_step
    steps = sorted({max(1, end // 3), max(1, end // 2), max(1, end - 1)})
    last = cut(tmp_path / "cut", steps, seen=runs["cut"], **options)
    assert runs["cut"] == runs["whole"]
    assert torch.equal(last.module.layer.weight, whole.module.layer.weight)
    assert last.trainer.callback_metrics == whole.trainer.callback_metrics


class OneCycle(Tiny):
    """Asks for the loader before Lightning has loaded the checkpoint."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.05)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_asked_for_before_the_restore_starts_right(tmp_path: Path, workers: int) -> None:
    runs = {name: Seen() for name in ("whole", "cut")}
    options: dict[str, Any] = {"module": OneCycle, "train": loader(num_workers=workers)}
    whole = cut(tmp_path / "whole", [], seen=runs["whole"], **options)
    last = cut(tmp_path / "cut", [3, 11], seen=runs["cut"], **options)
    assert runs["cut"].samples == runs["whole"].samples
    assert torch.equal(last.module.layer.weight, whole.module.layer.weight)


def test_a_checkpoint_of_the_users_own_is_where_the_first_segment_starts(tmp_path: Path) -> None:
    before = play_tiny(tmp_path, max_epochs=1)
    path = tmp_path / "own.ckpt"
    before.trainer.save_checkpoint(path)
    module = Tiny()
    with as_rank(segment(tmp_path / "later", 0)):
        trainer = pl.Trainer(**QUIET, default_root_dir=tmp_path)
        trainer.fit(module, loader(), ckpt_path=path)
    assert trainer.global_step == 16
    assert {epoch for _, epoch, _ in module.seen.samples} == {1}


def test_steps_that_were_lost_leave_no_line_in_the_log(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    play_tiny(whole, logger=pl.loggers.CSVLogger(whole, name="csv"), log_every_n_steps=1)

    def crash(trainer: Any) -> None:
        raise RuntimeError("a rank died")

    def log() -> Any:
        return pl.loggers.CSVLogger(broken, name="csv")

    play_tiny(broken, spec={"cut_at": (1, 5)}, logger=log(), log_every_n_steps=1)
    with pytest.raises(RuntimeError, match="a rank died"):
        play_tiny(broken, 1, acts={9: crash}, logger=log(), log_every_n_steps=1)
    play_tiny(broken, 2, logger=log(), log_every_n_steps=1)
    assert csv_rows(broken) == csv_rows(whole)


def test_another_training_in_the_place_of_a_recorded_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play_tiny(tmp_path, spec={"cut_at": (1, 5)})
    left = play_tiny(tmp_path, 1, module=OneCycle).left
    assert isinstance(left, SystemExit)
    assert left.code == 2
    assert "trained a Tiny in an earlier segment and a OneCycle now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (loader(18), "had 16 samples in the segment before and has 18 now"),
        (loader(batch_size=4), "global batch was 2 in the segment before and is 4 now"),
    ],
)
def test_other_data_in_a_later_segment_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], train: Any, words: str
) -> None:
    play_tiny(tmp_path, spec={"cut_at": (1, 5)})
    left = play_tiny(tmp_path, 1, train=train).left
    assert isinstance(left, SystemExit)
    assert left.code == 2
    assert words in capsys.readouterr().err


def test_a_seed_drawn_anew_by_the_script_does_not_change_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = iter(["1", "2"])

    def seed_by_the_clock(*_: Any, **__: Any) -> None:
        monkeypatch.setenv("PL_GLOBAL_SEED", next(seeds))

    monkeypatch.setattr(pl, "seed_everything", seed_by_the_clock)
    seen = Seen()
    cut(tmp_path, [5], seen=seen)
    assert len(seen.samples) == len(set(seen.samples)) == 32


def test_no_noise_is_replayed_after_a_change_of_the_world_size(tmp_path: Path) -> None:
    drawn: list[float] = []

    class Drawing(Tiny):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            drawn.append(float(torch.rand(1)))

    play_tiny(tmp_path, spec={"cut_at": (1, 5)}, module=Drawing)
    store = tmp_path / "run" / "fits" / "1" / "step-000000000005"
    own = torch.load(store / "selfsched.pt", weights_only=True)
    own["ranks"] = own["ranks"] * 2  # as if two ranks had written it
    torch.save(own, store / "selfsched.pt")
    manifest = json.loads((store / "manifest.json").read_text())
    manifest["sizes"]["selfsched.pt"] = (store / "selfsched.pt").stat().st_size
    (store / "manifest.json").write_text(json.dumps(manifest))
    play_tiny(tmp_path, 1, module=Drawing)
    assert len(set(drawn)) == 16


class Augmented(Numbers):
    """Each sample comes with a random number of its worker's."""

    def __getitem__(self, index: int) -> Any:
        index, inputs, _ = super().__getitem__(index)
        return index, inputs, torch.rand(())


def test_workers_do_not_replay_their_noise(tmp_path: Path) -> None:
    drawn: list[float] = []

    class Noting(Tiny):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            drawn.extend(batch[2].tolist())

    train = DataLoader(Augmented(16), batch_size=2, shuffle=True, num_workers=1)
    cut(tmp_path, [5, 11], train=train, module=Noting)
    assert len(drawn) == len(set(drawn)) == 32


def test_without_a_launcher_nothing_is_wrapped_and_training_is_untouched(tmp_path: Path) -> None:
    init, fit = pl.Trainer.__init__, pl.Trainer.fit
    callback = SelfScheduler()
    assert (pl.Trainer.__init__, pl.Trainer.fit) == (init, fit)
    weights = []
    for callbacks in ([], [callback]):
        pl.seed_everything(7, verbose=False)
        module = Tiny()
        pl.Trainer(**QUIET, callbacks=callbacks, default_root_dir=tmp_path).fit(module, loader())
        weights.append(module.layer.weight)
    assert torch.equal(*weights)


def test_installing_twice_wraps_once_and_uninstalling_puts_all_back(tmp_path: Path) -> None:
    init, fit = pl.Trainer.__init__, pl.Trainer.fit
    spec = segment(tmp_path / "run", 0)
    hooks.install(spec)
    wrapped = pl.Trainer.fit
    process = hooks.current()
    hooks.install(spec)
    assert pl.Trainer.fit is wrapped
    assert hooks.current() is process
    hooks.uninstall()
    assert (pl.Trainer.__init__, pl.Trainer.fit) == (init, fit)
    assert hooks.current() is None


def test_a_lightning_without_its_way_out_is_left_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internals, "exit_exception", lambda package: internals.LeaveFit)
    make_block(tmp_path)
    runs = [Seen(), Seen()]
    acts: dict[int, Act] = {5: order(tmp_path, Order.YIELD)}
    first = play_tiny(tmp_path, acts=acts, seen=runs[0])
    assert isinstance(first.left, SystemExit)
    assert first.left.code == 75
    order(tmp_path, Order.GO_ON)(None)
    last = play_tiny(tmp_path, 1, seen=runs[0])
    (tmp_path / "whole").mkdir()
    whole = play_tiny(tmp_path / "whole", seen=runs[1])
    assert runs[0] == runs[1]
    assert torch.equal(last.module.layer.weight, whole.module.layer.weight)


def test_the_same_trainer_may_fit_twice(tmp_path: Path) -> None:
    results = []
    for cuts in ([None], [(1, 5), (2, 12), None]):
        directory = tmp_path / str(len(cuts))
        directory.mkdir()
        for ordinal, at in enumerate(cuts):
            pl.seed_everything(7, verbose=False)
            module = Tiny()
            with as_rank(segment(directory / "run", ordinal, cut_at=at)):
                trainer = pl.Trainer(**{**QUIET, "max_epochs": 1}, default_root_dir=directory)
                try:
                    trainer.fit(module, loader())
                    trainer.fit_loop.max_epochs = 2
                    trainer.fit(module, loader())
                    results.append((trainer.global_step, module.layer.weight))
                except SystemExit as left:
                    assert left.code == 75 and at is not None  # noqa: PT018, PT017
    assert results[0][0] == results[1][0] == 16
    assert torch.equal(results[0][1], results[1][1])


def test_a_wish_to_stop_survives_the_cut(tmp_path: Path) -> None:
    def stop(trainer: Any) -> None:
        trainer.should_stop = True

    play_tiny(tmp_path, acts={2: stop}, spec={"cut_at": (1, 4)}, min_epochs=2, max_epochs=5)
    last = play_tiny(tmp_path, 1, min_epochs=2, max_epochs=5)
    assert last.trainer.global_step == 16


def test_a_save_that_waits_for_a_validation_survives_the_cut(tmp_path: Path) -> None:
    kept = []
    for name, steps in (("whole", []), ("cut", [7])):
        kept_in = tmp_path / name / "kept"

        def keeper(kept_in: Path = kept_in) -> list[Any]:
            every_third = {"every_n_train_steps": 3, "save_on_train_epoch_end": False}
            return [pl.callbacks.ModelCheckpoint(kept_in, monitor="val_loss", **every_third)]

        options: dict[str, Any] = {"callbacks": keeper, "enable_checkpointing": True, "max_epochs": 1}
        cut(tmp_path / name, steps, validation=loader(4, shuffle=False), **options)
        kept.append(sorted(path.name for path in kept_in.iterdir()))
    assert kept[0] == kept[1] == ["epoch=0-step=8.ckpt"]


class Running(Tiny):
    """Keeps its own books, as modules do that do not log."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.losses: list[torch.Tensor] = []
        self.table = {"batches": 0, "best": torch.tensor(1e9)}
        self.configured = torch.zeros(3)
        self.world = 0

    def on_train_start(self) -> None:
        self.world = self.trainer.world_size

    def on_train_epoch_start(self) -> None:
        self.indices: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss)
        self.indices += batch[0].tolist()
        self.table["batches"] += 1
        self.table["best"] = torch.minimum(self.table["best"], loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        mean = float(torch.stack(self.losses).mean().detach())
        self.seen.rates.append((str(sorted(self.indices)), self.table["batches"], mean))
        self.losses.clear()


def test_running_lists_and_counters_of_a_module_survive_the_cut(tmp_path: Path) -> None:
    runs = {name: Seen() for name in ("whole", "cut")}
    whole = cut(tmp_path / "whole", [], seen=runs["whole"], module=Running).module
    last = cut(tmp_path / "cut", [3, 5, 8, 12], seen=runs["cut"], module=Running).module
    assert runs["cut"] == runs["whole"]
    assert last.table == whole.table
    store = CheckpointStore(tmp_path / "cut" / "run" / "fits" / "1").newest()
    assert store is not None
    assert set(store.own_fields()["ranks"][0]["attributes"]) == {"indices", "table"}


def test_a_large_attribute_is_no_running_value(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Running()
    before = attributes.fingerprints(module)
    module.table["best"] = torch.zeros(4)
    module.losses = [torch.zeros(1000)]
    monkeypatch.setattr(attributes, "LIMIT_BYTES", 1000)
    assert set(attributes.changed(module, before)) == {"table"}
