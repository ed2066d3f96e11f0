"""The pictures of the demo's report, each drawn from the story alone, as SVG text."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from itertools import groupby

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from selfsched.commands.picture import PART_COLOURS
from selfsched.demo.result import DemoJob, DemoStory, JobStory

COLOURS = {"notebook": "#3a6ea5", "script": "#d9822b"}
DEVICE_SHADES = {1: 0.45, 2: 1.0}
_STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "selfsched",
    "svg.fonttype": "none",
    "figure.constrained_layout.use": True,
}


def to_svg(figure: Figure) -> str:
    """The figure as one `<svg>` element."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()[re.search("<svg", file.getvalue()).start() :]  # type: ignore[union-attr]


def devices_over_time(story: DemoStory) -> str:
    """Which job held how many devices when."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(7.6, 2.6))
        rows = figure.subplots(len(story.result.jobs), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (job, told) in zip(rows, _pairs(story), strict=True):
            _draw_devices(axes, job, told)
        rows[-1].set_xlabel("seconds since the first job registered")
        return to_svg(figure)


def _draw_devices(axes: Axes, job: DemoJob, told: JobStory) -> None:
    colour = COLOURS[job.account]
    for segment in job.segments:
        start, end = told.registered_s + segment.start_s, told.registered_s + segment.end_s
        axes.fill_between([start, end], 0, segment.devices, color=colour, alpha=0.75, linewidth=0)
        axes.text((start + end) / 2, segment.devices / 2, str(segment.devices), ha="center", va="center",
                  color="white", fontweight="bold")  # fmt: skip
    axes.set_ylim(0, 2.15)
    axes.set_yticks([0, 1, 2])
    axes.set_ylabel(f"{job.account}\ndevices")


def loss_over_samples(story: DemoStory) -> str:
    """Loss against samples seen: the curve must not notice where the devices changed."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(7.6, 2.6))
        columns = figure.subplots(1, len(story.jobs), squeeze=False)[0]
        for axes, told in zip(columns, story.jobs, strict=True):
            _draw_loss(axes, told)
        return to_svg(figure)


def _draw_loss(axes: Axes, told: JobStory) -> None:
    colour = COLOURS[told.account]
    labelled: set[int] = set()
    for devices, run in groupby(told.losses, key=lambda point: point.devices):
        points = list(run)
        name = "1 device" if devices == 1 else f"{devices} devices"
        axes.plot(
            [point.samples for point in points],
            [point.loss for point in points],
            color=colour,
            alpha=DEVICE_SHADES.get(devices, 1.0),
            linewidth=1.2,
            label=None if devices in labelled else name,
        )
        labelled.add(devices)
        axes.axvline(points[0].samples, color="#bbbbbb", linewidth=0.6, linestyle=":")
    axes.set_title(told.account, loc="left")
    axes.set_xlabel("samples")
    axes.set_ylabel("loss")
    if told.losses:
        axes.set_yscale("log")
        axes.legend(frameon=False)


def step_breakdown(story: DemoStory) -> str:
    """What a step consists of, by job and number of devices."""
    with rc_context(_STYLE):
        bars = [(told.account, step) for told in story.jobs for step in told.steps]
        figure = Figure(figsize=(7.6, 0.8 + 0.45 * max(len(bars), 1)))
        axes = figure.subplots()
        labels = [f"{account} on {step.devices}" for account, step in bars]
        left = [0.0] * len(bars)
        for part, colour in PART_COLOURS.items():
            widths = [1e3 * step.parts.get(part, 0.0) for _, step in bars]
            if any(widths):
                axes.barh(labels, widths, left=left, color=colour, label=part, height=0.6)
            left = [before + width for before, width in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.set_xlabel("milliseconds of a step")
        if bars:
            axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
        return to_svg(figure)


def forecasts_against_actual(story: DemoStory) -> str:
    """Each forecast with its band, against the finish that came."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(7.6, 2.8))
        columns = figure.subplots(1, len(story.result.jobs), squeeze=False)[0]
        for axes, job in zip(columns, story.result.jobs, strict=True):
            _draw_forecasts(axes, job)
        return to_svg(figure)


def _draw_forecasts(axes: Axes, job: DemoJob) -> None:
    colour = COLOURS[job.account]
    for assumption, marker in (("as_now", "o"), ("look_ahead", "D")):
        chosen = [forecast for forecast in job.forecasts if forecast.assumption == assumption]
        middle = [forecast.predicted_finish_s for forecast in chosen]
        if not chosen:
            continue
        axes.errorbar(
            [100 * forecast.at for forecast in chosen],
            middle,
            yerr=[
                [max(m - forecast.low_s, 0.0) for m, forecast in zip(middle, chosen, strict=True)],
                [max(forecast.high_s - m, 0.0) for m, forecast in zip(middle, chosen, strict=True)],
            ],
            fmt=marker,
            color=colour if assumption == "as_now" else "#555555",
            capsize=3,
            label="devices as now" if assumption == "as_now" else "as the broker looks ahead",
        )
    if job.forecasts:
        axes.axhline(job.forecasts[0].actual_finish_s, color="#222222", linewidth=0.9, label="came")
        axes.legend(frameon=False)
    axes.set_title(job.account, loc="left")
    axes.set_xlabel("made at % of the work")
    axes.set_ylabel("finish, s since registered")
    axes.set_xlim(0, 100)


def rho_over_time(story: DemoStory) -> str:
    """Finish-time fairness of each job: 1 is what its share alone would have given."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(7.6, 2.2))
        axes = figure.subplots()
        for told in story.jobs:
            if told.rho_over_time:
                times, rhos = zip(*told.rho_over_time, strict=True)
                _draw_rho(axes, told, times, rhos)
        axes.axhline(1.0, color="#222222", linewidth=0.9, linestyle="--")
        axes.set_xlabel("seconds since the first job registered")
        axes.set_ylabel("rho")
        axes.set_ylim(bottom=0)
        return to_svg(figure)


def _draw_rho(axes: Axes, told: JobStory, times: Sequence[float], rhos: Sequence[float]) -> None:
    shifted = [told.registered_s + time for time in times]
    axes.step(shifted, rhos, where="post", color=COLOURS[told.account], label=told.account)
    axes.legend(frameon=False)


def _pairs(story: DemoStory) -> list[tuple[DemoJob, JobStory]]:
    told = {job.account: job for job in story.jobs}
    return [(job, told[job.account]) for job in story.result.jobs]
