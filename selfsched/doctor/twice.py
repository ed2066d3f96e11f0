"""`selfsched doctor train.py`: does the code before `fit` bear to run again?

An elastic job starts the script anew in each segment. A directory that must not exist yet,
or a new one with each start, breaks that, and both are found by starting twice.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfsched.doctor.finding import Finding
from selfsched.errors import Refused

START_SECONDS = 300.0
_PLACE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


@dataclass(frozen=True)
class Start:
    """How far one start of the script came, and what it made before `fit`."""

    reached_fit: bool
    made: tuple[str, ...]
    trackers: tuple[str, ...]
    exit_code: int
    errors: str
    """What it wrote to standard error."""

    def failure(self, script: Path) -> str:
        """The last line of its traceback, and the line of the script it came from."""
        lines = self.errors.strip().splitlines()
        places = [found for line in lines if (found := _PLACE.search(line))]
        own = [place["line"] for place in places if Path(place["file"]).name == script.name]
        where = f", {script.name} line {own[-1]}" if own else ""
        return f"{lines[-1] if lines else f'exit code {self.exit_code}'}{where}"


def check_script(script: Path, arguments: Sequence[str] = ()) -> list[Finding]:
    """Start the script twice, each time up to its first `fit`.

    Raises:
        Refused: there is no such file.
    """
    if not script.is_file():
        raise Refused(f"{script} is no file: name the training script, as in `selfsched doctor train.py`")
    first = start(script, arguments)
    if first.exit_code != 0:
        return [
            Finding("First start", "bad", first.failure(script), "The script itself fails: mend that first.")
        ]
    return list(judge(script, first, start(script, arguments)))


def start(script: Path, arguments: Sequence[str]) -> Start:
    """One start, in the present directory."""
    with tempfile.TemporaryDirectory(prefix="selfsched-doctor-") as directory:
        report = Path(directory) / "report.json"
        command = [sys.executable, "-m", "selfsched.doctor.dry_start", str(report), str(script), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS)
        except subprocess.TimeoutExpired:
            return Start(False, (), (), 1, f"fit was not reached within {START_SECONDS:.0f} s")
        seen = json.loads(report.read_text()) if report.exists() else {}
    return Start(
        reached_fit=bool(seen.get("reached_fit")),
        made=tuple(seen.get("made", ())),
        trackers=tuple(seen.get("trackers", ())),
        exit_code=done.returncode,
        errors=done.stderr,
    )


def judge(script: Path, first: Start, second: Start) -> Iterator[Finding]:
    """What two starts of one script say about a third, a fourth, ..."""
    if second.exit_code != 0:
        yield Finding(
            "Second start", "bad", second.failure(script),
            "The code before fit runs again in each segment and must bear it: "
            "mkdir(exist_ok=True), overwrite instead of failing.",
        )  # fmt: skip
        return
    if not first.reached_fit:
        yield Finding(
            "fit", "warning", "the script ended without calling Trainer.fit",
            "Give the arguments with which it trains after its name.",
        )  # fmt: skip
        return
    yield Finding("Two starts", "good", "the script reaches fit each time")
    fresh = [path for path in dict.fromkeys(second.made) if path not in first.made]
    if fresh:
        yield Finding(
            "Names that change", "warning", f"made only by the second start: {', '.join(fresh[:3])}",
            "Each segment would write somewhere else: use a fixed name, or trainer.log_dir inside fit.",
        )  # fmt: skip
    for tracker in second.trackers:
        yield Finding(
            "Tracking", "warning", f"{tracker} is imported before fit",
            f"A {tracker} run that starts before fit starts once a segment: give it a fixed run id, "
            "or use Lightning's logger.",
        )  # fmt: skip
