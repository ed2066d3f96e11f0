"""The nasty run, cut at every step, equals the uninterrupted one to the last bit (T3, T9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from elastic.nasty import Seen, csv_rows, play

PACKAGES = ["lightning.pytorch", "pytorch_lightning"]
FIRST_STEPS, SECOND_STEPS = 18, 7
Played = tuple[dict[str, Any], Seen, Path]

pytestmark = pytest.mark.filterwarnings("ignore:.*")  # Lightning's own; ours are asserted elsewhere


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Played]:
    """The run without a cut, for each package."""
    return {package: play(package, tmp_path_factory.mktemp("whole"), [None]) for package in PACKAGES}


def assert_same(found: Played, expected: Played) -> None:
    """Equal to the last bit: what the script saw, what was seen on the way, and the log."""
    for name, value in expected[0].items():
        if isinstance(value, dict):
            assert found[0][name].keys() == value.keys(), name
            for key in value:
                one, other = torch.as_tensor(found[0][name][key]), torch.as_tensor(value[key])
                assert torch.equal(one, other), (name, key)
        else:
            assert found[0][name] == value, name
    for name in ("samples", "validations", "rates", "epoch_means"):
        assert getattr(found[1], name) == getattr(expected[1], name), name
    assert csv_rows(found[2]) == csv_rows(expected[2])


def test_the_uninterrupted_run_does_all_that_a_cut_could_lose(uninterrupted: dict[str, Played]) -> None:
    result, seen, logs = uninterrupted["lightning.pytorch"]
    assert (result["step"], result["epoch"], result["second_step"]) == (FIRST_STEPS, 3, SECOND_STEPS)
    assert len(seen.validations) == 6 + 1
    assert len({round(rate, 12) for *_, rate in seen.rates}) == 10
    assert result["ema_updates"] == 36
    assert len(result["kept"]) == 2
    assert len(csv_rows(logs)) >= FIRST_STEPS + 6 + 3
    assert len(list((logs / "board").glob("version_*"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("step", range(FIRST_STEPS + 1))
def test_a_cut_at_any_step_changes_nothing(
    package: str, step: int, tmp_path: Path, uninterrupted: dict[str, Played]
) -> None:
    assert_same(play(package, tmp_path, [(1, step), None]), uninterrupted[package])


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("step", range(SECOND_STEPS))
def test_a_cut_in_the_second_fit_changes_nothing(
    package: str, step: int, tmp_path: Path, uninterrupted: dict[str, Played]
) -> None:
    assert_same(play(package, tmp_path, [(2, step), None]), uninterrupted[package])


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_a_cut_at_every_step_changes_nothing(
    package: str, tmp_path: Path, uninterrupted: dict[str, Played]
) -> None:
    cuts = [(1, step) for step in range(1, FIRST_STEPS)] + [(2, step) for step in range(1, SECOND_STEPS)]
    found = play(package, tmp_path, [*cuts, None])
    assert_same(found, uninterrupted[package])
    assert len(list((found[2] / "csv").iterdir())) == 1
    assert len(list((found[2] / "board").iterdir())) == 1


@pytest.mark.slow
def test_dropout_goes_on_bit_by_bit_at_the_same_world_size(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    expected = play("lightning.pytorch", whole, [None], dropout=0.3)
    assert_same(play("lightning.pytorch", cut, [(1, 4), (1, 6), (1, 11), None], dropout=0.3), expected)


@pytest.mark.slow
def test_workers_of_the_loader_change_nothing(tmp_path: Path, uninterrupted: dict[str, Played]) -> None:
    found = play("lightning.pytorch", tmp_path, [(1, 4), (1, 12), None], workers=2)
    assert_same(found, uninterrupted["lightning.pytorch"])


def test_a_cut_leaves_one_log_and_a_bounded_number_of_checkpoints(tmp_path: Path) -> None:
    play("lightning.pytorch", tmp_path, [(1, 2), (1, 4), (1, 6), (1, 9), None])
    fits = tmp_path / "run" / "fits"
    assert sorted(path.name for path in (fits / "1").iterdir()) == ["finished", "fit.json"]
    assert sorted(path.name for path in (fits / "2").iterdir()) == ["finished", "fit.json"]
