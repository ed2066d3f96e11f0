"""A run in a notebook's cell: a live picture above its output, a still one when it is over.

Everything happens in the thread that waits for the run: `show` takes a message in, `refresh`
redraws what is due. The training is in other processes and notices nothing. However long a run
lasts, the notebook's file stays small: charts are bounded, and so is the output that is printed
into the cell; all of it is in the run's directory.

A page that is loaded again finds no live picture: its model is in a kernel that is busy, and the
output goes to the page that ran the cell. So a second output, renewed now and then, keeps the
picture as it stood, and stands in its place there (`picture.kept`).
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfsched.cell.knowledge import RunKnowledge
from selfsched.cell.picture import Clock, Drawer, Picture, kept, still
from selfsched.cell.repeats import Repeats
from selfsched.cell.story import RunStory
from selfsched.core.events import Progressed
from selfsched.elastic import channel
from selfsched.elastic.job import JobDescription
from selfsched.elastic.segment import boottime
from selfsched.elastic.views import stopping_words

if TYPE_CHECKING:
    from selfsched.widget import RunWidget

MOST_PRINTED_CHARACTERS = 200_000
"""Of output in a cell; what follows is shown in the picture, the newest of it."""
HEAD_SECONDS = 1.0
KEPT_SECONDS = 30.0
"""A notebook that is saved has a picture no older than this."""
SHORTEST_PANELS_SECONDS = 2.0
LONGEST_PANELS_SECONDS = 30.0
PANELS_SHARE = 600
"""The charts are drawn anew after this part of the time they show: less changes less."""

STYLE = Path(__file__).parents[1] / "widget.css"

Display = Callable[..., Any]
"""IPython's `display`."""


class CellView:
    """What `attach.View` asks for, in a cell.

    Args:
        job: the run.
        bar: whether a picture is shown; without it there is the output alone.
        display: IPython's; stands in for it in tests.
        now: CLOCK_BOOTTIME seconds.
        unix_minus_boottime: of the boot that the run's instants are of; None: of this one.
    """

    def __init__(
        self,
        job: JobDescription,
        *,
        bar: bool = True,
        display: Display | None = None,
        now: Callable[[], float] = boottime,
        unix_minus_boottime: float | None = None,
    ) -> None:
        self._job = job
        self._now = now
        self._display = display or _ipython_display()
        self._has_picture = bar
        self._story, self._knowledge = RunStory(), RunKnowledge(job)
        zone = datetime.now().astimezone().tzinfo
        assert zone is not None
        offset = time.time() - boottime() if unix_minus_boottime is None else unix_minus_boottime
        self._clock = clock = Clock(offset, zone)
        name = job.name or "Training"
        self._drawer = Drawer(name, self._story, self._knowledge, clock)
        self._widget: RunWidget | None = None
        self._handle: Any = None
        self._kept: Any = None
        self._head_at = self._panels_at = self._kept_at = float("-inf")
        self._printed_characters = 0
        self._repeats = Repeats()

    def show(self, message: Any) -> None:
        """One message of `channel`."""
        now = self._now()
        self._story.take(message, now)
        self._knowledge.take(message, now)
        if isinstance(message, channel.SegmentBegan):
            self._kept_at = float("-inf")
            self._repeats.segment_began()
        elif isinstance(message, channel.EventSeen) and isinstance(message.event, Progressed):
            self._repeats.stepped()
        if isinstance(message, channel.OutputSeen):
            self._print(message)
        elif isinstance(message, channel.Said):
            print(f"selfsched: {message.text}")

    def _print(self, message: channel.OutputSeen) -> None:
        stream = sys.stdout if message.stream == "stdout" else sys.stderr
        room = MOST_PRINTED_CHARACTERS - self._printed_characters
        text = message.text if message.stream == "stdout" else self._repeats.without(message.text)
        self._printed_characters += len(text)
        if room <= 0:
            return
        stream.write(text[:room])
        if len(text) > room:
            print(f"\nselfsched: the output has {MOST_PRINTED_CHARACTERS} characters; all of it is kept in "
                  "the run's output.log, the newest is in the picture")  # fmt: skip

    @property
    def _is_full(self) -> bool:
        return self._printed_characters > MOST_PRINTED_CHARACTERS

    def refresh(self) -> None:
        """Redraw what is due: where it stands each second, the charts the less often the longer it lasts."""
        now = self._now()
        if not self._has_picture or self._story.began_at is None:
            return
        if now - self._panels_at >= self._panels_seconds(now):
            self._panels_at = now
            self._knowledge.refresh(now)
            panels, said = self._drawer.panels(now), self._drawer.said()
            shown = self._shown()
            if shown is not None:
                shown.panels, shown.said = panels, said
        if now - self._head_at >= HEAD_SECONDS:
            self._head_at = now
            shown = self._shown()
            if shown is not None:
                shown.head, shown.newest = self._drawer.head(now), self._drawer.newest()
                shown.tail = self._story.tail if self._is_full else ""
                self._keep(now)

    def _panels_seconds(self, now: float) -> float:
        usual = self._story.elapsed_seconds(now) / PANELS_SHARE
        return min(LONGEST_PANELS_SECONDS, max(SHORTEST_PANELS_SECONDS, usual))

    def _shown(self) -> RunWidget | None:
        """The widget; made and displayed when there is first something to show."""
        if self._handle is None:
            self._widget = _new_widget()
            live = self._widget.bundle() if self._widget is not None else {}
            self._handle = self._display({**live, **self._without_kernel()}, raw=True, display_id=True)
        return self._widget

    def _keep(self, now: float) -> None:
        """Renew what a page that is loaded again shows; there is a live picture before it."""
        if now - self._kept_at < KEPT_SECONDS:
            return
        self._kept_at = now
        # The charts of now: those of the live picture may be of before the move.
        picture = Picture(self._drawer.head(now), self._drawer.panels(now), self._drawer.said())
        markup = kept(picture, STYLE.read_text(), self._words_when_kept(now))
        bundle = {"text/html": markup, "text/plain": self._drawer.words(now)}
        if self._kept is None:
            self._kept = self._display(bundle, raw=True, display_id=True)
        else:
            self._kept.update(bundle, raw=True)

    def _words_when_kept(self, now: float) -> str:
        return (
            f"As it stood at {self._clock.at(now):%H:%M}, not live any more: the panel has how it is now. "
            f"selfsched.attach({self._job.run_directory.name!r}) in another cell shows it again, once the "
            "kernel is free."
        )

    def _without_kernel(self) -> dict[str, str]:
        """What is seen instead of the live picture where no kernel is behind it."""
        words = (
            "The picture of a run that trains is shown by its kernel; `selfsched status` and JupyterLab's "
            "panel say how it is."
        )
        if self._job.detached:
            words += f" selfsched.attach({self._job.run_directory.name!r}) shows it again."
        return {"text/html": f"<p>{html.escape(words)}</p>", "text/plain": self._story.text.line() or words}

    def stopping(self, times: int) -> None:
        """The user asked to stop."""
        print(f"selfsched: {stopping_words(times)}")

    def close(self) -> None:
        """Leave a still picture in the notebook, in place of the live one."""
        if not self._has_picture or self._story.began_at is None:
            return
        now = self._now()
        self._knowledge.refresh(now)
        self._shown()
        picture = self._drawer.whole(now)
        self._handle.update(
            {"text/html": still(picture, STYLE.read_text()), "text/plain": self._drawer.words(now)}, raw=True
        )
        if self._kept is not None:
            self._kept.update({"text/html": "", "text/plain": ""}, raw=True)
            self._kept = None
        if self._widget is not None:
            self._widget.close()
            self._widget = None


def _new_widget() -> RunWidget | None:
    """A live picture; None where the packages for one are missing."""
    try:
        from selfsched.widget import RunWidget
    except ImportError:
        return None
    return RunWidget()


def _ipython_display() -> Display:
    from IPython.display import display

    shown: Display = display
    return shown
