"""`simulate`: its JSON contract, and plain words for what it cannot use."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from selfsched_simulator import cli
from selfsched_simulator.cli import app
from selfsched_simulator.runs import Run, run_all

HEADER = "job,arrival_s,gpus,exclusive_s\n"
FIELDS = {
    "policy", "jobs", "makespan_s", "mean_completion_s", "median_completion_s", "worst_rho_static",
    "unfair_fraction", "worst_rho_themis", "utilisation", "restarts_per_job", "wall_s",
}  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "a,0,1,100\nb,5,2,60\nc,30,1,50\n")
    return path


def call(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


def test_one_policy_prints_one_object_and_nothing_else(trace: Path) -> None:
    code, out, err = call(trace, "--policy", "themis", "--gpus", 2, "--round", 10, "--restart", 1, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert set(answer) == FIELDS
    assert (answer["policy"], answer["jobs"]) == ("themis", 3)


def test_what_a_solver_writes_past_python_is_not_on_stdout(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def talkative(*given: Any) -> Sequence[Run]:
        os.write(1, b"WARNING: a line of HiGHS")
        return run_all(*given)

    monkeypatch.setattr(cli, "run_all", talkative)
    code, out, _ = call(trace, "--gpus", 2, "--json")
    assert code == 0
    assert set(json.loads(out)) == FIELDS
    os.write(1, b"after it")
    seen = capfd.readouterr()
    assert (seen.out, seen.err) == ("after it", "WARNING: a line of HiGHS")


def test_several_policies_print_their_runs_in_order(trace: Path) -> None:
    code, out, _ = call(trace, "--policy", "fifo,themis", "--gpus", 2, "--json")
    assert code == 0
    assert [run["policy"] for run in json.loads(out)["runs"]] == ["fifo", "themis"]


def test_a_table_for_people(trace: Path) -> None:
    code, out, _ = call(trace, "--gpus", 2, "--policy", "themis,fifo")
    assert code == 0
    assert "themis" in out
    assert "fifo" in out


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "lacks the columns arrival_s, gpus, exclusive_s"),
        (HEADER, "has no rows"),
        ("arrival_s,gpus\n0,1\n", "lacks the columns exclusive_s"),
        ("job,arrival_s,application,requested_replicas\n", "need --steptimes"),
        (HEADER + "a,0,3,10\n", "line 2: the job 'a' needs 3 GPUs, the cluster has 2"),
        (HEADER + "a,0,0,10\n", "line 2: gpus is 0"),
        (HEADER + "a,0,-1,10\n", "gpus is -1"),
        (HEADER + "a,0,1.5,10\n", "gpus is 1.5"),
        (HEADER + "a,0,1,0\n", "exclusive_s is 0"),
        (HEADER + "a,0,1,-5\n", "exclusive_s is -5"),
        (HEADER + "a,-1,1,5\n", "arrival_s is -1"),
        (HEADER + "a,0,1,nan\n", "exclusive_s is 'nan', out of range"),
        (HEADER + "a,0,1,1e999\n", "out of range"),
        (HEADER + "a,x,1,5\n", "arrival_s is 'x', not a number"),
        (HEADER + "a,0,1\n", "exclusive_s is '', not a number"),
        (HEADER + "a,0,1,5\nb,0,1,5\na,3,1,5\n", "line 4: the job 'a' is there already, in line 2"),
        (HEADER + "a b,0,1,5\n", "the job's name 'a b'"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path: Path, body: str, words: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(body)
    code, out, err = call(path, "--gpus", 2, "--json")
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


def test_a_trace_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    assert call(tmp_path / "none.csv", "--gpus", 2)[0] == 2
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81" * 30)
    assert call(tmp_path / "binary.csv", "--gpus", 2)[0] == 2
    assert call(tmp_path, "--gpus", 2)[0] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "best"], "no policy 'best'; there are: fifo"),
        (["--policy", "themis,themis"], "names a policy twice"),
        (["--gpus", "0"], "--gpus is 0"),
        (["--round", "0"], "--round is 0"),
        (["--round", "nan"], "--round is nan"),
        (["--round", "20", "--restart", "20"], "nothing would advance"),
        (["--restart", "-1"], "--restart is -1"),
        (["--noise", "nan"], "--noise is nan"),
        (["--noise", "9"], "--noise is 9"),
        (["--seed", "-1"], "--seed is -1"),
        (["--cluster", "16x4:aws"], "--gpus and --cluster both say"),
        (["--steptimes", "f.csv"], "--steptimes is of no use"),
        (["--throughput", "f.csv"], "--throughput is of no use"),
        (["--requested"], "--requested is of no use"),
        (["--round", "20", "--term", "30"], "--round and --term both say"),
        (["--term", "0"], "--term is 0"),
        (["--seeds", "0"], "--seeds is 0"),
        (["--lost", "1"], "--lost is 1, it must be between 0 and 0.9"),
        (["--mtbf", "1"], "--mtbf is 1"),
        (["--failures", "none.csv"], "cannot read the list of failures none.csv"),
    ],
)
def test_a_wrong_option_is_refused_by_name(trace: Path, arguments: list[str], words: str) -> None:
    given = arguments if "--gpus" in arguments else ["--gpus", "2", *arguments]
    code, out, err = call(trace, *given)
    assert (code, out) == (2, "")
    assert words in err


def test_gpus_must_be_said(trace: Path) -> None:
    code, _, err = call(trace)
    assert code == 2
    assert "--gpus is missing" in err


def test_names_and_order_of_rows_are_the_traces_own(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("exclusive_s,arrival_s,gpus,note\n50,10,1,x\n20,0,1,y\n")
    code, out, _ = call(path, "--gpus", 1, "--policy", "fifo", "--restart", 0, "--json")
    assert code == 0
    assert json.loads(out)["makespan_s"] == pytest.approx(70)
