"""The table of what is supported: the document, and what the code does with each row (T16, T20)."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from elastic.nasty import Numbers, Seen, segment
from elastic.test_sampler import Restless
from elastic.tiny import QUIET, Played, Tiny, as_rank, loader, play_tiny
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from selfsched.elastic import support
from selfsched.elastic.hooks import devices_named
from selfsched.elastic.support import CASES, case

DOCUMENT = Path(__file__).parents[2] / "docs" / "support.md"
FIXED = {"min_devices": 1, "max_devices": 1}


def test_the_document_is_the_table() -> None:
    assert DOCUMENT.read_text() == support.as_markdown()


def test_each_row_has_a_name_of_its_own() -> None:
    assert len({row.code for row in CASES}) == len(CASES)


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return (Numbers()[index] for index in range(8))


class OtherLoader(DataLoader):  # type: ignore[misc]
    pass


class Varying(Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0], [1, 2], [3])

    def __len__(self) -> int:
        return 3


REFUSED: dict[str, Callable[[], Any]] = {
    "iterable_dataset": lambda: DataLoader(Stream(), batch_size=2),
    "loader_subclass": lambda: OtherLoader(Numbers(), batch_size=2),
    "own_batch_sampler": lambda: DataLoader(Numbers(), batch_sampler=Varying()),
    "several_loaders": lambda: {"a": loader(), "b": loader()},
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_cannot_be_repositioned_is_refused_in_one_line(
    code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = play_tiny(tmp_path, train=REFUSED[code]())
    assert_refused(played, capsys, case(code).rule)


def assert_refused(played: Played, capsys: pytest.CaptureFixture[str], words: str) -> None:
    assert isinstance(played.left, SystemExit)
    assert played.left.code == 2
    assert played.module.seen.samples == []
    complaint = capsys.readouterr().err.strip().splitlines()[-1]
    assert complaint.startswith("selfsched: ")
    assert words in complaint


@pytest.mark.parametrize("code", ["iterable_dataset", "loader_subclass"])
def test_on_fixed_devices_it_runs_and_says_that_it_resumes_by_count(code: str, tmp_path: Path) -> None:
    played = play_tiny(tmp_path, train=REFUSED[code](), spec=FIXED)
    assert played.left is None
    assert played.said("[counted_position]")
    assert len(played.module.seen.samples) >= 16


def test_batch_size_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played = play_tiny(tmp_path, train=DataLoader(Numbers(), batch_size=None))
    assert_refused(played, capsys, case("own_batch_sampler").rule)


def test_a_plain_batch_sampler_object_of_torch_is_understood(tmp_path: Path) -> None:
    numbers = Numbers(8)
    batches = BatchSampler(SequentialSampler(numbers), 2, drop_last=False)
    played = play_tiny(tmp_path, train=DataLoader(numbers, batch_sampler=batches))
    assert [index for *_, index in played.module.seen.samples[:8]] == list(range(8))


def test_reloading_loaders_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played = play_tiny(tmp_path, reload_dataloaders_every_n_epochs=1)
    assert_refused(played, capsys, case("reload_loaders").rule)


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed_stage_2"])
def test_sharded_strategies_are_refused_by_name(
    strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(play_tiny(tmp_path, strategy=strategy), capsys, f'strategy="{strategy}"')


def test_a_sharded_strategy_object_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class FSDPStrategy:
        pass

    assert_refused(play_tiny(tmp_path, strategy=FSDPStrategy()), capsys, "the strategy FSDPStrategy")


def test_another_strategy_object_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strategy = pl.strategies.SingleDeviceStrategy("cpu")
    assert_refused(play_tiny(tmp_path, strategy=strategy), capsys, case("single_device_strategy").rule)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["auto", "ddp", "ddp_spawn", "ddp_fork", "ddp_notebook", "object"])
def test_every_kind_of_ddp_runs_as_a_rank_of_ours(strategy: str, tmp_path: Path) -> None:
    asked = pl.strategies.DDPStrategy(start_method="spawn") if strategy == "object" else strategy
    try:
        played = play_tiny(tmp_path, strategy=asked, devices=2)
        assert played.left is None
        assert played.trainer.global_step == 8  # two devices of batch 2 make a global batch of 4
        assert played.trainer.world_size == 1
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def test_a_global_batch_that_nothing_divides_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = play_tiny(tmp_path, train=loader(batch_size=7), spec={"min_devices": 2, "max_devices": 6})
    assert_refused(played, capsys, "a global batch of 7 (batch_size x 1 device(s))")


def test_a_trainer_made_before_the_callback_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = pl.Trainer(**QUIET, default_root_dir=tmp_path)
    module = Tiny()
    with as_rank(segment(tmp_path / "run", 0)), pytest.raises(SystemExit) as left:
        trainer.fit(module, loader())
    assert_refused(Played(module, left=left.value), capsys, "put SelfScheduler() in Trainer(callbacks=[...])")


def test_an_own_sampler_is_degraded_and_one_that_is_not_steady_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").mkdir()
    weighted = WeightedRandomSampler([1.0] * 16, 16)
    played = play_tiny(tmp_path / "a", train=loader(shuffle=False, sampler=weighted))
    assert played.said("[own_sampler]: WeightedRandomSampler")
    assert played.trainer.global_step == 16
    refused = play_tiny(tmp_path, train=loader(shuffle=False, sampler=Restless()))
    assert_refused(refused, capsys, "Restless is not reproducible")


def test_an_own_sampler_goes_on_exactly(tmp_path: Path) -> None:
    runs = {}
    for name, cuts in (("whole", []), ("cut", [3, 11])):
        (tmp_path / name).mkdir()
        runs[name] = Seen()
        for ordinal, cut in enumerate([*cuts, None]):
            sampler = WeightedRandomSampler([float(1 + index % 5) for index in range(16)], 16)
            play_tiny(
                tmp_path / name, ordinal, train=loader(shuffle=False, sampler=sampler), seen=runs[name],
                spec={"cut_at": (1, cut) if cut else None},
            )  # fmt: skip
    assert runs["cut"].samples == runs["whole"].samples


def test_a_distributed_sampler_of_the_script_means_the_whole_dataset(tmp_path: Path) -> None:
    numbers = Numbers(16)
    sampler = DistributedSampler(numbers, num_replicas=2, rank=0, shuffle=False)
    played = play_tiny(tmp_path, train=DataLoader(numbers, batch_size=2, sampler=sampler))
    assert [index for *_, index in played.module.seen.samples[:16]] == list(range(16))


class Manual(Tiny):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.optimizers().zero_grad()
        self.manual_backward(loss)
        self.optimizers().step()


class Normed(Tiny):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.layer = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))


class Tuned(Tiny):
    lr = 0.05


DEGRADED: dict[str, dict[str, Any]] = {
    "manual_optimisation": {"module": Manual},
    "batch_norm": {"module": Normed},
    "overfit_batches": {"overfit_batches": 2},
    "weight_averaging_swa": {"callbacks": lambda: [pl.callbacks.StochasticWeightAveraging(0.1, 0.5)]},
    "finders": {
        "module": Tuned, "callbacks": lambda: [pl.callbacks.LearningRateFinder(num_training_steps=3)],
        "enable_checkpointing": True,
    },
    "time_based_validation": {
        "val_check_interval": datetime.timedelta(hours=1), "validation": lambda: loader(4, shuffle=False),
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("code", DEGRADED)
def test_what_is_degraded_runs_with_one_named_warning(code: str, tmp_path: Path) -> None:
    options = {name: value() if callable(value) and name in ("callbacks", "validation") else value
               for name, value in DEGRADED[code].items()}  # fmt: skip
    played = play_tiny(tmp_path, **options)
    assert played.left is None
    assert len([text for text in played.warnings if f"selfsched [{code}]" in text]) == 1
    assert case(code).verdict == "degraded"


def test_batch_norm_that_is_synchronised_or_cannot_be_resized_is_fine(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert not play_tiny(tmp_path / "a", module=Normed, sync_batchnorm=True).said("[batch_norm]")
    assert not play_tiny(tmp_path, module=Normed, spec=FIXED).said("[batch_norm]")


def test_a_plain_training_warns_of_nothing(tmp_path: Path) -> None:
    assert not play_tiny(tmp_path, validation=loader(4, shuffle=False)).said("selfsched")


@pytest.mark.parametrize(
    ("devices", "nodes", "expected"),
    [
        (2, None, 2), ("2", None, 2), ([0, 3, 4], None, 3), ("0,1", None, 2), ("auto", None, 1),
        (-1, None, 1), (None, None, 1), (2, 4, 8), ("-1", 1, 1),
    ],
)  # fmt: skip
def test_the_devices_a_script_names(devices: Any, nodes: Any, expected: int) -> None:
    assert devices_named(devices, nodes) == expected


def test_the_reference_can_be_given(tmp_path: Path) -> None:
    played = play_tiny(tmp_path, devices=4, spec={"batch_devices": 2})
    assert played.trainer.global_step == 8


def test_drop_last_leaves_the_ragged_batch_out(tmp_path: Path) -> None:
    played = play_tiny(tmp_path, train=loader(15, drop_last=True), max_epochs=1)
    assert played.trainer.global_step == 7
    assert len(played.module.seen.samples) == 14


def test_an_unknown_length_is_said_as_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from selfsched.core.events import FitStarted
    from selfsched.elastic import process

    told: list[Any] = []
    monkeypatch.setattr(process.EventWriter, "send", lambda self, event: told.append(event) or True)
    play_tiny(tmp_path, train=DataLoader(Stream(), batch_size=2), spec=FIXED)
    (started,) = [event for event in told if isinstance(event, FitStarted)]
    assert (started.batches_per_epoch, started.planned_steps, started.validations) == (None, None, 0)
    assert (started.resume, started.allowed_devices, started.global_batch) == ("same_size", (1,), None)


class Datamodule(pl.LightningDataModule):  # type: ignore[misc]
    def setup(self, stage: str) -> None:
        self.numbers: Dataset[Any] = Numbers(16)

    def train_dataloader(self) -> Any:
        return DataLoader(self.numbers, batch_size=2, shuffle=True)


@pytest.mark.parametrize("where", ["datamodule", "second", "module"])
def test_loaders_are_found_wherever_the_script_has_them(where: str, tmp_path: Path) -> None:
    class WithLoader(Tiny):
        def train_dataloader(self) -> Any:
            return loader()

    module = WithLoader() if where == "module" else Tiny()
    arguments: dict[str, Any] = {"module": {}, "datamodule": {"datamodule": Datamodule()}}.get(where, {})
    positional = [Datamodule()] if where == "second" else []
    with as_rank(segment(tmp_path / "run", 0, cut_at=(1, 11))):
        trainer = pl.Trainer(**QUIET, default_root_dir=tmp_path)
        with pytest.raises(SystemExit):
            trainer.fit(module, *positional, **arguments)
    assert len(module.seen.samples) == len(set(module.seen.samples)) == 22
    assert "train_dataloader" not in vars(module)


def test_on_fixed_devices_a_cut_goes_on_by_count_with_its_limits_kept(tmp_path: Path) -> None:
    train = OtherLoader(Numbers(16), batch_size=2, shuffle=True)
    seen = Seen()
    play_tiny(tmp_path, train=train, spec={**FIXED, "cut_at": (1, 5)}, seen=seen)
    last = play_tiny(tmp_path, 1, train=train, spec=FIXED, seen=seen)
    assert last.said("[counted_position]")
    assert (last.trainer.global_step, last.trainer.current_epoch) == (16, 2)
    assert len(seen.samples) == 32
