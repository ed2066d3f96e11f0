"""A run in a cell: what is shown while it trains, what stays, and how much of it there can be."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from widget.told import Shown, a_job, a_long_run, began, ended, left, seen, timed

from selfsched.cell.view import MOST_PRINTED_CHARACTERS, CellView
from selfsched.core.events import FitStarted
from selfsched.elastic import channel

WIDGET = "application/vnd.jupyter.widget-view+json"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def drawings(markup: str) -> list[ElementTree.Element]:
    """Every drawing in it, parsed: so it is well-formed."""
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", markup, re.DOTALL)]


def test_ten_hours_leave_a_small_notebook_and_a_flat_browser(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, shown = Clock(), Shown()
    view = CellView(a_job(tmp_path), display=shown, now=clock)
    largest_bytes, sent = 0, 0
    for instant, message in a_long_run(10, every_seconds=20.0, move_seconds=60.0):
        clock.now = instant
        view.show(message)
        view.refresh()
        assert view._widget is not None
        parts = {name: getattr(view._widget, name) for name in ("head", "panels", "said", "newest", "tail")}
        size = len(json.dumps(parts))
        sent += 1
        largest_bytes = max(largest_bytes, size)
    view.close()
    printed = capsys.readouterr().out
    assert sent > 5000
    assert largest_bytes < 150_000, "what the browser holds"
    assert len(shown.outputs) == 2
    assert shown.updates[0] == 1, "the output itself is replaced once, at the end"
    assert 600 < shown.updates[1] <= 10 * 3600 / 20, "the one that is kept is renewed now and then"
    assert len(json.dumps(shown.outputs)) + len(printed) < 500_000
    assert "the newest is in the picture" in printed
    assert "moved for the 500th time" in printed, "what we say is not lost in the output of the ranks"


def test_what_stays_is_a_still_picture_without_widget_or_script(tmp_path: Path) -> None:
    clock, shown = Clock(), Shown()
    view = CellView(a_job(tmp_path), display=shown, now=clock)
    for instant, message in a_long_run(0.5, every_seconds=10.0, move_seconds=600.0):
        clock.now = instant
        view.show(message)
        view.refresh()
        if instant == 600.0:
            assert WIDGET in shown.outputs[0]
            assert "selfsched status" in shown.outputs[0]["text/html"], "without a kernel"
    view.close()
    left_behind, kept = shown.outputs
    assert kept == {"text/html": "", "text/plain": ""}, "there is one picture"
    assert set(left_behind) == {"text/html", "text/plain"}
    assert "<script" not in left_behind["text/html"]
    charts = drawings(left_behind["text/html"])
    assert [chart.get("role") for chart in charts] == ["img"] * 4
    told = " ".join(chart.get("aria-label") or "" for chart in charts)
    for words in ("at most 2", "it ended after 30 min", "communication", "Measured on: 1, 2"):
        assert words in told
    assert "finished after 30 min" in left_behind["text/plain"]


def test_a_notebook_that_is_saved_meanwhile_has_a_picture_that_is_half_a_minute_old(tmp_path: Path) -> None:
    clock, shown = Clock(), Shown()
    view = CellView(a_job(tmp_path), display=shown, now=clock)
    renewed_at = {}
    for instant, message in a_long_run(0.1, every_seconds=5.0, move_seconds=150.0):
        clock.now = instant
        view.show(message)
        view.refresh()
        assert WIDGET in shown.outputs[0], "the live one is before it"
        renewed_at[shown.updates[1]] = instant
        kept = shown.outputs[1]["text/html"]
    assert drawings(kept)
    assert "As it stood at" in kept
    assert f"selfsched.attach(&#x27;{tmp_path.name}&#x27;)" in kept
    assert "<script" not in kept
    gaps = [later - earlier for earlier, later in itertools.pairwise(sorted(renewed_at.values()))]
    assert max(gaps) <= 30.0
    assert len(renewed_at) <= 16


def test_the_kept_picture_has_the_devices_of_now(tmp_path: Path) -> None:
    clock, shown = Clock(), Shown()
    view = CellView(a_job(tmp_path), display=shown, now=clock)
    view.show(channel.Said(text="asks"))
    view.refresh()
    assert not drawings(shown.outputs[1]["text/html"])
    clock.now = 1.0
    view.show(began(0, 1, 0.5))
    view.refresh()
    assert drawings(shown.outputs[1]["text/html"]), "at once, not when the charts are due"


def test_words_of_the_user_are_never_markup(tmp_path: Path) -> None:
    shown, evil = Shown(), '<img src=x onerror="alert(1)">\x1b[31m&'
    view = CellView(a_job(tmp_path, name=None), display=shown, now=Clock())
    view.show(began(0, 1, 0.0, reason=evil))
    event = FitStarted(fit=1, package="none", global_batch=8, reference_devices=1, step=0, planned_steps=40)
    view.show(seen(event))
    view.show(channel.StatusSeen(text=evil, waiting=True))
    view.show(left(0, 3, 5.0, words=evil))
    view.show(channel.Said(text=evil))
    view.refresh()
    assert view._widget is not None
    for markup in (view._widget.head, view._widget.said):
        assert "<img" not in markup
        assert "\x1b" not in markup
    assert "&lt;img" in view._widget.head
    view.show(ended(3, "failed"))
    view.close()
    assert "<img" not in shown.outputs[0]["text/html"]
    assert "failed" in shown.outputs[0]["text/html"]


def test_charts_are_drawn_less_often_the_longer_the_run_lasts(tmp_path: Path) -> None:
    clock = Clock()
    view = CellView(a_job(tmp_path), display=Shown(), now=clock)
    draws: list[float] = []
    view._drawer.said = lambda: draws.append(clock.now) or ""  # type: ignore[method-assign,func-returns-value]
    view.show(began(0, 1, 0.0))
    while clock.now < 7300:
        view.refresh()
        clock.now += 1.0
    early = [at for at in draws if at < 60]
    late = [at for at in draws if at > 7200]
    assert 20 <= len(early) <= 33, "two of them are for the saved notebook"
    assert 5 <= len(late) <= 14


def test_without_a_bar_there_is_the_output_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = Shown()
    view = CellView(a_job(tmp_path), bar=False, display=shown, now=Clock())
    view.show(began(0, 1, 0.0))
    view.show(channel.OutputSeen(stream="stdout", text="epoch 1 done\n"))
    view.refresh()
    view.close()
    assert shown.outputs == []
    assert capsys.readouterr().out == "epoch 1 done\n"


def test_a_run_that_never_began_leaves_no_picture(tmp_path: Path) -> None:
    shown = Shown()
    view = CellView(a_job(tmp_path), display=shown, now=Clock())
    view.refresh()
    view.close()
    assert shown.outputs == []


def test_output_beyond_the_cells_share_is_shown_in_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    view = CellView(a_job(tmp_path), display=Shown(), now=clock)
    view.show(began(0, 1, 0.0))
    view.refresh()
    assert view._widget is not None
    assert view._widget.tail == ""
    view.show(channel.OutputSeen(stream="stdout", text="x" * (MOST_PRINTED_CHARACTERS + 10)))
    view.show(channel.OutputSeen(stream="stdout", text="the newest line\n"))
    clock.now = 5.0
    view.refresh()
    assert view._widget.tail.endswith("the newest line\n")
    assert capsys.readouterr().out.count("selfsched:") == 1


def test_a_recorded_run_shows_the_supervisors_own_figures(tmp_path: Path) -> None:
    from selfsched.core.job_model import JobModel

    model = JobModel(hardware="cpu", min_devices=1, max_devices=2)
    model.segment_started(1, 0.0)
    event = FitStarted(
        fit=1, package="none", global_batch=8, reference_devices=1, step=0, planned_steps=400,
        allowed_devices=(1, 2),
    )  # fmt: skip
    model.observe(event, 0.0)
    for index in range(4):
        model.observe(timed(1 + 40 * index, 40, 0.1, 1), 5.0 * (index + 1))
        assert model.forecast(1, 5.0 * (index + 1)) is not None
    clock, shown = Clock(), Shown()
    view = CellView(a_job(tmp_path, plan=None), display=shown, now=clock)
    view.show(began(0, 1, 0.0))
    view.refresh()
    assert view._widget is not None
    assert set(view._widget.panels) == {"allocation"}, "nothing was written yet"
    (tmp_path / "model.json").write_text("{")
    clock.now = 10.0
    view.refresh()
    (tmp_path / "model.json").write_text(json.dumps(model.to_state()))
    clock.now = 21.0
    view.refresh()
    assert set(view._widget.panels) == {"allocation", "finish", "parts", "scaling"}
    assert "done about" in view._widget.head
