"""The few marks of SVG that our drawings consist of. Pure: numbers and words in, markup out.

Colours are those of `style.css`, which follow JupyterLab's theme; each has a plain one to fall
back on. Whatever comes from a user is escaped here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, those of terminals' colours among them: no page shows them."""

COLOURS = {
    "line": "#3a6ea5",
    "band": "#7aa6d6",
    "point": "#222222",
    "faint": "#8c8c8c",
    "forward": "#7aa6c2",
    "backward": "#3a6ea5",
    "communication": "#c44e52",
    "optimiser": "#8c8c8c",
    "data": "#d9c36a",
    "other": "#b8b8b8",
}
Point = tuple[float, float]


def colour(name: str) -> str:
    """A colour of the theme, with what stands in for it where there is no theme."""
    return f"var(--selfsched-{name}, {COLOURS[name]})"


def text(words: object) -> str:
    """Words as markup."""
    return escape(_UNSEEN.sub("", str(words)), quote=True)


def rect(x: float, y: float, width: float, height: float, fill: str, *, told: str = "") -> str:
    """A filled rectangle; `told` is said where the pointer rests on it."""
    title = f"<title>{text(told)}</title>" if told else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{max(0.0, height):.1f}" '
        f'style="fill:{colour(fill)}">{title}</rect>'
    )


def line(points: Sequence[Point], stroke: str, *, dashed: bool = False, width: float = 1.6) -> str:
    """A line through points."""
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<polyline points="{_places(points)}" fill="none" stroke-width="{width:g}"{dash} '
        f'style="stroke:{colour(stroke)}"/>'
    )


def area(points: Sequence[Point], fill: str) -> str:
    """A pale area within points."""
    return f'<polygon points="{_places(points)}" fill-opacity="0.3" style="fill:{colour(fill)}"/>'


def dot(at: Point, fill: str, *, told: str = "") -> str:
    """A small disc."""
    title = f"<title>{text(told)}</title>" if told else ""
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="3.2" style="fill:{colour(fill)}">{title}</circle>'


def label(at: Point, words: object, *, anchor: str = "middle") -> str:
    """Words at a place: `start`, `middle` or `end` of them there."""
    return (
        f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" font-size="10" '
        f'fill="currentColor">{text(words)}</text>'
    )


def drawing(parts: Iterable[str], *, size: tuple[int, int], told: str) -> str:
    """A whole drawing; `told` says to those who cannot see it what is in it."""
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{text(told)}" font-family="inherit">{"".join(parts)}</svg>'
    )


def _places(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
