"""`bench.look_ahead`: its form, and that it compares what was foreseen with what came."""

from __future__ import annotations

import json
import math

import pytest

from bench import look_ahead
from bench._look_ahead_lab import Held, as_now, random_scene, run_lab


def a_forecast(p50: float, came: float, *, waits: bool = False) -> Held:
    around = (0.8 * p50, p50, 1.25 * p50)
    return Held(
        waits=waits, ahead=around, as_now=None if waits else (came, came, came),
        starts=(0.0, 10.0, 20.0) if waits else None, ends_in=came, started_in=30.0 if waits else 0.0,
    )  # fmt: skip


def test_errors_are_relative_to_what_came_and_coverage_is_a_part() -> None:
    row = look_ahead.accuracy("open", "themis", "run", [a_forecast(90.0, 100.0), a_forecast(50.0, 100.0)])
    assert row.error == pytest.approx(0.3)
    assert row.bias == pytest.approx(0.7)
    assert row.coverage == 0.5
    assert (row.as_now_error, row.as_now_coverage) == (0.0, 1.0)
    assert row.start_error_s is None


def test_of_jobs_that_wait_starts_are_compared_and_as_now_says_nothing() -> None:
    row = look_ahead.accuracy("open", "themis", "wait", [a_forecast(100.0, 100.0, waits=True)])
    assert (row.as_now_error, row.as_now_coverage) == (None, None)
    assert (row.start_error_s, row.start_coverage) == (20.0, 0.0)


def test_a_scene_seats_no_more_than_there_is() -> None:
    scene = random_scene(1, 16, 8, "themis")
    assert scene == random_scene(1, 16, 8, "themis")
    assert sum(player.held for player in scene.players) == 8
    seated = scene.players[0]
    told = as_now(seated)
    assert told is not None
    assert told[1] == seated.seconds[seated.counts.index(seated.held)]
    assert as_now(scene.players[-1]) is None


@pytest.mark.slow
def test_in_a_closed_lab_what_came_is_near_what_was_foreseen() -> None:
    held = run_lab(2, 1, "selfsched", closed=True, jobs=8)
    assert {one.waits for one in held} == {False, True}
    assert all(one.ends_in > 0 and one.started_in >= 0 for one in held)
    logs = sorted(abs(math.log(one.ahead[1] / one.ends_in)) for one in held)
    assert logs[len(logs) // 2] < math.log(1.5)


@pytest.mark.slow
def test_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert look_ahead.main(["--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {cost["policy"] for cost in found["cost"]} == {"selfsched", "themis"}
    assert all(cost["all_ms"] > 0 and cost["what_if_ms"] > 0 for cost in found["cost"])
    assert {(row["lab"], row["jobs"]) for row in found["accuracy"]} == {
        (lab, jobs) for lab in ("open", "closed") for jobs in ("run", "wait")
    }
    assert all(0 <= row["coverage"] <= 1 and row["forecasts"] > 0 for row in found["accuracy"])
