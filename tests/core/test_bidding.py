"""What a move costs, what a bid says, and the words for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.core.bidding import (
    aside_words,
    duration_words,
    limit_words,
    saving_words,
    standing_bid,
    visit_worth,
)
from selfsched.core.forecast import Remaining


def left(seconds: float, sigma: float = 0.05) -> Remaining:
    return Remaining(median_seconds=seconds, sigma_log=sigma)


def test_there_is_a_row_for_each_count_and_null_where_nothing_was_measured() -> None:
    bid = standing_bid(
        (2, 1),
        remaining=lambda devices: left(60.0) if devices == 1 else None,
        restart_seconds=lambda devices: 3.0 * (devices - 1),
        peak_bytes=lambda devices: 123,
        end_is_unknown=True,
    )
    one, two = bid.rows
    assert (one.placement.devices, one.remaining_seconds, one.restart_seconds) == (1, 60.0, 0.0)
    assert (two.placement.devices, two.remaining_seconds, two.restart_seconds) == (2, None, 3.0)
    assert one.peak_bytes_per_device == 123
    assert bid.end_is_unknown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0123, "12.3 ms"),
        (4.24, "4.2 s"),
        (42.4, "42 s"),
        (190, "3 min 10 s"),
        (7500, "2 h 05 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words


def test_what_is_no_step_is_named_where_it_is_a_tenth_of_the_training() -> None:
    (words,) = aside_words({"validation": 40.0, "checkpoint_save": 5.0}, 100.0)
    assert words.startswith("Validation is 40% of the training so far")
    assert aside_words({"validation": 40.0}, 0.0) == ()


def test_words_say_what_would_be_saved_lost_or_unchanged() -> None:
    words = saving_words(left(100.0), {1: (left(190.0), 5.0), 2: (left(99.0), 0.0), 4: (left(40.0), 5.0)})
    assert words == (
        "1 device would cost 1 min 35 s on top of the 1 min 40 s that are left.",
        "2 devices would change nothing.",
        "4 devices would save 55 s of the 1 min 40 s that are left.",
    )


def test_words_admit_little_certainty_and_speak_in_hindsight() -> None:
    words = saving_words(left(100.0), {4: (left(40.0, 0.6), 0.0)}, in_hindsight=True)
    assert words == ("4 devices would have saved 1 min 00 s of 1 min 40 s, with little certainty.",)


def test_what_keeps_a_step_from_scaling_is_said_with_its_share_worst_first() -> None:
    parts = {"forward": 0.03, "backward": 0.02, "communication": 0.038, "data": 0.012, "other": 0.0}
    first, second = limit_words(parts, 2)
    assert first.startswith("Communication is 38% of a step on 2 devices")
    assert second.startswith("Waiting for data is 12% of a step")
    assert limit_words({"forward": 1.0, "data": 0.05}, 1) == ()
    assert limit_words({}, 1) == ()


def test_a_part_is_held_against_the_whole_step_also_where_the_others_are_not_known() -> None:
    assert limit_words({"data": 0.0016, "other": 0.004}, 1, cycle_seconds=1.0) == ()
    (said,) = limit_words({"data": 0.5, "other": 0.004}, 1, cycle_seconds=1.0)
    assert said.startswith("Waiting for data is 50%")
    assert limit_words({"data": 2.0}, 1, cycle_seconds=1.0)[0].startswith("Waiting for data is 100%")


@pytest.mark.parametrize(
    ("there", "doubt", "best"), [(100, 0.3, 100), (100, 0.5, 60), (50, 0.2, 80), (9, 1.5, 5)]
)
def test_a_visit_is_worth_what_choosing_after_it_saves_on_average(
    there: float, doubt: float, best: float
) -> None:
    seen = there * np.exp(doubt * np.random.default_rng(1).standard_normal(400_000))
    without = min(best, float(seen.mean()))
    saved = without - float(np.minimum(seen, best).mean())
    assert visit_worth(there, doubt, best) == pytest.approx(saved, abs=0.01 * best)


def test_a_visit_is_worth_nothing_where_nothing_would_be_decided_by_it() -> None:
    assert visit_worth(100, 0.0, 100) == 0
    assert visit_worth(100, 0.3, None) == 0
    assert visit_worth(None, 0.3, 100) == 0
    assert visit_worth(100, 0.1, 1000) < 1e-6
    assert visit_worth(100, 0.1, 100) > visit_worth(100, 0.1, 120) > visit_worth(100, 0.1, 200)


@given(there=st.floats(1e-6, 3e9), doubt=st.floats(0, 20), best=st.floats(1e-6, 3e9))
def test_a_visits_worth_is_never_absurd(there: float, doubt: float, best: float) -> None:
    assert 0 <= visit_worth(there, doubt, best) <= best


def test_the_bid_carries_what_a_visit_is_worth() -> None:
    bid = standing_bid(
        [1, 2, 4],
        remaining={
            n: Remaining(median_seconds=s, sigma_log=0.3) for n, s in {1: 100, 2: 60, 4: 55}.items()
        }.get,
        restart_seconds=lambda count: 0.0 if count == 2 else 3.0,
        peak_bytes=lambda count: None,
        end_is_unknown=False,
        doubt=lambda count: 0.0 if count == 2 else 0.3,
    )
    worth = {row.placement.devices: row.information_seconds for row in bid.rows}
    assert worth[2] == 0
    assert worth[4] > 1 > worth[1] > 0
