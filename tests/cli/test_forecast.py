"""`selfsched forecast`: what is asked of the broker, what is printed, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cli.canned_broker import (
    AT_ONCE,
    LATER,
    SOON,
    a_cluster,
    a_job,
    answers,
    canned_broker,
    finished_job,
)
from cli.commands import selfsched

from selfsched.commands.forecast import ForecastRequest, clock_words, show_forecasts
from selfsched.commands.views import show_status
from selfsched.commands.words import assumption_words, expected_start, start_words
from selfsched.core.whole_run import SPEED_EXPONENT
from selfsched.errors import Refused
from selfsched.protocol import BidRow, JobState, Placement, Problem, StandingBid, WhatIfAnswer, WhatIfLine

BID = StandingBid(
    rows=tuple(BidRow(placement=Placement(devices=n), remaining_seconds=900 / n) for n in (1, 2))
)
WAITING = a_job(job="job-2", name="later", state=JobState.WAITING, devices=(), starts=LATER, age_seconds=5.0)

posted: list[Any] = []


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with canned_broker(answers(a_job(bid=BID), WAITING, finished_job()), posted) as address:
        yield address


@pytest.fixture(autouse=True)
def _a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    posted.clear()


def table(text: str) -> list[list[str]]:
    """Cells of the lines of a table."""
    lines = (line for line in text.splitlines() if line.strip())
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


def test_as_things_are_asks_nothing_and_shows_start_end_and_clock(
    broker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_forecasts(broker, ForecastRequest(), as_json=False)
    rows = table(capsys.readouterr().out)
    assert posted == []
    assert [row[:3] for row in rows if row[0] == "as things are"] == [
        ["as things are", "has devices", "2 min 00 s (1 min 40 s to 3 min 20 s)"],
        [
            "as things are",
            "in 6 min 00 s (2 min 00 s to 20 min 00 s)",
            "2 min 00 s (1 min 40 s to 3 min 20 s)",
        ],
    ]
    assert all(":" in row[3] for row in rows if row[0] == "as things are")


def test_each_count_has_a_line_and_what_it_would_be_from_now_on(
    broker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_forecasts(broker, ForecastRequest(job="digits", devices=(1, 2, 2)), as_json=False)
    out = capsys.readouterr().out
    (asked,) = posted
    assert (asked["job"], asked["devices"], asked["seconds"]) == ("job-1", [1, 2], [])
    rows = {row[0]: row for row in table(out)}
    assert rows["devices"][-1] == "if it had them from now on"
    assert rows["1"][1] == "in 6 min 00 s (2 min 00 s to 20 min 00 s)"
    assert rows["1"][-1] == "2 min 00 s (1 min 40 s to 3 min 20 s)"
    assert rows["2"][1] == "not with these devices"
    assert "as measured" in out


def test_without_takes_names_of_jobs_and_accounts(broker: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_forecasts(broker, ForecastRequest(job="digits", without=("later", "bob", "bob")), as_json=False)
    assert posted[0]["without"] == ["job-2", "bob"]
    assert "As if these had ended: later, bob" in capsys.readouterr().out


def test_a_job_of_some_hours_is_asked_with_its_times(broker: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_forecasts(broker, ForecastRequest(hours=2.0, devices=(1,)), as_json=False)
    (asked,) = posted
    assert asked["job"] is None
    assert asked["seconds"] == [[1, 7200.0], [2, pytest.approx(7200 / 2**SPEED_EXPONENT)]]
    out = capsys.readouterr().out
    assert "A job of 2 h 00 min on 1, started now" in out
    assert "devices^0.85" in out


def test_a_job_like_another_is_asked_with_its_whole_run(
    broker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_forecasts(broker, ForecastRequest(like="digits"), as_json=True)
    assert posted[0]["seconds"] == [[1, 1200.0], [2, 600.0]]
    (told,) = json.loads(capsys.readouterr().out)["forecasts"]
    assert (told["job"], told["name"]) == (None, "A job like digits, started now")
    assert told["ahead"][0]["starts"]["p50_seconds"] == 0
    assert datetime.fromisoformat(told["ahead"][0]["finished_at"]).tzinfo is not None
    assert told["ahead"][2]["finished_at"] is None


def test_what_ranges_assume_is_said_in_one_line(broker: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_forecasts(broker, ForecastRequest(), as_json=False)
    assert "Ranges: 10 to 90 %, if nobody new comes." in capsys.readouterr().out
    own = SOON.model_copy(update={"assumption": "as_now"})
    busy = a_cluster().model_copy(update={"newcomers_per_hour": 3.25}).model_dump(mode="json")
    job = a_job(forecast=own, ends=LATER)
    with canned_broker(
        {**answers(job, a_job(job="job-9", forecast=own)), "GET /v1/cluster": busy}
    ) as address:
        show_forecasts(address, ForecastRequest(), as_json=False)
        show_status(address, as_json=False)
    others = "new jobs come as of late (3.2 an hour)"
    words = f"Ranges: 10 to 90 %, if {others} and jobs keep the devices that they have."
    out = capsys.readouterr().out
    assert out.count(words) == 2
    assert "6 min 00 s (2 min 00 s to 20 min 00 s)" in out, "what the broker foresees comes first"
    assert assumption_words([None], 1.0) == ""


def test_what_can_never_be_has_no_end(broker: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_forecasts(broker, ForecastRequest(hours=2.0, devices=(1, 2)), as_json=False)
    rows = {row[0]: row for row in table(capsys.readouterr().out)}
    assert rows["2"][1] == "not with these devices"
    assert "not measured yet" not in rows["2"]


def test_a_job_too_young_for_other_counts_is_told_as_things_are(capsys: pytest.CaptureFixture[str]) -> None:
    title = "the job has bid for these device counts only: none yet"
    refusal = Problem(status=409, code="impossible_request", title=title)
    with canned_broker({**answers(a_job()), "POST /v1/forecast": refusal}) as address:
        show_forecasts(address, ForecastRequest(job="digits", devices=(1, 2)), as_json=False)
    out = capsys.readouterr().out
    (row,) = [row for row in table(out) if row[0] == "as things are"]
    assert row[2].startswith("2 min 00 s")
    assert "digits has not measured yet" in out


def test_that_more_devices_end_it_later_because_they_are_waited_for_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = (
        WhatIfLine(starts=AT_ONCE, ends=SOON),
        WhatIfLine(devices=1, starts=AT_ONCE, ends=SOON),
        WhatIfLine(devices=2, starts=SOON, ends=LATER),
    )
    for ahead, is_said in ((lines, True), (lines[:2], False)):
        answer = WhatIfAnswer(forecasts=(), ahead=ahead).model_dump(mode="json")
        with canned_broker({**answers(a_job()), "POST /v1/forecast": answer}) as address:
            show_forecasts(address, ForecastRequest(job="digits", devices=(1, 2)), as_json=False)
        assert ("would have to wait for its devices" in capsys.readouterr().out) is is_said


def test_a_guess_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    guess = WhatIfAnswer(forecasts=(), is_measured=False).model_dump(mode="json")
    with canned_broker({**answers(a_job()), "POST /v1/forecast": guess}) as address:
        show_forecasts(address, ForecastRequest(devices=(1,)), as_json=False)
    out = capsys.readouterr().out
    assert "its times are a guess" in out
    assert {"as things are", "1"} <= {row[0] for row in table(out)}  # a broker that plays nothing ahead


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ForecastRequest(hours=1.0, like="digits"), "one of them"),
        (ForecastRequest(job="digits", hours=1.0), "leave JOB out"),
        (ForecastRequest(on=2), "belong to --hours"),
        (ForecastRequest(devices=tuple(range(1, 18))), "at most 8"),
        (ForecastRequest(hours=1.0, on=4, most=2), "2 devices is fewer than the 4"),
        (ForecastRequest(hours=1.0, devices=(5,)), "--devices 5"),
        (ForecastRequest(like="old"), "never had a device"),
        (ForecastRequest(job="old", devices=(1,)), "has ended"),
        (ForecastRequest(job="digits", without=("no such\nname",)), "--without"),
        (ForecastRequest(job="digits", without=("digits",)), "it is the job that is asked about"),
        (ForecastRequest(job="digits", devices=(100_000,)), "--devices"),
    ],
)
def test_what_cannot_be_asked_is_refused(request_: ForecastRequest, words: str, broker: str) -> None:
    with pytest.raises(Refused, match=words):
        show_forecasts(broker, request_, as_json=False)
    assert posted == []


def test_a_name_that_the_broker_does_not_know_is_wrong_use() -> None:
    known = {name: said for name, said in answers(a_job()).items() if not name.startswith("POST")}
    with canned_broker(known) as address, pytest.raises(Refused, match="no such thing"):
        show_forecasts(address, ForecastRequest(without=("nobody",)), as_json=False)


def test_on_the_command_line_too(broker: str, tmp_path: Path) -> None:
    asked = ("--hours", "6", "--on", "2", "--most", "4", "--devices", "2,4", "--without", "bob")
    done = selfsched("forecast", *asked, "--broker", broker, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [count for count, _ in posted[0]["seconds"]] == [1, 2, 3, 4]
    wrong = selfsched("forecast", "--past", "--hours", "6", "--broker", broker, home=tmp_path)
    assert wrong.returncode == 2
    assert "--past" in wrong.stderr


def test_the_clock_is_the_user_s_own() -> None:
    now = datetime(2030, 1, 2, 23, 57, tzinfo=timezone(timedelta(hours=2)))
    assert clock_words(SOON, now) == "23:59"
    assert clock_words(LATER, now) == "Thu 00:03"
    assert clock_words(SOON.model_copy(update={"p50_seconds": 9e5}), now) == "2030-01-13 09:57"
    assert clock_words(SOON, now.astimezone(UTC)) == "21:59"
    assert clock_words(None, now) == ""


def test_when_a_start_is_expected_in_words() -> None:
    assert start_words(AT_ONCE) == "now"
    assert start_words(None) == "not with these devices"
    assert expected_start(WAITING) == "expected to start in 6 min 00 s (2 min 00 s to 20 min 00 s)"
    assert expected_start(a_job(starts=LATER)) == ""
