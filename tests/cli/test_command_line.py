"""What the command line refuses, with which words and exit code, and that help is complete."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.commands import selfsched

COMMANDS = ("demo", "run", "status", "forecast", "explain", "verify", "doctor", "runs", "attach", "stop")


def refused(done: object, *words: str) -> None:
    """Exit code 2, one line that says all of this, no traceback."""
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_an_example_in_its_help(command: str, tmp_path: Path) -> None:
    done = selfsched(command, "--help", home=tmp_path)
    assert done.returncode == 0
    assert f"selfsched {command}" in done.stdout.split("Example")[1]


def test_help_lists_every_command_and_the_exit_codes(tmp_path: Path) -> None:
    done = selfsched("--help", home=tmp_path)
    assert all(f"  {command} " in done.stdout for command in COMMANDS)
    assert "75 yielded" in done.stdout


@pytest.mark.parametrize(
    "arguments", [("--verbos",), ("status", "--jsn"), ("run", "--device", "2", "true"), ("go",)]
)
def test_an_unknown_option_or_command_is_wrong_use(arguments: tuple[str, ...], tmp_path: Path) -> None:
    refused(selfsched(*arguments, home=tmp_path), "No such")


def test_an_unknown_setting_is_wrong_use_and_the_nearest_is_named(tmp_path: Path) -> None:
    done = selfsched("status", home=tmp_path, SELFSCHED_BROKR="http://127.0.0.1:1")
    refused(done, "SELFSCHED_BROKR", "did you mean SELFSCHED_BROKER?")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--devices", "0", "--", "true"), ("--devices '0'",)),
        (("run", "--devices", "4-1", "--", "true"), ("--devices '4-1'",)),
        (("run", "--fixed", "--", "true"), ("--time",)),
        (("run", "--time", "2h", "--", "true"), ("--fixed",)),
        (("run", "--fixed", "--time", "soon", "--", "true"), ("--time 'soon'",)),
        (("run", "--wait", "30m", "--no-wait", "--", "true"), ("--wait",)),
        (("run", "--priority", "nan", "--", "true"), ("priority",)),
        (("run", "--plan", "nonsense", "--", "true"), ("plan",)),
        (("run", "--name", "a b\x07", "--", "true"), ("name",)),
        (("run",), ("COMMAND",)),
    ],
)
def test_wrong_use_of_run_is_refused_before_anything_starts(
    arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    refused(selfsched(*arguments, home=tmp_path), *words)


def test_without_a_broker_the_user_is_told_how_one_comes_about(tmp_path: Path) -> None:
    refused(selfsched("status", home=tmp_path), "no broker is running", "SELFSCHED_BROKER")


def test_a_broker_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    done = selfsched("status", "--broker", "http://127.0.0.1:9", home=tmp_path)
    assert done.returncode == 1
    assert "no answer from the broker at http://127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_shown(tmp_path: Path) -> None:
    import selfsched as package

    assert selfsched("--version", home=tmp_path).stdout.strip() == package.__version__
