"""The demo's report: one HTML file that needs nothing else, with every picture in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from selfsched.core.bidding import duration_words
from selfsched.demo.result import DemoForecast, DemoJob, DemoStory
from selfsched.demo.telling import ERROR_WORDS, RHO_WORDS

FILE_NAME = "report.html"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 56rem; margin: 2rem auto;
padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem }
table { border-collapse: collapse; margin: .6rem 0 }
th, td { text-align: left; padding: .25rem .9rem .25rem 0;
border-bottom: 1px solid #ddd; vertical-align: top } th { font-weight: 600 } td.number { text-align: right }
svg { max-width: 100%; height: auto } .note { color: #666; font-size: .9rem } .bad { color: #b00020 }
"""


def write_report(story: DemoStory, directory: Path) -> Path:
    """Write the report and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FILE_NAME
    path.write_text(render(story), encoding="utf-8")
    return path


def render(story: DemoStory) -> str:
    """The whole report as HTML."""
    from selfsched.demo import pictures

    body = "\n".join(
        [
            "<h1>Two jobs, two devices</h1>",
            f"<p>{escape(_introduction(story))}</p>",
            _jobs_table(story.result.jobs),
            f'<p class="note">{escape(RHO_WORDS)}</p>',
            *_faults(story),
            _section("Who held what, when", pictures.devices_over_time(story), DEVICES_NOTE),
            _section("Loss against samples", pictures.loss_over_samples(story), LOSS_NOTE),
            _section("What a step consists of", pictures.step_breakdown(story), STEP_NOTE),
            _section("Forecasts and what came", pictures.forecasts_against_actual(story), FORECAST_NOTE),
            _forecast_table(story.result.jobs),
            f'<p class="note">{escape(ERROR_WORDS)}</p>',
            _section("Fairness", pictures.rho_over_time(story), RHO_NOTE),
            "<h2>Why each allocation was made</h2>",
            _decision_table(story),
            f'<p class="note">{escape(story.started)}, {escape(story.machine)}. CPU slots do not isolate: '
            "two jobs on one machine share its memory and caches.</p>",
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>selfsched demo</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


DEVICES_NOTE = (
    "Each box is a segment: a stretch of the job on a fixed set of devices. Gaps between boxes are "
    "restarts: a checkpoint is written, the devices change, the checkpoint is read."
)
LOSS_NOTE = "Dotted lines are restarts. Every sample of an epoch is seen once, whoever holds what."
STEP_NOTE = (
    "Means over the measured steps; communication is what was not hidden behind the backward pass. "
    "Parts of short steps on shared cores do not add up exactly."
)
FORECAST_NOTE = (
    "A point is the median, its bar the range from 10 % to 90 %. `Devices as now` assumes that the "
    "allocation stays; where it did not, the forecast could not be right."
)
RHO_NOTE = (
    "rho = predicted time shared / predicted time alone on the job's share of the devices. "
    "Below 1: better off than with a share of its own."
)


def _introduction(story: DemoStory) -> str:
    speedup = story.result.speedup_two_devices
    faster = f" A step on two devices was {speedup:.2f} times as fast as on one." if speedup else ""
    return (
        "A notebook and a script, of two accounts, shared two CPU slots through a broker over HTTP. "
        f"All of it took {duration_words(story.wall_s)}.{faster}"
    )


def _jobs_table(jobs: Iterable[DemoJob]) -> str:
    rows = [
        (
            job.account,
            job.name,
            "finished" if job.finished else "did not finish",
            " → ".join(str(segment.devices) for segment in job.segments),
            "each once per epoch" if job.samples_seen_once else "NOT each once",
            "" if job.rho is None else f"{job.rho:.2f}",
        )
        for job in jobs
    ]
    return _table(("account", "job", "end", "devices", "samples", "rho"), rows)


def _faults(story: DemoStory) -> list[str]:
    faults = [f"{told.account}: {fault}" for told in story.jobs for fault in told.sample_faults]
    if story.live_leases:
        faults.append(f"{story.live_leases} leases were still live at the end")
    return [f'<p class="bad">{escape(fault)}</p>' for fault in faults]


def _section(title: str, picture: str, note: str) -> str:
    return f'<h2>{escape(title)}</h2>\n{picture}\n<p class="note">{escape(note)}</p>'


def _forecast_table(jobs: Iterable[DemoJob]) -> str:
    rows = [(job.account, *_forecast_row(forecast)) for job in jobs for forecast in job.forecasts]
    columns = ("account", "made at", "assuming", "predicted finish", "came", "error", "devices stayed")
    return _table(columns, rows)


def _forecast_row(forecast: DemoForecast) -> Sequence[str]:
    return (
        f"{forecast.at:.0%} ({forecast.made_at_s:.0f} s), {_devices(forecast.devices)}",
        "as now" if forecast.assumption == "as_now" else "look-ahead",
        f"{forecast.predicted_finish_s:.0f} s ({forecast.low_s:.0f} to {forecast.high_s:.0f})",
        f"{forecast.actual_finish_s:.0f} s",
        f"{forecast.error():.0%}",
        "yes" if forecast.allocation_held else "no",
    )


def _decision_table(story: DemoStory) -> str:
    rows = [
        (f"{decision.at_s:.0f} s", str(decision.auction), decision.trigger, decision.account,
         str(decision.devices), decision.reason)
        for decision in story.decisions
    ]  # fmt: skip
    return _table(("when", "auction", "trigger", "account", "devices", "why"), rows)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>"


def _devices(number: int) -> str:
    return "1 device" if number == 1 else f"{number} devices"
