"""A run that is looked at again: what is shown of it, by its files alone."""

from __future__ import annotations

import html
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from detached.made_up import FINISHED, MadeUpRun, leave_checkpoint
from widget.told import Shown

from selfsched.cell.view import CellView
from selfsched.core.events import CheckpointSaved
from selfsched.elastic import channel
from selfsched.elastic.following import SHOWN_OUTPUT_BYTES, FollowedRun
from selfsched.elastic.manifest import newest_step
from selfsched.elastic.run_directory import RunOutcome
from selfsched.errors import Detached


class Seen:
    """A view that keeps what it is shown."""

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self.messages: list[Any] = []
        self.refreshed = 0
        self.closed = False
        self._then = then

    def show(self, message: Any) -> None:
        self.messages.append(message)

    def refresh(self) -> None:
        self.refreshed += 1
        if self._then is not None:
            self._then()

    def stopping(self, times: int) -> None:
        raise AssertionError("nobody stops a run by looking")

    def close(self) -> None:
        self.closed = True

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]

    @property
    def text(self) -> str:
        return "".join(message.text for message in self.of(channel.OutputSeen))


def test_a_run_that_is_over_is_shown_from_its_last_start_to_its_end(tmp_path: Path) -> None:
    run = MadeUpRun(tmp_path)
    run.lives(at=1.0, unix=101.0)
    run.trains(at=2.0, step=5)
    run.lives(at=50.0, unix=200.0)
    run.trains(at=51.0, step=40)
    run.journal.message(channel.StatusSeen(text="3 s left"))
    run.journal.output("fertig, ä".encode())
    run.end()
    view = Seen()
    assert FollowedRun(run.job).follow(view) == FINISHED
    assert [type(message) for message in view.messages] == [
        channel.SegmentBegan, channel.EventSeen, channel.EventSeen, channel.StatusSeen, channel.OutputSeen,
        channel.RunEnded,
    ]  # fmt: skip
    assert view.messages[0].at == 51.0
    assert (view.text, view.closed) == ("fertig, ä", True)


def test_what_comes_while_one_looks_is_shown_as_it_comes(tmp_path: Path) -> None:
    run = MadeUpRun(tmp_path)
    run.lives(at=1.0, unix=101.0)
    letters = "ä" * 3

    def goes_on() -> None:
        if view.refreshed == 1:
            run.trains(at=2.0, step=10)
            run.journal.output(letters.encode()[:3])  # cut inside a letter
        elif view.refreshed == 2:
            run.journal.output(letters.encode()[3:])
            run.journal.message(channel.Said(text="moved", at=9.0))
        else:
            run.end()

    view = Seen(goes_on)
    assert FollowedRun(run.job).follow(view) == FINISHED
    assert view.text == letters
    assert [said.text for said in view.of(channel.Said)] == ["moved"]
    assert len(view.of(channel.RunEnded)) == 1


def test_a_line_that_is_cut_or_unknown_hides_no_other(tmp_path: Path) -> None:
    run = MadeUpRun(tmp_path)
    events = run.directory.path / "events.jsonl"
    with events.open("ab") as file:
        file.write(b'\xff\xfe\n{"kind":"of_tomorrow","x":1}\n[]\n{"kind":"segment_beg\n')
    run.journal.message(channel.Said(text="seen", at=1.0))
    run.end()
    view = Seen()
    FollowedRun(run.job).follow(view)
    assert [said.text for said in view.of(channel.Said)] == ["seen"]


def test_of_what_was_printed_before_the_end_is_shown_and_the_rest_named(tmp_path: Path) -> None:
    run = MadeUpRun(tmp_path)
    run.journal.output(b"x" * SHOWN_OUTPUT_BYTES + b"the end\n")
    run.end()
    view = Seen()
    FollowedRun(run.job).follow(view)
    assert view.text.startswith("what was printed before is in ")
    assert str(run.directory.path / "output.log") in view.text
    assert view.text.endswith("xthe end\n")
    assert view.text.count("x") < SHOWN_OUTPUT_BYTES + 10


@pytest.mark.parametrize(
    ("saved_at", "has_payload", "words"),
    [
        (20, True, "selfsched.attach('night', resume=True) goes on from step 20"),
        (None, True, "resume=True) goes on from its beginning: no checkpoint was made"),
        (20, False, "the same run started again under its name goes on from step 20"),
    ],
)
def test_a_run_that_was_killed_says_how_it_goes_on(
    tmp_path: Path, saved_at: int | None, has_payload: bool, words: str
) -> None:
    run = MadeUpRun(tmp_path)
    run.trains(at=1.0, step=30)
    if has_payload:
        run.directory.payload.write_bytes(b"")
    if saved_at is not None:
        run.journal.event(
            CheckpointSaved(fit=1, step=saved_at, path=Path("x"), size_bytes=1, seconds=0.1)
        )
    run.die()
    view = Seen()
    outcome = FollowedRun(run.job).follow(view)
    assert (outcome.outcome, outcome.step) == ("failed", saved_at or 0)
    assert "its supervisor was killed, or the machine went down" in outcome.message
    assert words in outcome.message
    assert view.of(channel.RunEnded)[0].message == outcome.message


def test_a_run_that_was_killed_before_its_first_checkpoint_names_the_one_of_an_earlier_life(
    tmp_path: Path,
) -> None:
    run = MadeUpRun(tmp_path)
    leave_checkpoint(run.directory.path, 20)
    run.lives(at=1.0, unix=101.0)
    run.journal.event(CheckpointSaved(fit=1, step=20, path=Path("x"), size_bytes=1, seconds=0.1))
    run.lives(at=50.0, unix=200.0)
    run.trains(at=51.0, step=25)
    run.die()
    outcome = FollowedRun(run.job).follow(Seen())
    assert outcome.step == 20
    assert "goes on from step 20" in outcome.message


def test_the_newest_whole_checkpoint_of_the_newest_fit_is_named(tmp_path: Path) -> None:
    assert newest_step(tmp_path) is None
    leave_checkpoint(tmp_path, 90, fit=9)
    (tmp_path / "fits" / "notes").mkdir()
    leave_checkpoint(tmp_path, 3, fit=10)
    leave_checkpoint(tmp_path, 5, fit=10)
    leave_checkpoint(tmp_path, 7, fit=10, whole=False)
    (tmp_path / "fits" / "11").mkdir()
    assert newest_step(tmp_path) == 5
    (tmp_path / "fits" / "10").chmod(0o777)
    assert newest_step(tmp_path) == 90


def test_ctrl_c_leaves_the_run_and_the_second_one_does_no_more(tmp_path: Path) -> None:
    run = MadeUpRun(tmp_path)
    run.trains(at=1.0, step=30)
    before = signal.getsignal(signal.SIGINT)

    def press_twice() -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    view = Seen(press_twice)
    with pytest.raises(Detached, match=r"night goes on .* selfsched.attach\('night'\) follows it"):
        FollowedRun(run.job).follow(view)
    assert view.closed
    assert signal.getsignal(signal.SIGINT) is before
    assert run.directory.read_outcome() is None
    run.end()


def test_several_may_look_at_once(tmp_path: Path) -> None:
    run = MadeUpRun(tmp_path)
    run.trains(at=1.0, step=30)
    outcomes: list[RunOutcome] = []
    begun = threading.Barrier(3)

    def look() -> None:
        view = Seen()
        view._then = lambda: None if view.refreshed > 1 else (begun.wait(timeout=60), None)[1]
        outcomes.append(FollowedRun(run.job).follow(view))

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    begun.wait(timeout=60)
    run.end()
    for looker in lookers:
        looker.join(timeout=60)
    assert outcomes == [FINISHED, FINISHED]


def test_without_its_kernel_the_picture_says_how_the_run_is_seen_again(tmp_path: Path) -> None:
    run, shown = MadeUpRun(tmp_path, None), Shown()
    view = CellView(run.job, display=shown, now=lambda: 1.0)
    view.show(channel.Said(text="begun"))
    view.refresh()
    words = html.unescape(shown.outputs[0]["text/html"])
    assert f"selfsched.attach('{run.name}') shows it again" in words
    view.close()
    run.end()


def test_a_picture_of_the_past_has_the_times_of_the_past(tmp_path: Path) -> None:
    """Of another boot of the machine: instants are counted from the one that the run was in."""
    run = MadeUpRun(tmp_path)
    noon = datetime(2026, 5, 4, 12, 0, tzinfo=UTC).timestamp()
    run.lives(at=500.0, unix=noon)
    run.trains(at=500.0, step=40)
    run.journal.message(channel.Said(text="a word", at=520.0))
    run.journal.message(
        channel.SegmentEnded(ordinal=0, reason="finished", words="", step=40, at=560.0)
    )
    run.end()
    followed, shown = FollowedRun(run.job), Shown()
    clock = followed.clock
    view = CellView(run.job, display=shown, now=clock, unix_minus_boottime=clock.unix_minus_boottime)
    followed.follow(view)
    (left_behind,) = shown.outputs
    assert set(left_behind) == {"text/html", "text/plain"}
    assert "finished after 1 min" in left_behind["text/plain"]
    told_at = datetime.fromtimestamp(noon + 20).astimezone().isoformat(timespec="seconds")
    assert f'<time datetime="{told_at}">' in left_behind["text/html"]
