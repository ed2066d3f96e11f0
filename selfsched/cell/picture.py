"""A run as markup: the parts that a live picture exchanges, and the whole as it stays. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from selfsched.cell import charts
from selfsched.cell.knowledge import RunKnowledge
from selfsched.cell.marks import text
from selfsched.cell.story import RunStory
from selfsched.core.bidding import duration_words
from selfsched.core.forecast import LoggedForecast
from selfsched.core.run_ends import run_end_words

_STALE_SECONDS = 120.0
"""A forecast older than this is no longer shown as the finish."""
_SHOWN_METRICS = 6
PANELS = {
    "allocation": "Devices over time",
    "finish": "Finish as predicted",
    "parts": "What a step consists of",
    "scaling": "Steps a second by devices",
}
_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Picture:
    """The parts of a run's picture, each markup."""

    head: str = ""
    """Where it stands; changes every second."""
    panels: Mapping[str, str] = field(default_factory=dict)
    """By the names of `PANELS`; those with nothing to show are left out."""
    said: str = ""
    """Items of a list."""
    newest: str = ""
    """The last thing said, as plain words, for those who listen."""


@dataclass(frozen=True)
class Clock:
    """How a machine's CLOCK_BOOTTIME reads on the wall."""

    unix_minus_boottime: float
    zone: tzinfo = UTC

    def at(self, instant: float) -> datetime:
        """The wall's time of an instant."""
        return datetime.fromtimestamp(instant + self.unix_minus_boottime, self.zone)


class Drawer:
    """Draws one run, from its story and what is known of its speed.

    Args:
        name: of the run, for its heading.
        story: what happened.
        knowledge: what it knows of itself.
        clock: the wall's.
    """

    def __init__(self, name: str, story: RunStory, knowledge: RunKnowledge, clock: Clock) -> None:
        self._name, self._story, self._knowledge, self._clock = name, story, knowledge, clock

    def head(self, now: float) -> str:
        """Bar, step, devices, metrics, finish."""
        progress, story = self._story.text, self._story
        fraction = _fraction(story)
        facts = [f"<b>{text(self._name)}</b>", self._state(), progress.position()]
        if progress.epoch:
            facts.append(f"epoch {progress.epoch}")
        facts += [f"{text(name)} {value:.4g}" for name, value in progress.shown_metrics(_SHOWN_METRICS)]
        elapsed = story.elapsed_seconds(now)
        facts.append(f"{duration_words(elapsed)} so far" if not story.outcome and elapsed >= 1 else "")
        facts.append(self._finish(now))
        spoken = f"{fraction:.0%}, {progress.position()}" if fraction is not None else progress.position()
        value = f' aria-valuenow="{100 * fraction:.0f}"' if fraction is not None else ""
        width = 100 * (fraction or 0.0)
        return (
            f'<div class="selfsched-bar" role="progressbar" aria-label="{text(self._name)}" '
            f'aria-valuemin="0" aria-valuemax="100"{value} aria-valuetext="{text(spoken)}">'
            f'<div style="width:{width:.1f}%"></div></div>'
            f'<p class="selfsched-facts">{" · ".join(fact for fact in facts if fact)}</p>'
        )

    def _state(self) -> str:
        story = self._story
        if story.outcome is not None:
            return text(run_end_words(story.outcome.outcome, story.outcome.message))
        if story.text.devices:
            return f"{story.text.devices} device{'s' if story.text.devices > 1 else ''}"
        if story.text.is_waiting and story.text.status:
            return f"waiting: {text(story.text.status)}"
        return "starting"

    def _finish(self, now: float) -> str:
        newest = self._knowledge.newest()
        if self._story.outcome is not None:
            return f"took {duration_words(self._story.elapsed_seconds(now))}"
        if not self._story.text.devices:
            return ""
        if newest is None or not 0 <= now - newest.made_at <= _STALE_SECONDS:
            return text(self._story.text.status)  # what the supervisor said last of the time that is left
        middle, low, high = (self._time(newest, s) for s in _quantiles(newest))
        return f"done about {middle} ({low} to {high})"

    def _time(self, made: LoggedForecast, seconds: float) -> str:
        return _time(self._clock.at(made.made_at) + timedelta(seconds=seconds))

    def panels(self, now: float) -> dict[str, str]:
        """The charts for which there is something to draw."""
        story, told = self._story, self._knowledge.explanation()
        elapsed = story.elapsed_seconds(now)
        done = elapsed if story.outcome is not None and story.outcome.outcome == "finished" else None
        drawn = {
            "allocation": charts.allocation(story.spans(now), elapsed),
            "finish": charts.finish(
                self._knowledge.predicted(story.began_at or 0.0), elapsed, ended=done
            ),
            "parts": charts.step_parts(told.parts, told.devices, story.text.devices) if told else "",
            "scaling": charts.scaling(told.curve, told.measured) if told else "",
        }
        return {name: markup for name, markup in drawn.items() if markup}

    def said(self) -> str:
        """What happened and why, newest first."""
        items = [
            f"<li>{_time(self._clock.at(instant))} {text(_plain(words))}</li>"
            for instant, words in reversed(self._story.said)
        ]
        return "".join(items)

    def newest(self) -> str:
        """The last thing that was said, as plain words."""
        return _plain(self._story.said[-1][1]) if self._story.said else ""

    def words(self, now: float) -> str:
        """Where it stands in one line of text."""
        parts = [self._name, self._story.text.line(), self._end_words(now)]
        return "  ".join(_plain(part) for part in parts if part)

    def _end_words(self, now: float) -> str:
        outcome = self._story.outcome
        if outcome is None:
            return ""
        ending = run_end_words(outcome.outcome, outcome.message)
        return f"{ending} after {duration_words(self._story.elapsed_seconds(now))}"

    def whole(self, now: float) -> Picture:
        """All of it."""
        return Picture(self.head(now), self.panels(now), self.said(), self.newest())


def still(picture: Picture, style: str) -> str:
    """The picture as it stays in a saved notebook: no script, nothing that is fetched."""
    figures = "".join(figure(name, markup) for name, markup in picture.panels.items())
    said = (
        f"<details><summary>What happened</summary><ol>{picture.said}</ol></details>" if picture.said else ""
    )
    return (
        f'<section class="selfsched-run"><style>{style}</style>{picture.head}'
        f'<div class="selfsched-panels">{figures}</div>{said}</section>'
    )


_KEPT_RULES = (
    ".selfsched-kept{display:none}"
    ".jp-OutputArea-child:not(:has(.selfsched-live))+.jp-OutputArea-child .selfsched-kept{display:block}"
    ".jp-OutputArea-child:not(:has(.selfsched-live)):has(+.jp-OutputArea-child .selfsched-kept){display:none}"
)
"""In JupyterLab it is seen where the output before it has no live picture, and that one is not."""


def kept(picture: Picture, style: str, words: str) -> str:
    """The picture as an output after the live one, seen instead of it where that one is not there.

    Args:
        picture: as it stands.
        style: the picture's.
        words: what this is.
    """
    return (
        f'<style>{_KEPT_RULES}</style><div class="selfsched-kept">{still(picture, style)}'
        f"<p>{text(words)}</p></div>"
    )


def figure(name: str, markup: str) -> str:
    """One chart below its heading."""
    return f"<figure><figcaption>{PANELS[name]}</figcaption>{markup}</figure>"


def _fraction(story: RunStory) -> float | None:
    planned = story.text.planned_steps
    if not planned:
        return 1.0 if story.outcome is not None and story.outcome.outcome == "finished" else None
    return min(1.0, story.text.step / planned)


def _quantiles(made: LoggedForecast) -> Sequence[float]:
    return made.p50_seconds, made.p10_seconds, made.p90_seconds


def _time(at: datetime) -> str:
    """A time of day; the browser shows it in its own zone."""
    return f'<time datetime="{at.isoformat(timespec="seconds")}">{at:%H:%M}</time>'


def _plain(words: Any) -> str:
    """Words without what only a terminal understands."""
    return _TERMINAL.sub("", str(words))
