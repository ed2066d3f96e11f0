"""The bench of the forecast: its runs are what they are said to be, its figures hold together."""

from __future__ import annotations

import math

import pytest

from bench._forecast_real import moved_rows, still_rows
from bench._forecast_replay import Replay
from bench._forecast_score import MILESTONES, Noted, Row, RunName, mean_rate_seconds, rows_of
from bench._forecast_truth import FAMILIES, draw, stopping_epoch
from bench.forecast import replays, summarise
from selfsched.core.events import StoppingRule
from selfsched.protocol import Forecast


def test_a_run_is_the_same_each_time_it_is_drawn() -> None:
    one, same, other = draw("steady", 1), draw("steady", 1), draw("steady", 2)
    assert (one.step_seconds == same.step_seconds).all()
    assert len(one.step_seconds) != len(other.step_seconds)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_played_to_its_end_and_scored(family: str) -> None:
    rows = Replay(draw(family, 0, largest_steps=400)).rows()
    assert [row.at for row in rows] == list(MILESTONES)
    for row in rows:
        assert row.source == "replay"
        assert row.remaining_s > 0
        assert (row.ours_error is None) == (row.covered80 is None)
        assert row.ours_error is None or math.isfinite(row.ours_error)


def test_a_forecast_is_held_against_what_came() -> None:
    said = Forecast(p10_seconds=8.0, p50_seconds=9.0, p90_seconds=11.0, assumption="as_now")
    noted = [
        Noted(at=0.1, made_at=10.0, ours=said, mean_rate_seconds=5.0),
        Noted(at=0.25, made_at=12.0, ours=None, mean_rate_seconds=None, end_is_unknown=True),
    ]
    known, unknown = rows_of(noted, 20.0, RunName(name="a", kind="a", source="real", resized=False))
    assert (known.ours_error, known.tqdm_error, known.covered80) == (pytest.approx(0.1), 0.5, True)
    assert (unknown.ours_error, unknown.tqdm_error, unknown.covered80) == (None, None, None)
    line = summarise("both", [known, unknown])
    assert (line.n, line.unknown, line.cover) == (2, 1, 1.0)


def test_the_mean_rate_is_that_of_a_progress_bar() -> None:
    assert mean_rate_seconds(10.0, 100, 300) == pytest.approx(20.0)
    assert mean_rate_seconds(10.0, 100, None) is None


def test_patience_ends_a_run_where_lightning_would() -> None:
    rule = StoppingRule(monitor="val", mode="min", patience=2)
    assert stopping_epoch([3.0, 2.0, 2.5, 1.9, 2.0, 2.0, 1.0], rule) == 6
    assert stopping_epoch([3.0, 2.0], rule) == 2


def test_over_steady_replays_we_are_nearer_than_the_mean_rate() -> None:
    line = summarise("steady", replays(range(8), ("slow_start", "steady"), largest_steps=600))
    assert line.ours is not None
    assert line.tqdm is not None
    assert line.ours < line.tqdm


@pytest.mark.slow
def test_over_replays_of_all_families_intervals_hold_as_often_as_they_say() -> None:
    rows = replays(range(500, 503), largest_steps=800)
    line = summarise("all", rows)
    assert line.cover is not None
    assert line.ours is not None
    assert line.tqdm is not None
    assert 0.68 <= line.cover <= 0.95
    assert line.ours < 0.6 * line.tqdm
    assert line.unknown < 0.1 * line.n


@pytest.mark.slow
def test_scores_of_earlier_runs_of_a_kind_bring_its_intervals_nearer_to_what_they_say() -> None:
    families, seeds = ("level_change", "suspended"), range(500, 516)
    alone = summarise("alone", replays(seeds, families, largest_steps=500))
    carried = summarise("carried", replays(seeds, families, largest_steps=500, carried=True))
    assert alone.cover is not None
    assert carried.cover is not None
    assert alone.cover < carried.cover <= 0.95


def check_real(rows: list[Row], *, resized: bool) -> None:
    assert [row.at for row in rows] == list(MILESTONES)
    for row in rows:
        assert row.source == "real"
        assert row.resized == resized
        assert row.remaining_s > 0
        assert row.tqdm_error is not None
    # A tenth of a run of seconds can be over before the model was told of its first steps.
    assert all(row.ours_error is not None for row in rows[1:])


@pytest.mark.slow
def test_a_real_training_is_forecast_by_its_own_callback() -> None:
    check_real(still_rows("mlp", 0, 0.1), resized=False)


@pytest.mark.slow
def test_a_real_training_is_moved_and_forecast_over_its_plan() -> None:
    check_real(moved_rows("cnn-to_a_new_count", 0, 0.2), resized=True)
