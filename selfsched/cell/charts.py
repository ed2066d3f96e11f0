"""The four charts of a run: devices over time, the finish as it was predicted, a step, the scaling.

Each takes what is known and gives SVG, or nothing where there is nothing to draw yet. All times
in them are seconds since the run began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selfsched.cell import marks
from selfsched.cell.scales import (
    Scale,
    round_counts,
    round_durations,
    round_values,
    short_duration,
)
from selfsched.core.bidding import devices_words, duration_words
from selfsched.core.performance import StepTime

_SIZE = (320, 150)
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 22, 24
"""Above a chart is room for what its axis and its lines are."""
_TICK_WIDTH = 40
"""Of the longest words below an axis."""
_BAND_Z = 1.2815515655446004
"""10 and 90 %."""
_PART_WORDS = {
    "forward": "forward", "backward": "backward", "communication": "communication",
    "optimiser": "optimiser", "data": "waiting for data", "other": "the rest",
}  # fmt: skip


@dataclass(frozen=True)
class Span:
    """A stretch on a number of devices; seconds since the run began."""

    devices: int
    begin: float
    end: float
    first_step: int = 0
    last_step: int = 0


@dataclass(frozen=True)
class Predicted:
    """A forecast: when it was made, and the finish it spoke of; seconds since the run began."""

    made: float
    low: float
    middle: float
    high: float


def allocation(spans: Sequence[Span], now: float) -> str:
    """Devices over time; where there is nothing the run waited."""
    if not spans:
        return ""
    most = max(span.devices for span in spans)
    across, up = _scales(max(now, 1.0), most)
    bars = [
        marks.rect(
            across(span.begin), up(span.devices), max(0.6, across(span.end) - across(span.begin)),
            up(0) - up(span.devices), "line",
            told=f"{devices_words(span.devices)} for {duration_words(span.end - span.begin)}, "
            f"steps {span.first_step} to {span.last_step}",
        )
        for span in spans
    ]  # fmt: skip
    newest = spans[-1]
    held = f"now {devices_words(newest.devices)}" if newest.end >= now else "none now"
    told = f"Devices over {duration_words(now)}: {len(spans)} stretches, at most {most}, {held}."
    counts = [float(count) for count in range(most + 1)] if most <= 4 else round_values(most)
    return marks.drawing([*_axes(across, up, counts, "devices"), *bars], size=_SIZE, told=told)


def finish(made: Sequence[Predicted], now: float, *, ended: float | None = None) -> str:
    """When it would be done, against when that was said: the band is 10 to 90 %.

    Args:
        made: oldest first.
        now: seconds since the run began.
        ended: when it really ended; None: it has not.
    """
    if len(made) < 2:
        return ""
    # One wild early guess must not flatten everything that came after it.
    middles = sorted(one.middle for one in made)
    usual = middles[len(middles) // 2]
    bound = max(2.5 * max(usual, made[-1].middle), made[-1].high)
    top = max(now, ended or 0.0, min(max(one.high for one in made), bound))
    across, up = _scales(max(now, 1.0), top)
    band = [(across(one.made), up(one.low)) for one in made]
    band += [(across(one.made), up(one.high)) for one in reversed(made)]
    parts = [
        marks.area(band, "band"),
        marks.line([(across(one.made), up(one.middle)) for one in made], "line"),
        marks.line([(across(0), up(0)), (across(now), up(now))], "faint", dashed=True, width=0.9),
    ]
    newest = made[-1]
    if ended is not None:
        parts.append(marks.line([(across(0), up(ended)), (across(now), up(ended))], "point", width=0.9))
        told = f"Predicted finish over time; it ended after {duration_words(ended)}."
    else:
        told = (
            f"Predicted finish over time; now {duration_words(newest.middle)} after the start, "
            f"between {duration_words(newest.low)} and {duration_words(newest.high)}."
        )
    grid = _axes(across, up, round_durations(top), "done after", duration=True)
    lines = "10 to 90 %; dashed: time so far" + ("; level: the end" if ended is not None else "")
    return marks.drawing([*grid, *parts, _legend(lines)], size=_SIZE, told=told)


def step_parts(parts: Mapping[str, float], devices: int, held: int = 0) -> str:
    """What a step consists of: one bar, and a line of words for each part.

    Args:
        parts: seconds of each.
        devices: on which they were measured.
        held: devices that it has now; 0: none, or as many.
    """
    known = {name: parts[name] for name in _PART_WORDS if parts.get(name, 0.0) > 0}
    whole = sum(known.values())
    if whole <= 0:
        return ""
    across = Scale(0.0, whole, 10.0, _SIZE[0] - 10.0)
    drawn, x = [], across(0.0)
    shares = {name: f"{duration_words(seconds)}, {seconds / whole:.0%}" for name, seconds in known.items()}
    for index, (name, seconds) in enumerate(known.items()):
        width = across(seconds) - across(0.0)
        told = f"{_PART_WORDS[name]}: {shares[name]}"
        drawn.append(marks.rect(x, 10.0, width, 30, name, told=told))
        x += width
        column, row = divmod(index, 3)
        place = (12.0 + 154 * column, 62.0 + 20 * row)
        drawn.append(marks.rect(place[0], place[1] - 8, 9, 9, name))
        # Its time is said by the bar: beside its part there is no room for it.
        legend = f"{_PART_WORDS[name]} {seconds / whole:.0%}"
        drawn.append(marks.label((place[0] + 14, place[1]), legend, anchor="start"))
    is_past = held not in (0, devices)
    step = f"A step on {devices_words(devices)} {'took' if is_past else 'takes'} {duration_words(whole)}"
    if is_past:
        step += f"; on {held} none is measured yet"
    drawn.append(marks.label((10, _SIZE[1] - 16), step, anchor="start"))
    spoken = "; ".join(f"{_PART_WORDS[name]} {share}" for name, share in shares.items())
    return marks.drawing(drawn, size=_SIZE, told=f"{step}: {spoken}.")


def scaling(curve: Sequence[StepTime], measured: Sequence[StepTime]) -> str:
    """Steps per second against devices: the model with its band, the measured points, perfect scaling."""
    if not curve:
        return ""
    first, last = curve[0], curve[-1]
    perfect = [(step.devices, step.devices / first.devices / first.seconds) for step in curve]
    highest = max(1 / step.quantile(-_BAND_Z) for step in (*curve, *measured))
    top = min(highest, 1.6 * max(rate for _, rate in perfect))
    across = Scale(min(0.5, first.devices - 0.5), last.devices + 0.5, _LEFT, _SIZE[0] - _RIGHT)
    up = Scale(0.0, top, _SIZE[1] - _BOTTOM, _TOP)
    low = [(across(step.devices), up(1 / step.quantile(_BAND_Z))) for step in curve]
    high = [(across(step.devices), up(1 / step.quantile(-_BAND_Z))) for step in curve]
    parts = [
        marks.area([*low, *reversed(high)], "band"),
        marks.line([(across(count), up(rate)) for count, rate in perfect], "faint", dashed=True, width=0.9),
        marks.line([(across(step.devices), up(1 / step.seconds)) for step in curve], "line"),
        *(
            marks.dot(
                (across(step.devices), up(1 / step.seconds)), "point",
                told=f"measured on {devices_words(step.devices)}: {1 / step.seconds:.3g} steps a second",
            )
            for step in measured
        ),
    ]  # fmt: skip
    parts += [*_rates(up, top), _legend("10 to 90 %; dashed: perfect; dots: measured")]
    for count in round_counts([step.devices for step in curve]):
        parts.append(marks.label((across(count), _SIZE[1] - 8), count))
    return marks.drawing(parts, size=_SIZE, told=_scaling_words(curve, measured))


def _scaling_words(curve: Sequence[StepTime], measured: Sequence[StepTime]) -> str:
    rates = ", ".join(f"{1 / step.seconds:.3g} on {step.devices}" for step in curve[:8])
    seen = ", ".join(str(step.devices) for step in measured) or "none"
    return f"Steps a second by devices: {rates}. Measured on: {seen}."


def _rates(up: Scale, top: float) -> list[str]:
    drawn = []
    for rate in round_values(top, 3):
        drawn.append(marks.line([(_LEFT, up(rate)), (_SIZE[0] - _RIGHT, up(rate))], "faint", width=0.3))
        drawn.append(marks.label((_LEFT - 5, up(rate) + 3.5), f"{rate:g}", anchor="end"))
    return drawn


def _scales(seconds: float, top: float) -> tuple[Scale, Scale]:
    across = Scale(0.0, seconds, _LEFT, _SIZE[0] - _RIGHT)
    return across, Scale(0.0, top, _SIZE[1] - _BOTTOM, _TOP)


def _axes(across: Scale, up: Scale, rows: Sequence[float], unit: str, *, duration: bool = False) -> list[str]:
    drawn = []
    for value in rows:
        words = short_duration(value) if duration else f"{value:g}"
        drawn.append(marks.line([(_LEFT, up(value)), (_SIZE[0] - _RIGHT, up(value))], "faint", width=0.3))
        drawn.append(marks.label((_LEFT - 5, up(value) + 3.5), words, anchor="end"))
    drawn.append(marks.label((2, 10), unit, anchor="start"))
    for value in round_durations(across.high):
        place = min(across(value), _SIZE[0] - _TICK_WIDTH / 2)
        drawn.append(marks.label((place, _SIZE[1] - 8), short_duration(value)))
    return drawn


def _legend(words: str) -> str:
    """What a chart's lines are, in the row above it."""
    return marks.label((_SIZE[0] - 2, 10), words, anchor="end")
