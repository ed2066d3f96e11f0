"""What is read off a Trainer before the first step."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from selfsched.measure.fit_facts import fit_started, gradient_bytes, samples_in


class Timer:
    """Lightning's Timer, as far as we ask it."""

    __module__ = "lightning.pytorch.callbacks.timer"

    def __init__(self, left: float | None, spent: float) -> None:
        self.left, self.spent = left, spent

    def time_remaining(self) -> float | None:
        return self.left

    def time_elapsed(self) -> float:
        return self.spent


class EarlyStopping:
    __module__ = "lightning.pytorch.callbacks.early_stopping"


class MyEarlyStopping(EarlyStopping):
    pass


def a_trainer(**facts: Any) -> Any:
    defaults: dict[str, Any] = {
        "num_training_batches": 10, "accumulate_grad_batches": 1, "max_steps": -1, "max_epochs": 4,
        "world_size": 2, "global_step": 0, "callbacks": [], "enable_validation": True,
        "val_check_batch": 10, "check_val_every_n_epoch": 1,
        "train_dataloader": SimpleNamespace(batch_size=8),
    }  # fmt: skip
    return SimpleNamespace(**(defaults | facts))


def facts(module: Any = None, **trainer: Any) -> Any:
    model = module if module is not None else torch.nn.Linear(3, 2)
    return fit_started(a_trainer(**trainer), model, fit=1, at=5.0, package="lightning")


def test_epochs_of_known_length_are_steps() -> None:
    told = facts(accumulate_grad_batches=4)
    assert (told.steps_per_epoch, told.planned_steps, told.max_epochs) == (3, 12, 4)
    assert told.global_batch == 8 * 2 * 4
    assert told.validations == 4


def test_the_first_of_two_limits_is_planned() -> None:
    assert facts(max_steps=25).planned_steps == 25
    assert facts(max_steps=250).planned_steps == 40


def test_an_endless_loader_has_no_length_and_max_steps_still_counts() -> None:
    told = facts(num_training_batches=math.inf, max_steps=25, max_epochs=-1)
    assert (told.batches_per_epoch, told.steps_per_epoch, told.planned_steps) == (None, None, 25)
    assert told.max_epochs is None
    assert facts(num_training_batches=math.inf).planned_steps is None


def test_manual_optimisation_counts_steps_its_own_way() -> None:
    module = torch.nn.Linear(3, 2)
    module.automatic_optimization = False  # type: ignore[assignment]
    assert facts(module).steps_per_epoch is None
    assert facts(module).planned_steps is None


@pytest.mark.parametrize(
    ("timer", "expected"), [(Timer(70.0, 30.0), (100.0, 30.0)), (Timer(None, 30.0), (None, 30.0))]
)
def test_a_timer_limits_the_run_over_its_restarts(timer: Timer, expected: tuple[Any, float]) -> None:
    told = facts(callbacks=[timer])
    assert (told.max_seconds, told.elapsed_seconds) == expected


def test_early_stopping_is_found_in_subclasses_too() -> None:
    assert facts(callbacks=[MyEarlyStopping()]).early_stopping
    assert not facts().early_stopping


def test_only_counts_that_divide_the_global_batch_are_allowed() -> None:
    assert facts().allowed_devices == (1, 2, 4)
    assert facts(train_dataloader=None).allowed_devices == (2,)


def test_gradients_are_counted_where_they_are_asked_for() -> None:
    module = torch.nn.Linear(3, 2)
    assert gradient_bytes(module) == 4 * 8
    module.bias.requires_grad = False
    assert gradient_bytes(module) == 4 * 6


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(5, 2), 5),
        (torch.tensor(1.0), 1),
        ([torch.zeros(3, 1), torch.zeros(3)], 3),
        ({"text": "abc", "x": torch.zeros(7)}, 7),
        ((), 0),
        (None, 0),
    ],
)
def test_the_samples_of_a_batch_are_found(batch: Any, samples: int) -> None:
    assert samples_in(batch) == samples
