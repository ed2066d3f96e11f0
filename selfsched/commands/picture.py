"""A picture of what a job knows of its steps: where their time goes, and how they scale."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfsched.core.bidding import Explanation
from selfsched.errors import Refused

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PART_COLOURS = {
    "forward": "#7aa6c2",
    "backward": "#3a6ea5",
    "communication": "#c44e52",
    "optimiser": "#8c8c8c",
    "data": "#d9c36a",
    "other": "#d8d8d8",
}
FORMATS = (".svg", ".png", ".pdf")


def check_picture(path: Path | None) -> None:
    """Refuse what could not be drawn, before anything is measured.

    Raises:
        Refused: another format, no such directory, or matplotlib is missing.
    """
    if path is None:
        return
    if path.suffix.lower() not in FORMATS:
        raise Refused(f"--picture {path}: the name must end with {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise Refused(f"--picture {path}: there is no directory {path.absolute().parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise Refused("--picture needs matplotlib: pip install 'selfsched[demo]'") from error


def draw(told: Explanation, path: Path) -> None:
    """Draw the parts of a step and the scaling curve with its band and the measured points.

    Raises:
        Refused: the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: dict[str, Any] = {
        "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
        "svg.hashsalt": "selfsched", "svg.fonttype": "none", "figure.constrained_layout.use": True,
    }  # fmt: skip
    with rc_context(style):
        figure = Figure(figsize=(7.6, 3.0))
        parts, scaling = figure.subplots(1, 2, width_ratios=(1, 2))
        _draw_parts(parts, told.parts, told.devices)
        _draw_scaling(scaling, told)
        metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
        try:
            figure.savefig(path, metadata=metadata)
        except OSError as error:
            raise Refused(f"the picture could not be written to {path}: {error.strerror}") from error


def _draw_parts(axes: Axes, parts: Mapping[str, float], devices: int) -> None:
    bottom = 0.0
    for name, colour in PART_COLOURS.items():
        height = 1e3 * parts.get(name, 0.0)
        if height:
            axes.bar([0], [height], bottom=bottom, color=colour, label=name, width=0.6)
            bottom += height
    axes.set_xticks([0], ["1 device" if devices == 1 else f"{devices} devices"])
    axes.set_xlim(-0.6, 1.9)
    axes.set_ylabel("milliseconds of a step")
    if bottom:
        axes.legend(frameon=False, loc="upper right", reverse=True, fontsize=8)


def _draw_scaling(axes: Axes, told: Explanation) -> None:
    """Steps per second against devices; the dashed line is what perfect scaling would bring."""
    from matplotlib.ticker import MaxNLocator

    if not told.curve:
        return
    counts = [step.devices for step in told.curve]
    axes.fill_between(
        counts,
        [1 / step.quantile(1.2815515655446004) for step in told.curve],
        [1 / step.quantile(-1.2815515655446004) for step in told.curve],
        color="#3a6ea5", alpha=0.2, linewidth=0, label="10 to 90 %",
    )  # fmt: skip
    axes.plot(counts, [1 / step.seconds for step in told.curve], color="#3a6ea5", label="the model")
    first = told.curve[0]
    axes.plot(
        counts, [n / first.devices / first.seconds for n in counts], color="#999999", linestyle="--",
        linewidth=0.9, label="perfect scaling",
    )  # fmt: skip
    axes.plot(
        [step.devices for step in told.measured], [1 / step.seconds for step in told.measured],
        "o", color="#222222", label="measured",
    )  # fmt: skip
    axes.set_xlabel("devices")
    axes.set_ylabel("steps per second")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=8)
