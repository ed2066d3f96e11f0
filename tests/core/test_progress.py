"""Work is counted towards the limit that ends the run; what is unknown is said as unknown."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.core.events import Checked, FitFinished, FitStarted, Progressed, StoppingRule, StretchTimed
from selfsched.core.progress import Ledger


def started(**facts: Any) -> FitStarted:
    defaults: dict[str, Any] = {
        "fit": 1, "package": "lightning", "global_batch": 32, "reference_devices": 1, "step": 0,
        "planned_steps": None, "at": 100.0,
    }  # fmt: skip
    return FitStarted(**(defaults | facts))


def at(step: int, epoch: int = 0, *, fit: int = 1) -> Progressed:
    return Progressed(fit=fit, step=step, epoch=epoch, samples=step * 32)


def ledger(**facts: Any) -> Ledger:
    book = Ledger()
    book.fit_started(started(**facts))
    return book


def steps_left(book: Ledger, now: float = 100.0) -> float:
    work = book.remaining(now)
    assert work is not None
    return work.steps


# --- T15: whichever limit comes first ------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "planned"),
    [
        ({"planned_steps": 70}, 70),
        ({"max_epochs": 3, "steps_per_epoch": 10}, 30),
        ({"planned_steps": 25, "max_epochs": 3, "steps_per_epoch": 10}, 25),
        ({"planned_steps": 70, "max_epochs": 3, "steps_per_epoch": 10}, 30),
        ({"max_epochs": 3}, None),
        ({}, None),
    ],
)
def test_progress_counts_towards_the_limit_that_comes_first(
    facts: dict[str, Any], planned: int | None
) -> None:
    assert ledger(**facts).planned_steps == planned


def test_max_steps_with_an_iterable_dataset_counts_steps_and_not_an_endless_epoch() -> None:
    book = ledger(planned_steps=1000, steps_per_epoch=None, max_epochs=None)
    book.progressed(at(250))
    assert book.fraction_done(100.0) == pytest.approx(0.25)
    assert steps_left(book) == 750
    assert not book.end_is_unknown


def test_a_limit_of_time_caps_what_remains_and_counts_as_progress() -> None:
    book = ledger(planned_steps=1000, max_seconds=60.0, at=100.0)
    book.progressed(at(10))
    work = book.remaining(145.0)
    assert work is not None
    assert work.cap_seconds == pytest.approx(15.0)
    assert book.fraction_done(145.0) == pytest.approx(0.75)


def test_with_nothing_but_a_limit_of_time_the_steps_are_endless() -> None:
    book = ledger(max_seconds=60.0)
    assert math.isinf(steps_left(book))
    assert not book.end_is_unknown


def test_the_clock_of_a_limit_of_time_stands_still_between_segments() -> None:
    book = ledger(max_seconds=100.0, at=0.0)
    book.segment_ended(30.0)
    assert book.elapsed(500.0) == pytest.approx(30.0)
    book.fit_started(started(max_seconds=100.0, at=500.0, step=7, elapsed_seconds=30.0))
    assert book.elapsed(510.0) == pytest.approx(40.0)


# --- T16: unknown is said as unknown, learned after one epoch --------------------------------


def test_a_loader_of_unknown_length_is_unknown_until_one_epoch_was_seen() -> None:
    book = ledger(max_epochs=4)
    book.progressed(at(30))
    assert book.planned_steps is None
    assert book.remaining(100.0) is None
    assert book.fraction_done(100.0) == 0.0
    assert book.end_is_unknown
    book.progressed(at(50, epoch=1))
    assert book.planned_steps == 200
    assert steps_left(book) == 150
    assert not book.end_is_unknown


def test_a_learned_length_follows_the_epochs_seen() -> None:
    book = ledger(max_epochs=3)
    book.progressed(at(50, epoch=1))
    book.progressed(at(90, epoch=2))
    assert book.planned_steps == 130


def test_a_stated_length_is_not_unlearned() -> None:
    book = ledger(max_epochs=3, steps_per_epoch=10)
    book.progressed(at(11, epoch=1))
    assert book.planned_steps == 30


def test_a_fit_resumed_within_an_epoch_of_unknown_length_learns_from_the_next_whole_one() -> None:
    book = ledger(max_epochs=4, step=37)
    book.progressed(at(40, epoch=0))
    book.progressed(at(60, epoch=1))
    assert book.planned_steps is None or book.planned_steps >= 60
    book.progressed(at(110, epoch=2))
    assert book.planned_steps == 210


# --- what is no step -------------------------------------------------------------------------


def test_stated_validations_count_down_and_unstated_ones_are_expected_at_their_rate() -> None:
    stated, unstated = ledger(planned_steps=100, validations=4), ledger(planned_steps=100)
    for book in (stated, unstated):
        book.progressed(at(25))
        book.stretch(StretchTimed(stretch="validation", seconds=2.0, step=25))
    left = [book.remaining(100.0) for book in (stated, unstated)]
    assert [work and work.validations for work in left] == [3.0, pytest.approx(3.0)]


def test_checkpoints_and_ends_of_epochs_still_to_come_are_counted() -> None:
    book = ledger(planned_steps=100, steps_per_epoch=20, max_epochs=5)
    book.progressed(at(40, epoch=2))
    for step in (20, 40):
        book.stretch(StretchTimed(stretch="checkpoint_save", seconds=1.0, step=step))
        book.stretch(StretchTimed(stretch="epoch_end", seconds=0.5, step=step))
    work = book.remaining(100.0)
    assert work is not None
    assert work.checkpoints == pytest.approx(3.0)
    assert work.epoch_ends == pytest.approx(2.0)
    book.forget_checkpoint()
    work = book.remaining(100.0)
    assert work is not None
    assert work.checkpoints == pytest.approx(1.5)


def test_ends_of_epochs_of_unknown_length_are_expected_at_their_rate() -> None:
    book = ledger(planned_steps=100)
    book.stepped(50)
    book.stretch(StretchTimed(stretch="epoch_end", seconds=0.5, step=50))
    work = book.remaining(100.0)
    assert work is not None
    assert work.epoch_ends == pytest.approx(1.0)


def test_a_stretch_of_nonsense_is_not_counted() -> None:
    book = ledger(planned_steps=100, validations=4)
    book.stretch(StretchTimed(stretch="validation", seconds=math.nan, step=1))
    assert book.validations_seen == 0
    assert not book.spans


# --- over restarts and fits --------------------------------------------------------------------


def test_early_stopping_makes_the_limit_an_upper_bound() -> None:
    book = ledger(planned_steps=100, early_stopping=True)
    assert book.end_is_unknown
    assert steps_left(book) == 100


def test_limits_hold_over_a_restart() -> None:
    book = ledger(planned_steps=100)
    book.progressed(at(40))
    again = Ledger.from_state(json.loads(json.dumps(book.to_state())))
    again.fit_started(started(planned_steps=100, step=40, at=900.0))
    assert steps_left(again, 900.0) == 60
    assert again.fraction_done(900.0) == pytest.approx(0.4)


def test_a_second_fit_begins_anew() -> None:
    book = ledger(planned_steps=10)
    book.progressed(at(10))
    book.fit_finished(FitFinished(fit=1, step=10, epoch=1, metrics={}))
    assert book.fraction_done(100.0) == 1.0
    assert steps_left(book) == 0
    assert book.all_done
    book.fit_started(started(fit=2, planned_steps=50))
    assert not book.all_done
    assert steps_left(book) == 50


def test_the_whole_work_is_what_was_done() -> None:
    book = ledger(planned_steps=10)
    book.progressed(at(10))
    book.stretch(StretchTimed(stretch="validation", seconds=2.0, step=10))
    assert (book.whole().steps, book.whole().validations) == (10.0, 1.0)


@given(
    st.lists(
        st.one_of(
            st.builds(at, st.integers(-5, 10**7), st.integers(-2, 50)),
            st.builds(
                StretchTimed,
                stretch=st.sampled_from(["validation", "checkpoint_save", "epoch_end", "warm_up"]),
                seconds=st.floats(allow_nan=True),
                step=st.integers(0, 100),
            ),
            st.builds(
                started,
                fit=st.integers(1, 3),
                step=st.integers(0, 100),
                planned_steps=st.none() | st.integers(-1, 1000),
                steps_per_epoch=st.none() | st.integers(-1, 20),
                max_epochs=st.none() | st.integers(-1, 20),
                max_seconds=st.none() | st.floats(allow_nan=True),
                elapsed_seconds=st.floats(-5, 1e6),
            ),
        ),
        max_size=30,
    ),
    st.floats(0, 1e6),
)
def test_whatever_comes_progress_stays_within_its_bounds(events: list[Any], now: float) -> None:
    book = Ledger()
    for event in events:
        if isinstance(event, Progressed):
            book.progressed(event)
        elif isinstance(event, FitStarted):
            book.fit_started(event)
        else:
            book.stretch(event)
        assert 0.0 <= book.fraction_done(now) <= 1.0
        work = book.remaining(now)
        if work is not None:
            counts = (work.steps, work.validations, work.checkpoints, work.epoch_ends)
            assert all(count >= 0 and not math.isnan(count) for count in counts)
            assert work.cap_seconds is None or 0 <= work.cap_seconds < math.inf
        state = json.loads(json.dumps(book.to_state()))
        assert Ledger.from_state(state).to_state() == state


def test_a_minimum_holds_early_ends_back() -> None:
    book = ledger(planned_steps=1000, steps_per_epoch=100, max_epochs=10, min_steps=50, min_epochs=3)
    book.progressed(at(100, 1))
    work = book.remaining(100.0)
    assert work is not None
    assert work.least_steps == 200.0
    assert work.part(10).least_steps == 0.0


def test_a_batch_that_doubles_halves_the_steps_still_to_come() -> None:
    book = ledger(planned_steps=1000, steps_per_epoch=100, max_epochs=10, global_batch=32)
    book.sized(32)
    book.progressed(at(400, 4))
    assert steps_left(book) == 600
    book.sized(64)
    assert steps_left(book) == 300
    book.progressed(Progressed(fit=1, step=450, epoch=5, samples=500 * 32))  # an epoch of fifty steps
    assert steps_left(book) == 250


def test_a_limit_of_steps_stands_whatever_the_batch() -> None:
    book = ledger(planned_steps=500, steps_per_epoch=100, max_epochs=10, global_batch=32)
    book.sized(64)
    assert book.planned_steps == 500


def test_what_comes_with_epochs_comes_with_those_to_come() -> None:
    book = ledger(planned_steps=1000, steps_per_epoch=100, max_epochs=10, checkpoints_per_epoch=1.0)
    work = book.remaining(100.0)
    assert work is not None
    assert work.checkpoints == 10.0
    book.progressed(at(0))
    for epoch in (1, 2):
        book.stretch(StretchTimed(stretch="checkpoint_save", seconds=1.0, step=100 * epoch))
        book.stretch(StretchTimed(stretch="validation", seconds=1.0, step=100 * epoch))
        book.progressed(at(100 * epoch, epoch))
    book.progressed(at(290, 2))
    work = book.remaining(100.0)
    assert work is not None
    assert (work.checkpoints, work.validations, work.epoch_ends) == (8.0, 8.0, 7.0)


def test_the_first_of_several_validations_is_left_out() -> None:
    book = ledger()
    for seconds in (9.0, 1.0, 1.0):
        book.stretch(StretchTimed(stretch="validation", seconds=seconds, step=1))
    assert book.usual_spans()["validation"].running.mean == pytest.approx(1.0)
    book.segment_ended(100.0)
    assert Ledger.from_state(json.loads(json.dumps(book.to_state()))) == book


# --- counted from the present place on ----------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "planned"),
    [
        ({"steps_per_epoch": 100, "batches_per_epoch": 100, "max_epochs": 3}, 300),
        ({"steps_per_epoch": 300, "batches_per_epoch": 300, "max_epochs": 3}, 150 + 250 + 300),
        ({"steps_per_epoch": 25, "batches_per_epoch": 100, "max_epochs": 5}, 150 + 13 + 3 * 25),
        ({"steps_per_epoch": 10, "batches_per_epoch": 10, "max_epochs": 8}, 150 + 6 * 10),
        ({"steps_per_epoch": 300, "batches_per_epoch": 300, "max_epochs": 3, "max_steps": 250}, 250),
    ],
)
def test_a_fit_that_goes_on_with_another_batch_or_loader_counts_from_where_it_is(
    facts: dict[str, Any], planned: int
) -> None:
    """150 steps of 100 an epoch were made: epoch 1, batch 50."""
    earlier = ledger(planned_steps=300, steps_per_epoch=100, max_epochs=3)
    for step, epoch in ((100, 1), (150, 1)):
        earlier.progressed(at(step, epoch))
    for book in (Ledger(), earlier):
        book.fit_started(started(**{"step": 150, "epoch": 1, "batch": 50, "planned_steps": 1} | facts))
        book.sized(32)
        assert book.planned_steps == planned
        assert book.epoch == 1 or planned == 150 + 6 * 10
        assert 0.0 < book.fraction_done(100.0) < 1.0
        assert steps_left(book) == planned - 150


def test_a_fit_that_goes_on_with_a_loader_of_unknown_length_knows_what_it_has_seen() -> None:
    fresh, earlier = Ledger(), ledger(max_epochs=3)
    earlier.progressed(at(100, 1))
    for book, planned in ((fresh, None), (earlier, 300)):
        book.fit_started(started(step=150, epoch=1, batch=50, max_epochs=3))
        assert book.planned_steps == planned


def test_a_minimum_of_epochs_counts_from_where_the_fit_is() -> None:
    book = ledger(
        step=150, epoch=1, batch=0, steps_per_epoch=10, batches_per_epoch=10, max_epochs=9, min_epochs=3
    )
    work = book.remaining(100.0)
    assert work is not None
    assert work.least_steps == 20.0


def test_epochs_that_grow_are_learned_and_the_run_is_not_done_before_its_end() -> None:
    """A loader made anew each epoch: 20, 40, ... 120 batches."""
    book = ledger(planned_steps=120, steps_per_epoch=20, max_epochs=6)
    step, planned = 0, []
    for epoch in range(6):
        for _ in range(20 * (epoch + 1)):
            step += 1
            book.stepped(step)
            if step < 400 or step > 401:  # the last epoch but one had as many steps
                assert not book.all_done
                assert book.fraction_done(100.0) < 1.0
                assert book.planned_steps is None or book.planned_steps > step
        planned.append(book.planned_steps)
        book.progressed(at(step, epoch + 1))
        if epoch == 2:
            assert book.planned_steps == 120 + 3 * 60
    assert planned[:3] == [120, 60 + 4 * 40, 120 + 3 * 60]
    assert planned[-1] is None, "the last epoch is longer than any before: its end is not known"
    assert book.planned_steps == 420


def test_a_step_beyond_the_limit_of_steps_makes_the_end_unknown() -> None:
    book = ledger(planned_steps=50)
    book.stepped(57)
    assert book.planned_steps is None
    assert book.end_is_unknown
    assert not book.all_done


@pytest.mark.parametrize(("first", "then"), [(8, 1), (1, 8)])
def test_an_accumulation_that_changes_is_counted_from_its_change_on(first: int, then: int) -> None:
    """300 batches an epoch for three epochs; accumulation changes after the first."""
    book = ledger(planned_steps=900, steps_per_epoch=300, max_epochs=3, global_batch=1)
    one, other = math.ceil(300 / first), math.ceil(300 / then)
    whole, step, samples = one + 2 * other, 0, 0
    for epoch in range(3):
        of_step = first if epoch == 0 else then
        for index in range(one if epoch == 0 else other):
            step, samples = step + 1, min(samples + of_step, 300 * (epoch + 1))
            book.stepped(step)
            book.sized(of_step)
            if index % 7 == 0:
                book.progressed(Progressed(fit=1, step=step, epoch=epoch, samples=samples))
            expected = whole if epoch else math.ceil(900 / first)
            assert book.planned_steps == pytest.approx(expected, abs=4)
        book.progressed(Progressed(fit=1, step=step, epoch=epoch + 1, samples=samples))
    assert book.planned_steps == step == whole


# --- the end of an epoch is work until it is over ------------------------------------------------


def test_what_follows_an_epochs_last_step_is_counted_until_it_is_over() -> None:
    book = ledger(planned_steps=60, steps_per_epoch=20, max_epochs=3, checkpoints_per_epoch=1.0)

    def to_come() -> tuple[float, float, float]:
        work = book.remaining(100.0)
        assert work is not None
        return work.epoch_ends, work.validations, work.checkpoints

    assert to_come() == (2.0, 0.0, 3.0)
    for epoch in (1, 2):
        rest = 3.0 - epoch
        book.stepped(20 * epoch)
        before = 0.0 if epoch == 1 else rest + 1  # unknown before the first
        assert to_come() == (rest, before, rest + 1)
        book.stretch(StretchTimed(stretch="validation", seconds=1.0, step=20 * epoch))
        book.progressed(at(20 * epoch, epoch))
        assert to_come()[0::2] == (rest, rest + 1), "the gap and the checkpoint are yet to come"
        book.stretch(StretchTimed(stretch="checkpoint_save", seconds=1.0, step=20 * epoch))
        assert to_come()[2] == rest
        book.stretch(StretchTimed(stretch="epoch_end", seconds=3.0, step=20 * epoch))
        assert to_come() == (rest - 1, rest, rest)
        book.stepped(20 * epoch + 1)
        assert to_come() == (rest - 1, rest, rest)
    book.stepped(60)
    assert to_come() == (0.0, 1.0, 1.0), "the last validation and checkpoint are work, too"


def test_elapsed_time_of_nonsense_is_no_time() -> None:
    book = ledger(max_seconds=60.0, elapsed_seconds=math.nan)
    assert book.elapsed_seconds == 0.0
    book.fit_started(started(max_seconds=60.0, elapsed_seconds=math.inf))
    assert book.elapsed(100.0) == 0.0


def test_what_a_step_took_before_a_restart_says_nothing_of_the_batch_after_it() -> None:
    book = ledger(steps_per_epoch=100, max_epochs=3, global_batch=32)
    book.sized(32)
    book.fit_started(
        started(
            step=150, epoch=1, batch=50, max_epochs=3, global_batch=320, steps_per_epoch=10,
            batches_per_epoch=10,
        )
    )  # fmt: skip
    assert book.planned_steps == 150 + 10


def test_a_rule_whose_value_never_appears_leaves_the_limit_as_the_end() -> None:
    book = ledger(
        planned_steps=300, steps_per_epoch=20, max_epochs=15, validations=15, early_stopping=True,
        stopping=(StoppingRule(monitor="nothing"),),
    )  # fmt: skip
    for epoch in range(1, 9):
        book.stepped(20 * epoch)
        book.stretch(StretchTimed(stretch="validation", seconds=0.1, step=20 * epoch))
        book.progressed(at(20 * epoch, epoch))
        work = book.remaining(100.0)
        assert work is not None
        assert all(end > 0 for end, _ in work.stops)
    assert not book.end_is_unknown
    assert work.stops == ()
    assert work.steps == 140


def test_the_last_words_on_early_stopping_say_what_happened() -> None:
    book = ledger(
        planned_steps=300, steps_per_epoch=20, max_epochs=15, early_stopping=True,
        stopping=(StoppingRule(monitor="val", patience=1),),
    )  # fmt: skip
    for step in (20, 40):
        book.stepped(step)
        book.checked(Checked(step=step, values={"val": 1.0}))
    assert book.stopping_words() == "Early stopping ends the run."
    book.fit_finished(FitFinished(fit=1, step=40, epoch=2, metrics={}))
    assert book.stopping_words() == "Early stopping ended the run."
    other = ledger(planned_steps=30, early_stopping=True)
    other.stepped(30)
    assert other.stopping_words() == "Early stopping did not end the run before its limit."


def test_a_limit_of_time_that_waits_for_the_end_of_an_epoch_is_not_over_before_it() -> None:
    book = ledger(steps_per_epoch=400, max_epochs=10, max_seconds=2.0, max_seconds_holds="epoch")
    book.progressed(at(150))
    work = book.remaining(103.0)
    assert work is not None
    assert (work.cap_seconds, work.cap_steps) == (0.0, (250.0, 400.0))
    assert book.fraction_done(103.0) == pytest.approx(150 / 400)


def test_a_limit_of_time_that_waits_for_the_least_steps_is_not_over_before_them() -> None:
    book = ledger(max_epochs=-1, max_seconds=2.0, min_steps=400)
    book.progressed(at(100))
    assert book.fraction_done(103.0) == pytest.approx(100 / 400)


def test_a_run_that_a_time_ends_has_a_known_limit_whatever_its_epochs() -> None:
    assert ledger(planned_steps=None).has_no_known_limit
    assert not ledger(planned_steps=None, max_seconds=60.0).has_no_known_limit
