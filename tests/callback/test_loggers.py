"""The figures in Lightning's own loggers: names, steps, several at once, none."""

from __future__ import annotations

import csv
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from callback.fits import PACKAGES, loader, module, spy, trainer

from selfsched import SelfScheduler
from selfsched.measure.figures import LOGGED
from selfsched.measure.figures import PREFIX as LOG_PREFIX

DOCS = Path(__file__).parents[2] / "docs" / "training.md"


def loggers(package: str) -> Any:
    return import_module(f"{package}.loggers")


def csv_figures(directory: Path) -> dict[str, list[int]]:
    """Name -> steps at which it was logged."""
    found: dict[str, list[int]] = {}
    (path,) = directory.rglob("metrics.csv")
    with path.open() as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if name.startswith(LOG_PREFIX) and value:
                    found.setdefault(name.removeprefix(LOG_PREFIX), []).append(int(row["step"]))
    return found


def board_figures(directory: Path) -> dict[str, list[int]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(directory))
    events.Reload()
    names = [name for name in events.Tags()["scalars"] if name.startswith(LOG_PREFIX)]
    return {name.removeprefix(LOG_PREFIX): [e.step for e in events.Scalars(name)] for name in names}


@pytest.mark.parametrize("package", PACKAGES)
def test_several_loggers_get_the_same_figures_at_lightnings_steps(package: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    made = [loggers(package).CSVLogger(tmp_path / "csv"), loggers(package).TensorBoardLogger(tmp_path / "tb")]
    callback = SelfScheduler(explain=False)
    settled = spy(package, "on_train_batch_end", lambda _: callback.model)  # waits for what is under way
    fit = trainer(
        package, tmp_path, callback, settled, max_steps=60, log_every_n_steps=10, logger=made,
        accumulate_grad_batches=2,
    )  # fmt: skip
    fit.fit(module(package, step_seconds=0.004), loader(40))
    rows = csv_figures(tmp_path / "csv")
    assert rows == board_figures(Path(made[1].log_dir))
    assert rows["step_seconds"] == [9, 19, 29, 39, 49, 59]  # of optimiser steps, not of batches
    assert set(rows) <= set(LOGGED)
    assert {"devices", "step_seconds", "data_seconds", "fraction_done", "remaining_seconds_p50"} <= set(rows)


@pytest.mark.parametrize("logger", [False, None])
def test_without_a_logger_of_its_own_nothing_is_lost(logger: bool | None, tmp_path: Path) -> None:
    callback = SelfScheduler(explain=False)
    fit = trainer(PACKAGES[0], tmp_path, callback, max_steps=12, log_every_n_steps=2, logger=logger)
    fit.fit(module(), loader())
    assert callback.model is not None
    assert callback.model.progress().step == 12


def test_the_steps_of_a_resumed_fit_go_on(tmp_path: Path) -> None:
    path = tmp_path / "half.ckpt"
    steps: list[int] = []
    for number, limit in enumerate((20, 40)):
        logger = loggers(PACKAGES[0]).CSVLogger(tmp_path / str(number))
        fit = trainer(
            PACKAGES[0], tmp_path, SelfScheduler(explain=False), max_steps=limit, log_every_n_steps=5,
            logger=logger,
        )  # fmt: skip
        fit.fit(module(), loader(50), ckpt_path=path if number else None, weights_only=False)
        fit.save_checkpoint(path)
        steps += csv_figures(tmp_path / str(number))["step_seconds"]
    assert steps == [4, 9, 14, 19, 24, 29, 34, 39]


def test_every_logger_takes_the_names() -> None:
    for name in LOGGED:
        # MLflow's rule, the strictest; W&B also wants no leading underscore, CSV no comma.
        assert re.fullmatch(r"[a-zA-Z0-9_/. -]+", LOG_PREFIX + name)
        assert not name.startswith("_")
    assert len(set(LOGGED)) == len(LOGGED)


def test_the_documentation_has_each_name_in_its_table() -> None:
    documented = re.findall(r"^\| `selfsched/(\w+)` \|", DOCS.read_text(), flags=re.MULTILINE)
    assert documented == list(LOGGED)
