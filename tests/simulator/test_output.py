"""What is printed and written: seeds and their spread, files of jobs, the page, a result cut short."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from selfsched_simulator import engine, page
from selfsched_simulator.cli import app

TRACE = "job,arrival_s,gpus,exclusive_s\na,0,1,100\nb,5,2,60\nc,30,1,50\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def call(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


def test_several_seeds_give_their_mean_and_spread(trace: Path) -> None:
    common = (trace, "--gpus", 2, "--policy", "srtf", "--round", 10, "--restart", 1, "--noise", 1.5, "--json")
    code, out, _ = call(*common, "--seeds", 4)
    assert code == 0
    answer = json.loads(out)
    single = [json.loads(call(*common, "--seed", seed)[1])["mean_completion_s"] for seed in range(1, 5)]
    assert answer["seeds"] == 4
    assert answer["mean_completion_s"] == pytest.approx(sum(single) / 4)
    assert set(answer["spread"]) >= {"makespan_s", "mean_completion_s", "worst_rho_static"}
    assert "±" in call(*common[:-1], "--seeds", 2)[1]


def test_a_line_for_each_job_and_policy(tmp_path: Path, trace: Path) -> None:
    path = tmp_path / "jobs.csv"
    common = (trace, "--gpus", 2, "--round", 10, "--restart", 1)
    assert call(*common, "--policy", "fifo,srtf", "--csv", path)[0] == 0
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert len(rows) == 6
    first = next(row for row in rows if (row["policy"], row["job"]) == ("fifo", "a"))
    assert float(first["start_s"]) == 0
    assert float(first["completion_s"]) == pytest.approx(101)
    assert float(first["rho_static"]) == pytest.approx(101 / 150, rel=1e-4)


class Page(HTMLParser):
    """Counts what a page is made of, and what it would load from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [
            value for name, value in attrs if name in ("src", "href") and value and not value.startswith("#")
        ]
        self.loaded += [value for name, value in attrs if name == "xlink:href" and value and value[0] != "#"]


def test_one_page_with_pictures_that_loads_nothing(tmp_path: Path, trace: Path) -> None:
    path = tmp_path / "page.html"
    assert call(trace, "--gpus", 2, "--policy", "fifo,srtf", "--html", path)[0] == 0
    text = path.read_text()
    found = Page(text)
    assert found.tags.count("svg") == 4, "distributions, over time, and the jobs of each policy"
    assert found.tags.count("tr") == 3
    assert found.loaded == []
    assert "script" not in found.tags
    assert "3 jobs on 2 devices" in text


def test_the_page_needs_matplotlib_and_says_so(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = call(trace, "--gpus", 2, "--policy", "fifo", "--html", tmp_path / "page.html")
    assert code == 2
    assert "pip install 'selfsched[demo]'" in err


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, trace: Path) -> None:
    for option in ("--csv", "--html"):
        code, _, err = call(trace, "--gpus", 2, "--policy", "fifo", option, tmp_path / "no" / "file")
        assert code == 2
        assert "cannot write" in err


def test_an_interrupt_prints_what_has_ended_and_says_that_it_is_partial(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: engine.Simulation, job: object) -> None:
        finish(self, job)
        if len(self.jobs) - len(self._live) == 2:
            raise KeyboardInterrupt

    finish = engine.Simulation._end
    monkeypatch.setattr(engine.Simulation, "_end", interrupt)
    code, out, err = call(trace, "--gpus", 2, "--policy", "fifo,srtf", "--json")
    assert code == 130
    answer = json.loads(out)
    assert answer["policy"] == "fifo", "the next policy is not begun"
    assert (answer["jobs"], answer["unfinished"], answer["partial"]) == (2, 1, "interrupted")
    assert "fifo: interrupted: 1 jobs have not ended, the result is partial" in err


def test_a_policy_that_raises_fails_the_run(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from selfsched_broker.core.policies.fifo import Fifo

    def fail(*_: object) -> None:
        raise ArithmeticError("no")

    monkeypatch.setattr(Fifo, "rule", fail)
    code, out, err = call(trace, "--gpus", 2, "--policy", "fifo", "--json")
    assert (code, out) == (1, "")
    assert "the policy fifo failed: ArithmeticError" in err


def test_a_long_table_of_jobs_is_no_picture_of_each(monkeypatch: pytest.MonkeyPatch, trace: Path) -> None:
    monkeypatch.setattr(page, "_MOST_BARS", 2)
    path = trace.parent / "page.html"
    assert call(trace, "--gpus", 2, "--policy", "fifo", "--html", path)[0] == 0
    assert Page(path.read_text()).tags.count("svg") == 2
