"""What the panel tells of the past and at once, and that it does so in another language."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker.live_broker import register, report, until_leased

from browser.conftest import Lab
from browser.page import PATIENCE_MS, Page

pytestmark = pytest.mark.slow

STRINGS = Path(__file__).parents[2] / "jupyter_ext" / "scripts" / "strings.py"
LANGUAGE = "de_DE"


def test_past_auctions_say_why_a_job_got_what_it_got(lab: Lab, tab: Page) -> None:
    job = register(lab.broker.admin, "past", min_devices=1, max_devices=2)
    until_leased(lab.broker.admin, job)
    award = next(
        award
        for auction in lab.broker.admin.get("/v1/auctions?last=5").json()
        for award in auction["awards"]
        if award["job"] == job
    )
    panel = tab.open_panel()
    panel.get_by_role("button", name="Show my history").click()
    panel.get_by_role("button", name="Show past auctions").click()
    row = panel.get_by_role("row").filter(has_text="past").filter(has_text=award["reason"])
    row.first.wait_for(timeout=PATIENCE_MS)


def test_however_many_jobs_end_between_two_looks_each_end_is_told(lab: Lab, tab: Page) -> None:
    admin = lab.broker.admin
    jobs = [register(admin, f"end-{n}") for n in range(12)]
    for job in jobs:
        report(admin, job, 1)
    tab.open_panel()
    for n in range(12):
        tab.panel.get_by_role("heading", name=f"end-{n}", exact=True).wait_for(timeout=PATIENCE_MS)
    before = admin.get("/v1/jobs?ended=0").json()
    tab.page.route("**/selfsched/api/broker/jobs?ended=0*", lambda route: route.fulfill(json=before))
    for job in jobs:
        admin.post(f"/v1/jobs/{job}/end", json={"outcome": "finished"})
    tab.page.unroute_all(behavior="wait")
    tab.panel.get_by_text("None runs or waits.").wait_for(timeout=PATIENCE_MS)
    tab.page.locator(".jp-Notification-Status").click()
    told = tab.page.locator(".jp-Notification-List, .jp-Notification-Center")
    told.get_by_text(re.compile("7 more jobs ended, 7 of them done")).first.wait_for(timeout=PATIENCE_MS)


def test_a_renamed_notebook_keeps_its_job_in_its_toolbar(lab: Lab, tab: Page) -> None:
    cell = {"cell_type": "code", "source": "1", "metadata": {}, "outputs": [], "execution_count": None}
    kernel = {"name": "python3", "display_name": "Python 3"}
    notebook = {"cells": [cell], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}
    (lab.jupyter.home / "renamed.ipynb").write_text(json.dumps(notebook))
    job = register(lab.broker.admin, "kept", min_devices=1, max_devices=2)
    until_leased(lab.broker.admin, job)
    with lab.jupyter.client() as client:
        session = {"path": "renamed.ipynb", "name": "", "type": "notebook", "kernel": {"name": "python3"}}
        kernel_id = client.post(f"{lab.jupyter.url}api/sessions", json=session).json()["kernel"]["id"]
        run = {
            "name": "r1", "job": job, "job_name": "kept", "notebook": "before.ipynb", "state": "running",
            "kernel_id": kernel_id,
        }  # fmt: skip
        tab.page.route("**/selfsched/api/runs", lambda route: route.fulfill(json=[run]))
        tab.open_notebook("renamed.ipynb")
        item = tab.page.locator(".jp-selfsched-toolbar button").filter(has_text=re.compile("[12] device"))
        item.wait_for(timeout=PATIENCE_MS)
        tab.page.unroute_all(behavior="wait")
        assert client.delete(f"{lab.jupyter.url}api/kernels/{kernel_id}").status_code == 204


@pytest.fixture
def in_brackets(lab: Lab) -> Iterator[dict[str, Any]]:
    """Another language is chosen: English with each string in brackets; what the server says of it."""
    spec = importlib.util.spec_from_file_location("strings_of_the_front_end", STRINGS)
    assert spec is not None
    assert spec.loader is not None
    strings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(strings)
    catalogue = strings.collect()
    for message in list(catalogue):
        plural = isinstance(message.id, tuple)
        message.string = tuple(f"[{one}]" for one in message.id) if plural else f"[{message.id}]"
    catalogue.locale = LANGUAGE
    folder = lab.jupyter.home / ".jupyter/lab/user-settings/@jupyterlab/translation-extension"
    folder.mkdir(parents=True)
    chosen = folder / "plugin.jupyterlab-settings"
    chosen.write_text(json.dumps({"locale": LANGUAGE}))
    yield {"data": {"selfsched_jupyter": strings.for_jupyterlab(catalogue, LANGUAGE)}, "message": ""}
    chosen.unlink()


def test_every_word_of_the_panel_is_translated(lab: Lab, tab: Page, in_brackets: dict[str, Any]) -> None:
    job = register(lab.broker.admin, "x1", min_devices=1, max_devices=2)
    until_leased(lab.broker.admin, job)
    tab.page.route(f"**/api/translations/{LANGUAGE}*", lambda route: route.fulfill(json=in_brackets))
    tab.open()
    panel = tab.open_panel()
    panel.locator("h3").filter(has_text="x1").wait_for(timeout=PATIENCE_MS)
    panel.get_by_role("button", name="[Show my history]").click()
    panel.get_by_role("button", name="[Show past auctions]").click()
    panel.get_by_role("heading", name="[Past auctions]").wait_for(timeout=PATIENCE_MS)
    for summary in panel.locator("summary").all():
        summary.click()
    panel.get_by_text(re.compile(r"\[CPU slot 0 on here\]")).first.wait_for(timeout=PATIENCE_MS)
    views = ("jobs?ended=1", "cluster", "auctions")
    known = [lab.broker.admin.get(f"/v1/{view}").json() for view in views]
    data = json.dumps(known, ensure_ascii=False)
    data += f"unix:{lab.broker.running.addresses.socket}"
    assert [line for line in bare(panel.inner_text()) if line not in data] == []
    assert [line for line in bare(tab.status.inner_text()) if line != "selfsched"] == []
    tab.page.unroute_all(behavior="wait")


def bare(text: str) -> list[str]:
    """The lines that have words outside all brackets, times of the day apart."""
    while (less := re.sub(r"\[[^\[\]]*\]", "", text)) != text:
        text = less
    text = re.sub(r"\d\d:\d\d.[AP]M", "", text)
    lines = (line.strip(" ,;:()\t\u2068\u2069") for line in re.split(r"[\n\t]", text))
    return [line for line in lines if re.search(r"[A-Za-z]{2}", line)]
