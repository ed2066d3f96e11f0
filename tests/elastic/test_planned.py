"""How many steps and validations a fit has before it, counted from its place in the epochs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from selfsched.elastic.fit_record import planned_steps, steps_ahead, validations_to_come


def trainer(step: int, *, accumulate: int = 1, every: int = 10) -> SimpleNamespace:
    return SimpleNamespace(
        global_step=step, accumulate_grad_batches=accumulate, enable_validation=True, val_check_batch=every,
        check_val_every_n_epoch=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("step", "place", "batches", "accumulate", "planned", "validations"),
    [
        (0, (0, 0), 10, 1, 50, 5),  # a fit of five epochs from its begin
        (20, (2, 0), 10, 1, 50, 3),
        (20, (2, 0), 5, 1, 35, 3),  # goes on with twice the batch: three epochs of five steps
        (20, (2, 5), 20, 1, 75, 3),  # with half the batch, a quarter into the third epoch
        (20, (2, 0), 10, 4, 29, 3),  # four batches a step: three steps an epoch
        (20, None, 10, 1, 50, 3),  # the place is not told: as if nothing had changed
    ],
)
def test_a_fit_that_goes_on_with_another_batch_counts_the_epochs_to_come(
    step: int,
    place: tuple[int, int] | None,
    batches: int,
    accumulate: int,
    planned: int,
    validations: int,
) -> None:
    fit, length = trainer(step, accumulate=accumulate, every=batches), -(-batches // accumulate)
    ahead = steps_ahead(fit, place, batches, length)
    assert planned_steps(-1, 5, length, ahead=ahead) == planned
    assert validations_to_come(fit, batches, length, planned, ahead=ahead) == validations
    assert planned_steps(30, 5, length, ahead=ahead) == min(30, planned), "a limit of steps counts them all"
