"""Texts that are no Unicode: replaced where people read them, kept where files are found by them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from selfsched.core.events import (
    CheckpointSaved,
    Event,
    Progressed,
    RankRaised,
    event_from_line,
    event_to_line,
)
from selfsched.core.lines import to_exact_json, to_line
from selfsched.elastic.job import JobDescription
from selfsched.elastic.segment import SegmentSpec

HALF = "value \udcff of \ud800\ndata"
RAISED = RankRaised(rank=0, fit=1, type="ValueError", message=HALF, traceback=f"Traceback:\n{HALF}")


@pytest.mark.parametrize(
    "event",
    [
        RAISED,
        CheckpointSaved(fit=1, step=3, path=Path("/runs/\udcff"), size_bytes=1, seconds=math.inf),
        Progressed(fit=1, step=1, epoch=0, samples=1, metrics={"\udcffloss": 1.0, "infinite": math.inf}),
    ],
)
def test_an_event_with_half_a_character_arrives_with_a_replacement_in_one_line(event: Event) -> None:
    line = event_to_line(event)
    assert line.count(b"\n") == 1
    heard = event_from_line(line)
    assert heard == event_from_line(to_line(heard)), "what arrived can be passed on"
    assert "\N{REPLACEMENT CHARACTER}" in str(heard)
    assert (heard.kind, getattr(heard, "step", 1)) == (event.kind, getattr(event, "step", 1))


def test_the_traceback_is_kept_around_it() -> None:
    heard = event_from_line(event_to_line(RAISED))
    assert heard.traceback == "Traceback:\nvalue \ufffd of \ufffd\ndata"


def test_other_texts_are_written_as_ever() -> None:
    whole = RAISED.model_copy(update={"message": "ä \U0001f600", "traceback": ""})
    assert to_line(whole) == whole.model_dump_json().encode() + b"\n"


def test_a_description_and_a_segment_find_their_files_by_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Path("/home/\udcff")
    job = JobDescription(
        run_directory=tmp_path, program="command", command=("python", "\udcff.py"), working_directory=odd,
        import_path=(str(odd),), notebook="\udcff.ipynb",
    )  # fmt: skip
    job.write()
    assert JobDescription.read(tmp_path) == job
    spec = SegmentSpec(
        run_directory=odd, ordinal=0, world_size=1, job_seed=0, min_devices=1, max_devices=1,
        events_socket=odd / "events", control_block=odd / "control-0",
    )  # fmt: skip
    spec.write(tmp_path / "segment")
    assert SegmentSpec.from_environment({"_SELFSCHED_SEGMENT": str(tmp_path / "segment")}) == spec
    assert json.loads(to_exact_json(spec))["run_directory"] == "/home/\udcff"
