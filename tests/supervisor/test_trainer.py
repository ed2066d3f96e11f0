"""`selfsched.Trainer` where no other process is needed: wrong use, switched off, how a run's end is told."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from selfsched import Trainer
from selfsched.elastic.fit_end import raise_as_ended
from selfsched.elastic.plain_errors import lines_of
from selfsched.elastic.run import RunOptions, run_command
from selfsched.elastic.run_directory import RunOutcome
from selfsched.errors import RankFailed, Refused, Stopped, Unsupported, Yielded


class Line(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"min_devices": 0}, "needs at least 1"),
        ({"min_devices": 3, "max_devices": 2}, "is more than max_devices"),
        ({"devices": 2}, "selfsched chooses the devices"),
        ({"num_nodes": 2}, "selfsched chooses the devices"),
        ({"max_epoch": 2}, "has an argument 'max_epoch'"),
        ({"plan": "two"}, "is not DEVICES@STEP"),
        ({"validation": "half"}, "'whole' or 'sharded'"),
        ({"name": "../up"}, "name"),
    ],
)
def test_wrong_use_is_refused_when_it_is_made(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        Trainer(**arguments)


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ([], RunOptions(), "no command"),
        (["true"], RunOptions(min_devices=2, max_devices=1), "is more than max_devices"),
        (["true"], RunOptions(plan="0@0"), "needs 1 to"),
        (["true"], RunOptions(plan="1@0", fixed=True), "choose one"),
        (["true"], RunOptions(name="a b", plan="1@0"), "is no name for a job"),
        (["no-such-program"], RunOptions(plan="1@0"), "no-such-program was not found on PATH"),
        (["./no-such-program"], RunOptions(plan="1@0"), "./no-such-program was not found"),
    ],
)
def test_a_command_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], options: RunOptions, words: str
) -> None:
    monkeypatch.setenv("SELFSCHED_RUNS_DIR", str(tmp_path / "runs"))
    with pytest.raises(Refused, match=words):
        run_command(command, options)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("exists", "code"), [(False, 127), (True, 126)])
def test_a_program_that_no_shell_would_start_has_a_shells_exit_code(
    tmp_path: Path, exists: bool, code: int
) -> None:
    if exists:
        (tmp_path / "train").write_text("print()")
    with pytest.raises(Refused) as refused:
        run_command([str(tmp_path / "train")], RunOptions(plan="1@0", runs_directory=tmp_path / "runs"))
    assert refused.value.exit_code == code


@pytest.mark.parametrize("off", [True, False], ids=["SELFSCHED_OFF", "elastic=False"])
def test_switched_off_it_trains_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: bool
) -> None:
    if off:
        monkeypatch.setenv("SELFSCHED_OFF", "1")
    trainer = Trainer(
        elastic=off, max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    model = Line()
    before = model.layer.weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(model, DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=2))
    assert (trainer.global_step, trainer.current_epoch) == (4, 2)
    assert not torch.equal(model.layer.weight, before)
    assert "loss" in trainer.callback_metrics
    trainer.save_checkpoint(tmp_path / "here.ckpt")
    assert (tmp_path / "here.ckpt").exists()


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (RunOutcome("stopped", 130, step=7), Stopped), (RunOutcome("yielded", 75, step=7), Yielded),
        (RunOutcome("refused", 2, "no fsdp"), Unsupported),
        (RunOutcome("failed", 1, "rank 0 of 2 raised ValueError: boom", "Traceback\n  line\n"), RankFailed),
    ],
)  # fmt: skip
def test_each_end_is_an_exception_of_its_own_in_one_line(outcome: RunOutcome, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        raise_as_ended(outcome, Path("/runs/x"))
    *shown, last = lines_of(raised.value)  # type: ignore[arg-type]
    assert last == f"{error.__name__}: {raised.value}"
    assert shown == outcome.traceback.splitlines()
    assert "\n" not in str(raised.value)
    if outcome.step:
        assert "checkpoint at step 7" in str(raised.value)


def test_a_finished_run_raises_nothing() -> None:
    raise_as_ended(RunOutcome("finished", 0), Path("/runs/x"))
