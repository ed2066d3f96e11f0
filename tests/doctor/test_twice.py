"""`doctor train.py` finds code before `fit` that cannot run a second time."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfsched.doctor.twice import Start, check_script, judge
from selfsched.errors import Refused

SCRIPT = """
import os, lightning as L
{before}
L.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, accelerator="cpu").fit(L.LightningModule())
raise RuntimeError("fit must not return here")
"""


def a_start(**changes: object) -> Start:
    values = {"reached_fit": True, "made": (), "trackers": (), "exit_code": 0, "errors": ""}
    return Start(**(values | changes))  # type: ignore[arg-type]


def verdicts(first: Start, second: Start) -> dict[str, str]:
    return {found.subject: found.verdict for found in judge(Path("train.py"), first, second)}


def test_a_script_that_reaches_fit_twice_in_the_same_places_is_good() -> None:
    assert verdicts(a_start(made=("/a",)), a_start()) == {"Two starts": "good"}


def test_what_only_the_second_start_makes_is_named() -> None:
    found = list(judge(Path("train.py"), a_start(made=("/runs/1",)), a_start(made=("/runs/2",))))
    assert found[1].subject == "Names that change"
    assert "/runs/2" in found[1].found


def test_a_second_start_that_fails_names_the_line() -> None:
    errors = 'Traceback\n  File "/x/train.py", line 7, in <module>\nFileExistsError: out'
    (found,) = judge(Path("train.py"), a_start(), a_start(exit_code=1, errors=errors))
    assert found.verdict == "bad"
    assert found.found == "FileExistsError: out, train.py line 7"


def test_a_script_without_fit_and_a_tracker_before_fit_are_warned_of() -> None:
    assert verdicts(a_start(reached_fit=False), a_start(reached_fit=False)) == {"fit": "warning"}
    assert verdicts(a_start(), a_start(trackers=("wandb",)))["Tracking"] == "warning"


def test_a_missing_script_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no file"):
        check_script(tmp_path / "train.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "bad", "words"),
    [
        ("os.makedirs('out', exist_ok=True)", [], ""),
        ("os.mkdir('out')", ["Second start"], "FileExistsError"),
        ("os.mkdir(f'run-{os.getpid()}')", ["Names that change"], "run-"),
    ],
)
def test_scripts_are_started_for_real_and_never_trained(
    before: str, bad: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(before=before))
    found = [finding for finding in check_script(script) if finding.verdict != "good"]
    assert [finding.subject for finding in found] == bad
    assert all(words in finding.found for finding in found)
