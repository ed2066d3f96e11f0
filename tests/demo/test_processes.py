"""The demo leaves no process behind, and ends none that is not its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from selfsched.demo.processes import Processes, marked

# Starts a grandchild in a session of its own, says so, and ignores a polite request to leave.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_children_and_their_children_are_ended_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selfsched.demo.processes._LEAVE_SECONDS", 0.5)
    mark = str(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stranger:
        with Processes(mark, tmp_path) as processes:
            child = processes.start("stubborn", [sys.executable, "-c", STUBBORN], dict(os.environ))
            while "ready" not in child.log.read_text():
                assert child.exit_code() is None
                time.sleep(0.01)
            assert len(list(marked(mark))) == 2
        assert list(marked(mark)) == []
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.slow
def test_a_child_s_last_words_are_kept(tmp_path: Path) -> None:
    with Processes(str(tmp_path), tmp_path) as processes:
        child = processes.start("words", [sys.executable, "-c", "print('a\\rb'); 1/0"], dict(os.environ))
        assert child.process.wait() == 1
    assert child.tail().splitlines()[:2] == ["a", "b"]
    assert child.tail().endswith("ZeroDivisionError: division by zero")
