"""T16: an epoch's stated length is an upper bound, which a whole epoch corrects and nothing less does."""

from __future__ import annotations

from typing import Any

from selfsched.core.events import FitStarted, Progressed
from selfsched.core.progress import Ledger


def started(step: int = 0, *, stated: int | None = 80) -> FitStarted:
    planned = None if stated is None else 3 * stated
    return FitStarted(
        fit=1, package="lightning", global_batch=None, reference_devices=2, step=step, planned_steps=planned,
        steps_per_epoch=stated, max_epochs=3, at=0.0,
    )  # fmt: skip


def told(*events: Any) -> Ledger:
    """A ledger that heard of a start, or of (step, epoch)."""
    book = Ledger()
    for event in events:
        if isinstance(event, FitStarted):
            book.fit_started(event)
        else:
            step, epoch = event
            book.progressed(Progressed(fit=1, step=step, epoch=epoch, samples=0))
    return book


def test_a_whole_epoch_that_was_shorter_corrects_it_over_restarts_too() -> None:
    assert told(started(), (39, 0)).planned_steps == 240
    assert told(started(), (40, 1)).planned_steps == 120
    resumed = told(started(), (40, 1), started(55), (56, 1))
    assert resumed.planned_steps == 120
    assert Ledger.from_state(resumed.to_state()).planned_steps == 120
    assert told(started(), (40, 1), started(55), (56, 1), (80, 2)).planned_steps == 120


def test_a_part_of_an_epoch_teaches_nothing() -> None:
    assert told(started(95), (97, 1), (160, 2)).planned_steps == 240, "resumed within an epoch"
    late = told(started(), (79, 0), started(80), (150, 1), (160, 2))
    assert late.planned_steps == 240, "cut between two epochs, and heard of late"


def test_an_epoch_of_the_stated_length_changes_nothing() -> None:
    assert told(started(), (80, 1), (160, 2)).planned_steps == 240


def test_a_shorter_epoch_that_was_an_exception_is_made_good() -> None:
    book = told(started(), (30, 1), (110, 2))
    assert book.planned_steps == 190


def test_a_length_that_becomes_known_replaces_the_learned_one() -> None:
    assert told(started(stated=None), (40, 1), started(45, stated=30)).planned_steps == 40 + 2 * 30
