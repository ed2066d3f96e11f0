"""What `status`, `forecast` and `explain` print, against a broker with known answers."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.canned_broker import LATER, a_job, answers, canned_broker, finished_job
from cli.commands import selfsched
from detached.made_up import FINISHED, MadeUpRun

from selfsched.commands.explain import show_explanation
from selfsched.commands.views import show_status
from selfsched.commands.words import score_words
from selfsched.core.hardware_figures import HardwareFigures
from selfsched.core.history import FILE_NAME, ForecastMade, JobHistory
from selfsched.core.performance import documented_prior
from selfsched.protocol import ForecastScores, JobState


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with canned_broker(answers(a_job(), finished_job())) as address:
        yield address


def printed(*arguments: str, broker: str, home: Path) -> str:
    done = selfsched(*arguments, "--broker", broker, home=home)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_status_says_what_i_have_why_and_until_when(broker: str, tmp_path: Path) -> None:
    text = printed("status", broker=broker, home=tmp_path)
    for words in (
        "digits",
        "2 of 1-2",
        "digits (slot-0, slot-1): ",
        "25%",
        "2 min 00 s (1 min 40 s to 3 min 20 s)",
        "0.81",
    ):
        assert words in text
    assert "1 waiting" in text
    assert "auctioned in 25 s" in text


def test_status_and_explain_say_when_a_waiting_job_is_expected_to_start(tmp_path: Path) -> None:
    waiting = a_job(state=JobState.WAITING, devices=(), starts=LATER)
    with canned_broker(answers(waiting)) as broker:
        for command in (["status"], ["explain", "digits"]):
            text = printed(*command, broker=broker, home=tmp_path)
            assert "expected to start in 6 min 00 s (2 min 00 s to 20 min 00 s)" in text


def test_words_from_the_broker_are_text_not_markup_nor_terminal_codes(broker: str, tmp_path: Path) -> None:
    text = printed("status", broker=broker, home=tmp_path).replace("\n", " ")
    assert "[bold]" in text
    assert "\x1b" not in text


def test_status_as_json_is_the_broker_s_own_views(broker: str, tmp_path: Path) -> None:
    found = json.loads(printed("status", "--json", broker=broker, home=tmp_path))
    assert [job["name"] for job in found["jobs"]] == ["digits", "old"]
    assert found["cluster"]["devices"][0]["account"] == "alice"


def test_forecast_tells_of_live_jobs_only_and_answers_what_if(broker: str, tmp_path: Path) -> None:
    found = json.loads(printed("forecast", "--json", broker=broker, home=tmp_path))
    assert [answer["name"] for answer in found["forecasts"]] == ["digits"]
    text = printed("forecast", "digits", "--devices", "1", "--devices", "2", broker=broker, home=tmp_path)
    assert "as measured" in text
    past = printed("forecast", "--past", broker=broker, home=tmp_path)
    assert "20%" in past
    assert "digits (job-1)" in past
    assert "yes (devices changed)" in past


SCORE = "Of the last 40 forecasts 33 held (80 % expected); for 6 the devices changed meanwhile."


def test_how_forecasts_came_out_is_said_wherever_one_is_shown(broker: str, tmp_path: Path) -> None:
    for command in (["status"], ["forecast"], ["forecast", "--past"]):
        assert SCORE in printed(*command, broker=broker, home=tmp_path).replace("\n", " ")
    status = json.loads(printed("status", "--json", broker=broker, home=tmp_path))
    forecast = json.loads(printed("forecast", "--json", broker=broker, home=tmp_path))
    past = json.loads(printed("forecast", "--past", "--json", broker=broker, home=tmp_path))
    assert status["forecasts"] == forecast["scores"] == past["scores"]
    assert (past["scores"]["made"], past["scores"]["held"]) == (40, 33)


def test_explain_gives_the_broker_s_reasons(broker: str, tmp_path: Path) -> None:
    text = printed("explain", "digits", broker=broker, home=tmp_path)
    assert "because won by auction 3" in text
    assert "share 1.00, rho 0.81" in text
    found = json.loads(printed("explain", "digits", "--json", broker=broker, home=tmp_path))
    assert found["job"]["job"] == "job-1"
    assert found["run"] is None


def test_explain_without_a_name_means_the_newest_job_that_has_not_ended(broker: str, tmp_path: Path) -> None:
    found = json.loads(printed("explain", "--json", broker=broker, home=tmp_path))
    assert found["job"]["job"] == "job-1"


def test_explain_without_a_name_means_this_notebook_s_run(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SELFSCHED_RUNS_DIR", str(tmp_path))
    monkeypatch.setenv("JPY_SESSION_NAME", "mine.ipynb")
    for number, (name, notebook) in enumerate({"night": "mine.ipynb", "newer": "other.ipynb"}.items()):
        run = MadeUpRun(tmp_path, name, notebook=notebook, started_at_unix=1000.0 + number)
        run.end(FINISHED)
        (run.directory.path / FILE_NAME).write_text(JobHistory(name=name, job=f"{name}-1").model_dump_json())
    show_explanation(broker, None, as_json=True)
    assert json.loads(capsys.readouterr().out)["history"]["job"] == "night-1"
    monkeypatch.delenv("JPY_SESSION_NAME")
    show_explanation(broker, None, as_json=True)
    assert json.loads(capsys.readouterr().out)["job"]["job"] == "job-1"


def test_in_a_notebook_a_table_is_text_that_fits_into_a_cell(
    broker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    show_status(broker, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert any("digits" in line and "running" in line for line in lines)
    assert "" not in [line.strip() for line in lines]


def test_a_job_nobody_knows_is_wrong_use_and_the_known_ones_are_named(broker: str, tmp_path: Path) -> None:
    for command in ("forecast", "explain"):
        done = selfsched(command, "digit", "--broker", broker, home=tmp_path)
        assert done.returncode == 2
        assert "yours: digits, old" in done.stderr


@pytest.mark.slow
def test_doctor_reports_the_broker_and_who_we_are(broker: str, tmp_path: Path) -> None:
    done = selfsched("doctor", "--json", "--broker", broker, home=tmp_path)
    found = {finding["subject"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert found["Broker"]["verdict"] == "good"
    assert "2 jobs of yours" in found["Identity"]["found"]
    assert {"Python", "torch", "GPUs", "Disk", "Shared memory", "Jupyter", "Device locks"} <= set(found)


@pytest.mark.slow
def test_doctor_takes_what_is_no_broker_for_bad(tmp_path: Path) -> None:
    with canned_broker({"GET /v1/cluster": {"hello": "world"}}) as address:
        done = selfsched("doctor", "--json", "--broker", address, home=tmp_path)
    found = {finding["subject"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert done.returncode == 1
    assert found["Broker"]["verdict"] == "bad"
    assert "no selfsched broker" in found["Broker"]["found"]


def test_explain_holds_past_forecasts_against_what_came(broker: str, tmp_path: Path) -> None:
    run = tmp_path / "a-run"
    run.mkdir()
    open_one = ForecastMade(
        at=0.1,
        made_at_s=20.0,
        devices=1,
        assumption="as_now",
        predicted_finish_s=90.0,
        low_s=80.0,
        high_s=110.0,
    )
    scored = open_one.model_copy(update={"at": 0.25, "predicted_finish_s": 130.0, "actual_finish_s": 120.0})
    (run / FILE_NAME).write_text(JobHistory(name="a-run", forecasts=(open_one, scored)).model_dump_json())
    lines = printed("explain", str(run), broker=broker, home=tmp_path).splitlines()
    (head,) = [line for line in lines if "predicted finish" in line]
    assert head.split()[-2:] == ["came", "error"]
    (first,) = [line for line in lines if "10% (20 s)" in line]
    (second,) = [line for line in lines if "25% (20 s)" in line]
    assert "120 s" not in first
    assert second.split()[-3:] == ["120", "s", "10%"]


def test_without_an_end_there_is_no_score() -> None:
    for scores in (None, ForecastScores()):
        assert score_words(scores) == "No forecast has been held against an end yet"


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        (
            HardwareFigures(hardware="cpu", prior=documented_prior("cpu").model_copy(update={"jobs": 12})),
            "cpu: hardware figures learned from 12 jobs",
        ),
        (HardwareFigures(hardware="cpu", refused="version 99"), "are used: version 99"),
        (None, "documented ones; no broker told any"),
    ],
)
def test_explain_says_where_the_figures_of_the_hardware_are_from(
    figures: HardwareFigures | None, words: str, broker: str, tmp_path: Path
) -> None:
    run = tmp_path / "a-run"
    run.mkdir()
    (run / FILE_NAME).write_text(JobHistory(name="a-run", figures=figures).model_dump_json())
    text = printed("explain", str(run), broker=broker, home=tmp_path)
    (line,) = [line for line in text.splitlines() if line.startswith("Figures of the hardware: ")]
    assert line.endswith(f"{words}.")
    found = json.loads(printed("explain", str(run), "--json", broker=broker, home=tmp_path))
    assert words in found["figures"]
