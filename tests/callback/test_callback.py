"""`SelfScheduler` in real Trainers: what it logs, shows, says, keeps, and that it never hurts."""

from __future__ import annotations

import csv
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from callback.fits import PACKAGES, loader, module, spy, stream_loader, trainer

from selfsched import SelfScheduler
from selfsched.callback import KnowledgeLost, MeasuringStopped
from selfsched.errors import InvalidSettings

LIGHTNING = PACKAGES[0]


def rows(directory: Path) -> list[dict[str, str]]:
    (path,) = directory.rglob("metrics.csv")
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_fit_is_measured_modelled_logged_and_explained(
    package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = SelfScheduler()
    logger = import_module(f"{package}.loggers").CSVLogger(tmp_path)
    settled = spy(package, "on_train_batch_end", lambda _: callback.model)  # waits for what is under way
    fit = trainer(package, tmp_path, callback, settled, max_epochs=5, logger=logger, log_every_n_steps=10)
    fit.fit(module(package, step_seconds=0.003), loader(20), loader(2))

    assert callback.model is not None
    progress = callback.model.progress()
    assert (progress.step, progress.planned_steps, progress.fraction_done) == (100, 100, 1.0)
    logged = [row for row in rows(tmp_path) if row["selfsched/devices"]]
    assert [int(row["step"]) for row in logged] == list(range(9, 100, 10))
    assert all(float(row["selfsched/step_seconds"]) > 0.003 for row in logged)
    assert all(float(row["selfsched/data_seconds"]) >= 0 for row in logged)
    quantiles = [[row[f"selfsched/remaining_seconds_{q}"] for q in ("p10", "p50", "p90")] for row in logged]
    known = [[float(value) for value in three] for three in quantiles if three[1]]
    assert known
    assert all(low <= middle <= high for low, middle, high in known)
    said = capsys.readouterr().out
    assert "selfsched: A step takes " in said
    assert set(callback.model.explanation().parts) >= {"data", "forward", "backward", "optimiser", "other"}


def test_the_trainer_is_left_as_it_was_found(tmp_path: Path) -> None:
    before: dict[str, Any] = {}
    first = spy(LIGHTNING, "on_fit_start", lambda t: before.update(vars(t)))
    fit = trainer(
        LIGHTNING, tmp_path, first, SelfScheduler(explain=False), max_steps=5, enable_progress_bar=True
    )
    bar = fit.progress_bar_callback
    fit.fit(module(), loader())
    assert set(vars(fit)) <= set(before) | {"_results"}
    assert "save_checkpoint" not in vars(fit)
    assert "get_metrics" not in vars(bar)
    assert "_on_before_fetch" not in vars(fit.fit_loop.epoch_loop)


@pytest.mark.parametrize("kind", ["TQDMProgressBar", "RichProgressBar"])
def test_the_predicted_finish_is_in_the_bar(kind: str, tmp_path: Path) -> None:
    bar = getattr(import_module(f"{LIGHTNING}.callbacks"), kind)()
    shown: list[dict[str, Any]] = []
    callback = SelfScheduler(explain=False)

    def look(trainer: Any) -> None:
        assert callback.model is not None  # waits for what is under way
        shown.append(bar.get_metrics(trainer, trainer.lightning_module))

    fit = trainer(
        LIGHTNING, tmp_path, bar, callback, spy(LIGHTNING, "on_train_batch_end", look), max_steps=150,
        enable_progress_bar=True,
    )  # fmt: skip
    fit.fit(module(step_seconds=0.003), loader(300))
    assert "finish" not in shown[0]
    assert shown[-1]["finish"].endswith(" left")


def test_without_a_bar_or_a_logger_nothing_is_shown_or_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = SelfScheduler(log=False, progress_bar=False, explain=False)
    trainer(LIGHTNING, tmp_path, callback, max_steps=5).fit(module(), loader())
    assert callback.model is not None
    assert callback.model.progress().step == 5
    assert "selfsched" not in capsys.readouterr().out


# --- T14: one bar over all segments ---------------------------------------------------------


def test_after_a_resume_within_an_epoch_the_bar_knows_where_it_began_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "five.ckpt"
    first = trainer(LIGHTNING, tmp_path, SelfScheduler(explain=False), max_steps=5)
    first.fit(module(), loader(10))
    first.save_checkpoint(path)
    bar = import_module(f"{LIGHTNING}.callbacks").TQDMProgressBar()
    seen: list[tuple[int, int | None, int]] = []

    def look(t: Any) -> None:
        tqdm_bar = bar.train_progress_bar
        seen.append((tqdm_bar.initial, tqdm_bar.total, t.global_step))

    again = trainer(
        LIGHTNING, tmp_path, bar, SelfScheduler(explain=False), spy(LIGHTNING, "on_train_batch_end", look),
        max_steps=8, enable_progress_bar=True,
    )  # fmt: skip
    again.fit(module(), loader(10), ckpt_path=path, weights_only=False)
    assert seen[0] == (5, 8, 6)


# --- T9, T14: knowledge and limits over a resume ------------------------------------------------


def test_what_was_learned_goes_on_after_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "cut.ckpt"
    first = SelfScheduler(explain=False)
    fit = trainer(LIGHTNING, tmp_path, first, max_steps=40)
    fit.fit(module(), loader(20))
    fit.save_checkpoint(path)
    second = SelfScheduler(explain=False)
    again = trainer(LIGHTNING, tmp_path, second, max_steps=80)
    again.fit(module(), loader(20), ckpt_path=path, weights_only=False)
    assert first.model is not None
    assert second.model is not None
    assert second.model.progress().step == 80
    steps = [sum(seen.steps.values()) for seen in (first.model.explanation(), second.model.explanation())]
    assert steps[1] > steps[0]
    assert second.state_dict()["samples"] == 80 * 4


def test_the_kept_state_is_plain_and_loads_as_weights_only(tmp_path: Path) -> None:
    path = tmp_path / "plain.ckpt"
    callback = SelfScheduler(explain=False)
    fit = trainer(LIGHTNING, tmp_path, callback, max_steps=5)
    fit.fit(module(), loader())
    torch.save(callback.state_dict(), path)
    assert torch.load(path, weights_only=True)["samples"] == 20


@pytest.mark.parametrize("state", [[1, 2, 3], "abc", 7, None])
def test_a_state_that_is_no_mapping_is_said_and_learned_anew(state: Any) -> None:
    callback = SelfScheduler()
    with pytest.warns(KnowledgeLost, match="no mapping"):
        callback.load_state_dict(state)
    assert callback.state_dict() == {}


@pytest.mark.parametrize("state", [{"model": [1], "samples": 8}, {"model": {"version": 3}, "samples": "x"}])
def test_knowledge_that_cannot_be_used_is_said_once_and_measuring_goes_on(
    state: dict[str, Any], tmp_path: Path
) -> None:
    callback = SelfScheduler(explain=False)
    callback.load_state_dict(state)
    fit = trainer(LIGHTNING, tmp_path, callback, max_steps=5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit.fit(module(), loader())
    assert [w.category for w in caught if w.category in (KnowledgeLost, MeasuringStopped)] == [KnowledgeLost]
    assert callback.state_dict()["model"]["ledger"]["step"] == 5


def test_a_second_fit_begins_a_new_row_of_steps(tmp_path: Path) -> None:
    callback = SelfScheduler(explain=False)
    for steps in (5, 7):
        trainer(LIGHTNING, tmp_path, callback, max_steps=steps).fit(module(), loader())
    assert callback.model is not None
    assert callback.model.fit == 2
    assert callback.model.progress().planned_steps == 7


# --- T15, T16 -------------------------------------------------------------------------------------


def test_max_steps_with_an_iterable_dataset_is_the_limit_that_is_counted(tmp_path: Path) -> None:
    callback = SelfScheduler(explain=False)
    planned: list[int | None] = []
    look = spy(
        LIGHTNING, "on_train_batch_end", lambda t: planned.append(callback.model.progress().planned_steps)
    )
    trainer(LIGHTNING, tmp_path, callback, look, max_steps=7, max_epochs=-1).fit(module(), stream_loader())
    assert planned == [7] * 7


def test_an_iterable_dataset_of_unknown_length_is_unknown_and_learned_after_one_epoch(
    tmp_path: Path,
) -> None:
    callback = SelfScheduler(explain=False)
    planned: list[int | None] = []
    look = spy(
        LIGHTNING, "on_train_batch_end", lambda t: planned.append(callback.model.progress().planned_steps)
    )
    trainer(LIGHTNING, tmp_path, callback, look, max_epochs=3).fit(module(), stream_loader(batches=6))
    assert planned[:6] == [None] * 6
    assert planned[6:] == [18] * 12


def test_a_limit_of_time_is_known_from_lightnings_timer(tmp_path: Path) -> None:
    callback = SelfScheduler(explain=False)
    fit = trainer(LIGHTNING, tmp_path, callback, max_time={"hours": 1}, max_epochs=-1, max_steps=5)
    fit.fit(module(), stream_loader())
    assert callback.model is not None
    assert callback.model.progress().planned_steps == 5
    assert callback.model.known.ledger.max_seconds == pytest.approx(3600)


# --- it never hurts -------------------------------------------------------------------------------


class Nasty:
    """A batch whose length cannot be asked for."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    @property
    def shape(self) -> Any:
        raise RuntimeError("this batch has no shape")


def test_a_fault_in_measuring_is_said_once_and_training_goes_on(tmp_path: Path) -> None:
    callback = SelfScheduler()
    model = module()
    model.training_step = lambda batch, batch_idx: model.layer(batch.values).pow(2).mean()
    nasty = torch.utils.data.DataLoader(
        torch.randn(12, 4), batch_size=4, collate_fn=lambda samples: Nasty(torch.stack(samples))
    )
    fit = trainer(LIGHTNING, tmp_path, callback, max_epochs=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit.fit(model, nasty)
    said = [warning for warning in caught if warning.category is MeasuringStopped]
    assert len(said) == 1
    assert "RuntimeError: this batch has no shape" in str(said[0].message)
    assert fit.global_step == 6
    assert "save_checkpoint" not in vars(fit)


def test_a_fault_of_the_model_is_said_once_and_training_goes_on(tmp_path: Path) -> None:
    callback = SelfScheduler()

    def spoil(_: Any) -> None:
        assert callback._model is not None
        callback._model.known.steps = None  # type: ignore[assignment]

    fit = trainer(LIGHTNING, tmp_path, callback, spy(LIGHTNING, "on_train_start", spoil), max_steps=80)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit.fit(module(step_seconds=0.003), loader(100))
    said = [warning for warning in caught if warning.category is MeasuringStopped]
    assert len(said) == 1
    assert "AttributeError" in str(said[0].message)
    assert fit.global_step == 80


def test_a_users_error_passes_through_and_the_watches_are_taken_off(tmp_path: Path) -> None:
    model = module()

    def fail(batch: Any, batch_idx: int) -> Any:
        raise ZeroDivisionError("mine")

    model.training_step = fail
    fit = trainer(LIGHTNING, tmp_path, SelfScheduler(), max_steps=3)
    with pytest.raises(ZeroDivisionError, match="mine"):
        fit.fit(model, loader())
    assert "save_checkpoint" not in vars(fit)


def test_an_argument_that_is_no_bool_is_named() -> None:
    with pytest.raises(InvalidSettings, match="log='yes'"):
        SelfScheduler(log="yes")  # type: ignore[arg-type]


def test_switched_off_it_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFSCHED_OFF", "1")
    callback = SelfScheduler()
    trainer(LIGHTNING, tmp_path, callback, max_steps=3).fit(module(), loader())
    assert callback.model is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SELFSCHED_BROKER", "http://127.0.0.1:9", "holds no lease"),
        ("SELFSCHED_BROKER", "ftp://x", "is no address"),
        ("SELFSCHED_BROCKER", "x", "SELFSCHED_BROCKER"),
    ],
)
def test_a_setting_without_effect_is_said_and_training_goes_on(
    name: str, value: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    callback = SelfScheduler(explain=False)
    fit = trainer(LIGHTNING, tmp_path, callback, max_steps=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit.fit(module(), loader())
    assert sum(said in str(warning.message) for warning in caught) == 1
    assert fit.global_step == 3
    assert callback.model is not None


def test_our_checkpoints_and_validations_are_told_apart_from_steps(tmp_path: Path) -> None:
    callback = SelfScheduler(explain=False)
    checkpoints = import_module(f"{LIGHTNING}.callbacks").ModelCheckpoint
    save = checkpoints(tmp_path, every_n_train_steps=5, save_top_k=-1)
    fit = trainer(LIGHTNING, tmp_path, callback, save, max_epochs=2, enable_checkpointing=True)
    fit.fit(module(), loader(10), loader(2))
    assert callback.model is not None
    spans = callback.model.known.ledger.spans
    assert spans["validation"].count == 2
    assert spans["checkpoint_save"].count == 4
    assert spans["epoch_end"].count == 1
    assert callback.model.known.restart.checkpoint_bytes > 1000


def test_measuring_neither_synchronises_a_device_nor_calls_a_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("all_reduce", "broadcast", "barrier", "all_gather", "reduce", "all_gather_object"):
        monkeypatch.setattr(torch.distributed, name, lambda *_, _name=name, **__: calls.append(_name))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: calls.append("synchronize"))
    callback = SelfScheduler(explain=False)
    trainer(LIGHTNING, tmp_path, callback, max_epochs=3).fit(module(), loader(20), loader(2))
    assert callback.model is not None
    assert callback.model.progress().step == 60
    assert calls == []


def test_where_no_step_is_counted_the_reason_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = module()
    model.automatic_optimization = False

    def step(batch: Any, batch_idx: int) -> None:
        optimiser = model.optimizers(use_pl_optimizer=False)
        optimiser.zero_grad()
        model.manual_backward(model.layer(batch).pow(2).mean())
        optimiser.step()

    model.training_step = step
    trainer(LIGHTNING, tmp_path, SelfScheduler(), max_epochs=1).fit(model, loader(6))
    said = capsys.readouterr().out
    assert "global_step did not rise in 6 batches" in said
    assert "use_pl_optimizer=False" in said
