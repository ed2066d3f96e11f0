"""A cell that really trains, through a real broker, while people look at it and order things of it."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from end_to_end.broker_lab import until

from browser.conftest import Opener, needs
from browser.page import PATIENCE_MS, Page, another_page
from browser.training_lab import TrainingLab, training_lab

pytestmark = pytest.mark.slow

NOTEBOOK = "train.ipynb"
WATCHED, NOTEBOOK_7, RELOADED = 1, 2, 3
"""Cells of the notebook, by what becomes of their runs; the first one has the class."""


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingLab]:
    with training_lab(tmp_path_factory.mktemp("home")) as lab:
        lab.write_notebook(
            NOTEBOOK, "train('watched')", "train('in-notebook-7', steps=300)", "train('reloaded')"
        )
        yield lab


@pytest.fixture
def desk(training: TrainingLab, opener: Opener) -> Iterator[Page]:
    """The notebook in JupyterLab with the panel beside it, its first cell run."""
    with opener(training.jupyter.url) as page:
        page.open_notebook(NOTEBOOK)
        page.until_kernel_is_ready()
        page.run_cell(0)
        page.output(0).get_by_text("ready").wait_for(timeout=PATIENCE_MS)
        page.open_panel()
        yield page
    training.hurry()
    training.until_all_is_free()


def picture(page: Page, cell: int) -> Any:
    """The live picture of a run below its cell."""
    return page.output(cell).locator("section.selfsched-run").first


def steps_in_the_picture(page: Page, cell: int) -> int:
    words = picture(page, cell).get_by_role("progressbar").get_attribute("aria-valuetext") or ""
    found = re.search(r"step (\d+)", words)
    return int(found[1]) if found else 0


def until_it_trains(page: Page, cell: int) -> None:
    """Wait for steps in the picture, whose number rises."""
    picture(page, cell).wait_for(timeout=PATIENCE_MS)
    until(lambda: steps_in_the_picture(page, cell) > 0, "a step in the picture")
    first = steps_in_the_picture(page, cell)
    until(lambda: steps_in_the_picture(page, cell) > first, "more steps in the picture")


def test_a_busy_cell_is_seen_everywhere_takes_orders_and_leaves_its_picture(
    training: TrainingLab, desk: Page
) -> None:
    desk.run_cell(WATCHED)
    desk.is_told(re.compile("watched.* has [12] device"))
    until_it_trains(desk, WATCHED)
    desk.until_prompt_is(WATCHED, r"\*")
    desk.sees(re.compile(r"^[1-9]\d*% done, step \d+ of 2400"))
    desk.sees(re.compile(r"^Done: .+, in \d+ "))
    desk.status_says(re.compile(r"2 devices, done "))
    picture(desk, WATCHED).get_by_text(re.compile(r"done about .+ to ")).wait_for(timeout=PATIENCE_MS)
    picture(desk, WATCHED).get_by_text("Steps a second by devices").wait_for(timeout=PATIENCE_MS)
    toolbar_item(desk).filter(has_text=re.compile(r"2 devices, \d+%")).wait_for(timeout=PATIENCE_MS)
    picture(desk, WATCHED).scroll_into_view_if_needed()
    desk.shoot("training-cell")

    desk.order("Release a device", "Release")
    desk.is_told(re.compile("watched.* releases a device"))
    desk.is_told(re.compile("watched.* shrank from 2 devices to 1 device"))
    desk.status_says(re.compile(r"1 device, done "))
    picture(desk, WATCHED).get_by_text(re.compile("1 device\\b")).first.wait_for(timeout=PATIENCE_MS)

    desk.order("Stop", "Stop")
    desk.is_told(re.compile("watched.* stops"))
    desk.is_told(re.compile("watched.* ended: "))
    desk.until_prompt_is(WATCHED, r"\d")
    picture(desk, WATCHED).get_by_text(re.compile(r"took \d+ ")).wait_for(timeout=PATIENCE_MS)
    desk.page.keyboard.press("Control+s")
    saved = training.home / NOTEBOOK
    markup = until(lambda: still_in(saved, WATCHED), "the picture is in the saved notebook")
    assert "<script" not in markup
    page = as_page(saved)
    assert "Devices over time" in page
    assert page.count("<svg") >= 3
    assert "widget-view" not in page, "nothing in it waits for a kernel"


def toolbar_item(page: Page) -> Any:
    """What the notebook's toolbar shows of its job."""
    return page.page.locator(".jp-selfsched-toolbar button").first


def still_in(notebook: Path, cell: int) -> str:
    """The picture that a saved notebook keeps of a run; empty: none."""
    written = notebook.read_text()
    if not written:  # it is being saved
        return ""
    outputs = json.loads(written)["cells"][cell]["outputs"]
    shown = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]
    return next((markup for markup in shown if "<svg" in markup), "")


def as_page(notebook: Path) -> str:
    """The notebook as nbconvert makes a page of it."""
    command = [sys.executable, "-m", "jupyter", "nbconvert", "--to", "html", "--stdout", str(notebook)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_picture_is_shown_in_notebook_7_too(training: TrainingLab, opener: Opener) -> None:
    needs(importlib.util.find_spec("notebook"), "Notebook 7 is not installed")
    with opener(training.jupyter.url) as page:
        page.open(f"notebooks/{NOTEBOOK}", query="", shows=".jp-NotebookPanel-toolbar")
        page.until_kernel_is_ready()
        page.run_cell(0)
        page.output(0).get_by_text("ready").wait_for(timeout=PATIENCE_MS)
        page.run_cell(NOTEBOOK_7)
        until_it_trains(page, NOTEBOOK_7)
        picture(page, NOTEBOOK_7).scroll_into_view_if_needed()
        page.shoot("notebook-7")
        training.hurry()
        page.until_prompt_is(NOTEBOOK_7, r"\d")
        picture(page, NOTEBOOK_7).get_by_text("finished").wait_for(timeout=PATIENCE_MS)
    training.until_all_is_free()


def test_after_a_reload_a_run_is_shown_again_with_what_it_printed_until_its_kernel_dies(
    training: TrainingLab, desk: Page
) -> None:
    desk.run_cell(RELOADED)
    until_it_trains(desk, RELOADED)
    desk.run_command("docmanager:clone")
    live = desk.page.locator("section[aria-label='Training run']")
    until(lambda: live.count() == 2, "the live picture in both views")
    desk.run_command("docmanager:save")
    until(lambda: still_in(training.home / NOTEBOOK, RELOADED), "a picture is in the saved notebook")
    desk.page.reload()
    desk.output(RELOADED).get_by_text("As it stood at").wait_for(timeout=PATIENCE_MS)
    desk.output(RELOADED).get_by_text("Devices over time").wait_for(timeout=PATIENCE_MS)
    assert not desk.output(RELOADED).get_by_text(re.compile("(Loading|Error displaying) widget")).is_visible()
    desk.output(RELOADED).get_by_text("As it stood at").scroll_into_view_if_needed()
    desk.shoot("kept-picture")
    desk.status_says(re.compile(r"[12] devices?, done "))
    desk.open_panel()
    desk.sees(re.compile(r"step \d+ of 2400"))
    desk.panel.get_by_role("button", name="Show my history").click()
    desk.panel.get_by_role("button", name="Output of reloaded").click()
    desk.sees(re.compile("at step 40\\b"))
    toolbar_item(desk).filter(has_text=re.compile(r"[12] devices?, \d+%")).wait_for(timeout=PATIENCE_MS)
    desk.shoot("after-a-reload")

    other = another_page(desk.page.context, training.jupyter.url)
    other.open_notebook(NOTEBOOK, workspace="other")
    other.open_panel()
    other.order("Pause", "Pause")
    desk.sees("paused; it holds nothing and keeps its place")
    desk.order("Resume", "Resume")
    other.sees(re.compile("^runs on [12] device"))

    training.kill_kernel()
    desk.is_told(re.compile("reloaded.* ended: "))
    desk.sees(re.compile("^None runs or waits"))
    training.until_all_is_free()
    desk.status_says("no devices")
    desk.is_told(re.compile("appears to have died"))
    toolbar_item(desk).wait_for(state="hidden", timeout=PATIENCE_MS)
    desk.shoot("kernel-died")
    other.check()
