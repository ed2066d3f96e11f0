"""Runs found again by what stands in their directories."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from detached.made_up import FINISHED, MadeUpRun

from selfsched.commands.runs import show_runs, stop_run
from selfsched.elastic.found_runs import find_runs, going_on_of, newest_detached, run_named
from selfsched.elastic.run_directory import RunOutcome, open_run
from selfsched.errors import Refused
from selfsched.magics import line_magic


def test_each_run_says_how_it_stands_newest_first(tmp_path: Path) -> None:
    running = MadeUpRun(tmp_path, "running", started_at_unix=3000.0)
    MadeUpRun(tmp_path, "ended", started_at_unix=2000.0).end(RunOutcome("stopped", 130, step=7))
    MadeUpRun(tmp_path, "killed", started_at_unix=1000.0, detached=False).die()
    assert [(run.name, run.state) for run in find_runs(tmp_path)] == [
        ("running", "running"), ("ended", "stopped"), ("killed", "lost"),
    ]  # fmt: skip
    running.end()
    assert find_runs(tmp_path)[0].outcome == FINISHED


def test_what_is_no_run_of_ours_is_passed_over(tmp_path: Path) -> None:
    MadeUpRun(tmp_path, "good").end()
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "job.json").write_text('{"name": 3')
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "job.json").write_text('{"run_directory": "/x", "of_tomorrow": 1}')
    (tmp_path / "linked").symlink_to(tmp_path / "good")
    (tmp_path / "file").write_text("")
    assert [run.name for run in find_runs(tmp_path)] == ["good"]
    assert find_runs(tmp_path / "nowhere") == ()
    with pytest.raises(Refused, match="of another version of selfsched"):
        run_named("newer", tmp_path)


def test_a_run_is_found_by_its_name_its_path_or_how_it_begins(tmp_path: Path) -> None:
    MadeUpRun(tmp_path, "night-long").end()
    unnamed = MadeUpRun(tmp_path, None)
    unnamed.end()
    MadeUpRun(tmp_path, "night").end()
    assert run_named("night", tmp_path).name == "night"
    assert run_named("night-", tmp_path).name == "night-long"
    assert run_named(str(tmp_path / "night"), Path("/nowhere")).name == "night"
    assert run_named("_run-", tmp_path).name == unnamed.name
    with pytest.raises(Refused, match="2 runs are meant by 'nigh': night"):
        run_named("nigh", tmp_path)
    with pytest.raises(Refused, match=r"there is no run 'day' in .*; there are .*night-long \(finished"):
        run_named("day", tmp_path)
    with pytest.raises(Refused, match="there is no run ''"):
        run_named("", tmp_path)


def test_two_jobs_of_one_name_are_told_apart_by_their_directories(tmp_path: Path) -> None:
    for directory in ("one", "two"):
        MadeUpRun(tmp_path, directory, name="bert").end()
    with pytest.raises(Refused, match=r"2 runs are meant by 'bert': (one|two) \(finished, started 1970"):
        run_named("bert", tmp_path)


def test_the_newest_of_this_notebook_comes_before_newer_ones_of_others(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="there is no detached run"):
        newest_detached(tmp_path)
    MadeUpRun(tmp_path, "mine", notebook="/home/ada/a.ipynb", started_at_unix=1.0).end()
    MadeUpRun(tmp_path, "other", notebook="/home/ada/b.ipynb", started_at_unix=2.0).end()
    MadeUpRun(tmp_path, "script", program="command", started_at_unix=3.0).end()
    MadeUpRun(tmp_path, "bound", detached=False, started_at_unix=4.0).end()
    assert newest_detached(tmp_path, notebook="/home/ada/a.ipynb").name == "mine"
    assert newest_detached(tmp_path, notebook="/home/ada/c.ipynb", with_module=True).name == "other"
    assert newest_detached(tmp_path).name == "script"


def test_what_goes_on_of_a_notebook_is_known_to_its_next_kernel(tmp_path: Path) -> None:
    here = {"notebook": "/home/ada/a.ipynb"}
    runs = [
        MadeUpRun(tmp_path, "night", **here, started_at_unix=1.0),
        MadeUpRun(tmp_path, "day", **here, started_at_unix=2.0),
        MadeUpRun(tmp_path, "bound", **here, detached=False),
        MadeUpRun(tmp_path, "other", notebook="/home/ada/b.ipynb"),
    ]
    MadeUpRun(tmp_path, "over", **here).end()
    assert going_on_of("/home/ada/a.ipynb", tmp_path) == ("day", "night")
    assert going_on_of(None, tmp_path) == ()
    for run in runs:
        run.end()


def test_they_are_listed_for_people_and_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SELFSCHED_RUNS_DIR", str(tmp_path))
    show_runs(everything=False, as_json=False)
    assert "There are no runs in" in capsys.readouterr().out
    running = MadeUpRun(tmp_path, "night", notebook="/home/ada/night.ipynb", started_at_unix=2000.0)
    running.trains(at=5.0, step=12)
    MadeUpRun(tmp_path, "failed", detached=False).end(RunOutcome("failed", 1, "boom", step=3))
    show_runs(everything=False, as_json=False)
    table = capsys.readouterr().out
    assert re.search(r"night +running +1970-01-01 \S+ +12/40 +yes +night.ipynb", table)
    show_runs(everything=True, as_json=True)
    first, second = json.loads(capsys.readouterr().out)
    assert (first["name"], first["state"], first["detached"]) == ("night", "running", True)
    assert (first["step"], first["planned_steps"], first["notebook"]) == (12, 40, "/home/ada/night.ipynb")
    assert (second["state"], second["step"], second["message"]) == ("failed", 3, "boom")
    running.end()


def test_a_magic_lists_them_and_says_what_it_cannot_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SELFSCHED_RUNS_DIR", str(tmp_path))
    MadeUpRun(tmp_path, "night").end()
    line_magic("runs")
    assert "night  finished" in capsys.readouterr().out
    line_magic("stop day")
    assert "selfsched: there is no run 'day' in " in capsys.readouterr().err


def test_only_what_runs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFSCHED_RUNS_DIR", str(tmp_path))
    run = MadeUpRun(tmp_path)
    with pytest.raises(Refused, match="does not answer"):
        stop_run("night", at_once=False)
    run.end()
    with pytest.raises(Refused, match="does not run: it is finished"):
        stop_run("night", at_once=False)


def test_payloads_of_old_unnamed_runs_are_not_kept_for_ever(tmp_path: Path) -> None:
    paths = []
    for _ in range(8):
        run = MadeUpRun(tmp_path, None)
        run.directory.payload.write_bytes(b"data")
        run.end()
        paths.append(run.directory.payload)
    for _ in range(3):  # runs that left none take no place
        os.close(open_run(None, parent=tmp_path)[1])
    assert all(path.parent.exists() for path in paths)
    assert sum(path.exists() for path in paths) == 5
