"""Runs and their output, read from directories as the supervisor leaves them."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from selfsched.core.history import FILE_NAME, JobHistory
from selfsched.elastic.job import JobDescription
from selfsched.elastic.run_directory import BoundedLog, RunDirectory, RunOutcome, open_run
from selfsched_jupyter.runs import NoSuchRun, OutputPage, RunView, list_runs, read_output


def a_run(parent: Path, name: str, *, at: float = 1000.0, **described: object) -> tuple[RunDirectory, int]:
    """A run that is alive as long as its descriptor is open."""
    directory, lock = open_run(name, parent=parent)
    job = {"run_directory": directory.path, "name": name, "program": "payload", **described}
    JobDescription(working_directory=parent, **job).write()  # type: ignore[arg-type]
    os.utime(directory.path / "job.json", (at, at))
    return directory, lock


def test_runs_are_listed_newest_first_with_their_notebooks(tmp_path: Path) -> None:
    _, old = a_run(tmp_path, "old", at=1000.0, notebook="work/old.ipynb", kernel_id="k-1")
    directory, new = a_run(tmp_path, "new", at=2000.0, started_at_unix=1990.5, detached=True)
    history = JobHistory(name="digits", job="job-7", planned_steps=100)
    (directory.path / FILE_NAME).write_text(history.model_dump_json())
    runs = list_runs(tmp_path)
    assert [run.name for run in runs] == ["new", "old"]
    assert (runs[0].job, runs[0].job_name, runs[0].planned_steps) == ("job-7", "digits", 100)
    assert (runs[0].started_at, runs[0].detached, runs[0].notebook) == (1990.5, True, None)
    assert (runs[1].notebook, runs[1].kernel_id, runs[1].job) == ("work/old.ipynb", "k-1", None)
    assert [run.state for run in runs] == ["running", "running"]
    os.close(old)
    os.close(new)


def test_a_notebook_is_named_as_jupyterlab_names_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "work").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(root)
    runs = tmp_path / "runs"
    elsewhere = str(tmp_path / "elsewhere.ipynb")
    for name, notebook in (("a", str(root / "work" / "a.ipynb")), ("b", "work/b.ipynb"), ("c", elsewhere)):
        os.close(a_run(runs, name, notebook=notebook)[1])
    for start in (root, link):
        named = {run.name: run.notebook for run in list_runs(runs, root=start)}
        assert named == {"a": "work/a.ipynb", "b": "work/b.ipynb", "c": elsewhere}


def test_a_run_that_ended_says_how_and_one_that_was_killed_is_lost(tmp_path: Path) -> None:
    directory, lock = a_run(tmp_path, "done")
    directory.write_outcome(RunOutcome(outcome="finished", exit_code=0, message="well done", step=42))
    _, killed = a_run(tmp_path, "killed")
    os.close(lock)
    os.close(killed)
    runs = {run.name: run for run in list_runs(tmp_path)}
    assert (runs["done"].state, runs["done"].step, runs["done"].message) == ("finished", 42, "well done")
    assert runs["done"].ended_at is not None
    assert (runs["killed"].state, runs["killed"].ended_at) == ("lost", None)


def test_looking_at_a_run_does_not_keep_it_from_being_started_again(tmp_path: Path) -> None:
    _, lock = a_run(tmp_path, "again")
    os.close(lock)
    assert list_runs(tmp_path)[0].state == "lost"
    _, lock = open_run("again", parent=tmp_path)
    os.close(lock)


def test_a_history_that_grows_is_read_anew(tmp_path: Path) -> None:
    directory, lock = a_run(tmp_path, "x")
    (directory.path / FILE_NAME).write_text(JobHistory(name="x").model_dump_json())
    assert list_runs(tmp_path)[0].job is None
    (directory.path / FILE_NAME).write_text(JobHistory(name="x", job="job-1").model_dump_json())
    assert list_runs(tmp_path)[0].job == "job-1"
    os.close(lock)


def test_the_list_is_bounded(tmp_path: Path) -> None:
    for number in range(6):
        os.close(a_run(tmp_path, f"run-{number}", at=1000.0 + number)[1])
    assert [run.name for run in list_runs(tmp_path, most=2)] == ["run-5", "run-4"]


def test_what_is_no_run_or_is_broken_is_passed_over(tmp_path: Path) -> None:
    directory, lock = a_run(tmp_path, "good")
    (directory.path / FILE_NAME).write_text("[" * 5000)
    (directory.path / "outcome.json").write_text('{"outcome": 7')
    os.close(lock)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "job.json").write_text("{")
    (tmp_path / "link").symlink_to(directory.path)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "job.json").write_text(json.dumps({"name": 3, "notebook": ["x"], "detached": "no"}))
    runs = {run.name: run for run in list_runs(tmp_path)}
    assert runs.keys() == {"good", "odd"}
    assert runs["good"].state == "lost"
    assert (runs["odd"].job_name, runs["odd"].notebook, runs["odd"].detached) == ("odd", None, False)
    assert list_runs(tmp_path / "nowhere") == ()


SURROGATE = '"half \\udcff letter"'
HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("job", "outcome"),
    [
        (f'{{"started_at_unix": {HUGE}}}', "{}"),
        (f'{{"started_at_unix": -{HUGE}}}', "{}"),
        ('{"started_at_unix": NaN}', "{}"),
        ('{"started_at_unix": Infinity}', "{}"),
        ('{"started_at_unix": 1e300}', "{}"),
        (f'{{"name": {SURROGATE}, "kernel_id": {SURROGATE}}}', "{}"),
        (f'{{"notebook": {SURROGATE}}}', "{}"),
        ('{"notebook": "/x/\\u0000.ipynb"}', "{}"),
        ("{}", f'{{"outcome": {SURROGATE}, "message": {SURROGATE}}}'),
        ("{}", f'{{"outcome": "failed", "step": {HUGE}}}'),
        ("{}", '{"outcome": {"a": 1}, "step": 1e400, "message": [1]}'),
        ('{"name": "' + "a" * 2_000_000 + '"}', '{"message": "' + "a" * 2_000_000 + '"}'),
        ("[" * 100_000, "{}"),
    ],
)
def test_one_odd_run_does_not_hide_the_others(tmp_path: Path, job: str, outcome: str) -> None:
    os.close(a_run(tmp_path, "good")[1])
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "job.json").write_text(job)
    (tmp_path / "odd" / "outcome.json").write_text(outcome)
    (tmp_path / "odd" / FILE_NAME).write_text(f'{{"job": {SURROGATE}, "planned_steps": {HUGE}}}')
    sent = TypeAdapter(tuple[RunView, ...]).dump_json(list_runs(tmp_path, root=tmp_path))
    assert len(sent) < 20_000
    runs = {run["name"]: run for run in json.loads(sent)}
    assert "good" in runs
    if "odd" in runs:
        assert 0 < runs["odd"]["started_at"] < 1e12
        assert (runs["odd"]["step"], runs["odd"]["planned_steps"]) == (None, None)


def test_a_run_whose_name_cannot_be_asked_for_is_passed_over(tmp_path: Path) -> None:
    os.close(a_run(tmp_path, "good")[1])
    for name in (b"x\xff", b"a b", b".hidden", b"line\n"):
        path = os.path.join(os.fsencode(tmp_path), name)
        os.mkdir(path)
        with open(os.path.join(path, b"job.json"), "w") as file:
            file.write("{}")
    assert [run.name for run in list_runs(tmp_path)] == ["good"]


def test_runs_in_a_directory_whose_name_is_no_text_are_listed(tmp_path: Path) -> None:
    parent = tmp_path / os.fsdecode(b"home\xff")
    (parent / "good").mkdir(parents=True)
    (parent / "good" / "job.json").write_text("{}")
    assert b"home?" in TypeAdapter(tuple[RunView, ...]).dump_json(list_runs(parent))


# --- output ----------------------------------------------------------------------------------


def pages(parent: Path, name: str, *, page_bytes: int = 7) -> tuple[str, OutputPage]:
    """All there is, page by page; and the last page."""
    text, position = "", 0
    for _ in range(10_000):
        page = read_output(parent, name, position, page_bytes=page_bytes)
        text += page.text
        if page.next == position:
            return text, page
        position = page.next
    raise AssertionError("the pages never end")


def test_output_comes_in_pages_and_goes_on_where_it_was_left(tmp_path: Path) -> None:
    directory, lock = a_run(tmp_path, "x")
    log = BoundedLog(directory.path / "output.log", limit_bytes=10_000)
    log.write(b"eins zwei drei vier\n")
    text, page = pages(tmp_path, "x")
    assert text == "eins zwei drei vier\n"
    assert (page.complete, page.skipped) == (False, False)
    log.write(b"later\n")
    page = read_output(tmp_path, "x", page.next)
    assert (page.text, page.complete) == ("later\n", False)
    log.close()
    os.close(lock)
    directory.write_outcome(RunOutcome(outcome="finished", exit_code=0))
    page = read_output(tmp_path, "x", page.next)
    assert (page.text, page.complete) == ("", True)


def test_output_goes_on_through_a_file_that_was_put_aside(tmp_path: Path) -> None:
    directory, lock = a_run(tmp_path, "x")
    log = BoundedLog(directory.path / "output.log", limit_bytes=20)
    log.write(b"first half 1234567\n")
    seen = read_output(tmp_path, "x", 0, page_bytes=6)
    log.write(b"second half\n")
    rest = ""
    page = read_output(tmp_path, "x", seen.next)
    while page.text:
        rest += page.text
        assert not page.skipped
        page = read_output(tmp_path, "x", page.next)
    assert seen.text + rest == "first half 1234567\nsecond half\n"
    log.close()
    os.close(lock)


def test_output_that_was_not_kept_is_said_to_be_skipped(tmp_path: Path) -> None:
    directory, lock = a_run(tmp_path, "x")
    log = BoundedLog(directory.path / "output.log", limit_bytes=10)
    log.write(b"12345678\n")
    seen = read_output(tmp_path, "x", 0, page_bytes=6)
    with open(directory.path / "output.log") as _kept:  # so that its number is not given to a new file
        for number in range(5):
            log.write(f"line {number}\n".encode())
        page = read_output(tmp_path, "x", seen.next)
    assert page.skipped
    assert page.text.startswith("line ")
    log.close()
    os.close(lock)


@given(st.text(max_size=60), st.integers(4, 9))
def test_no_letter_is_torn_between_two_pages(text: str, page_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory, lock = a_run(Path(folder), "x")
        (directory.path / "output.log").write_bytes(text.encode())
        assert pages(Path(folder), "x", page_bytes=page_bytes)[0] == text
        os.close(lock)


def test_bytes_that_are_no_text_end_no_reading(tmp_path: Path) -> None:
    directory, lock = a_run(tmp_path, "x")
    (directory.path / "output.log").write_bytes(b"\xff\x80\x80\x80\x80\x80ok\xe2\x82")
    os.close(lock)
    text, page = pages(tmp_path, "x", page_bytes=4)
    assert "ok" in text
    assert page.complete


@pytest.mark.parametrize("name", ["", "..", ".", "../x", "no-such", "x/y", "link", "x\0", "x" * 300, "-x"])
def test_no_name_leads_out_of_the_runs(tmp_path: Path, name: str) -> None:
    parent = tmp_path / "runs"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "output.log").write_text("private")
    parent.mkdir()
    (parent / "link").symlink_to(outside)
    with pytest.raises(NoSuchRun):
        read_output(parent, name, 0)


def test_output_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    directory, lock = a_run(tmp_path, "x")
    secret = tmp_path / "secret"
    secret.write_text("private")
    (directory.path / "output.log").symlink_to(secret)
    os.mkfifo(directory.path / "output.log.1")
    assert read_output(tmp_path, "x", 0).text == ""
    os.close(lock)
