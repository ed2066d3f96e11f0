"""The extension in a real browser: JupyterLab, its server extension and a broker, all real."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker.live_broker import refs, register, report, until_leased

from browser.conftest import Lab
from browser.page import PATIENCE_MS, Page
from selfsched.protocol import BidRow, Forecast, JobState, Placement, StandingBid

pytestmark = pytest.mark.slow

BID = StandingBid(
    rows=(
        BidRow(placement=Placement(devices=1), remaining_seconds=7200.0, sigma_log=0.1),
        BidRow(placement=Placement(devices=2), remaining_seconds=4000.0, sigma_log=0.1),
    )
)


def running(lab: Lab, name: str = "train", **wishes: Any) -> tuple[str, int, Any]:
    """A job that runs on what it was given; (id, last sequence, its instructions)."""
    client = lab.broker.admin
    job = register(client, name, **({"min_devices": 1, "max_devices": 2} | wishes))
    told, sequence = until_leased(client, job)
    answer = report(
        client, job, sequence + 1, state=JobState.RUNNING, step=40, planned_steps=100, fraction_done=0.4,
        leases=refs(told), bid=BID,
        forecast=Forecast(p10_seconds=3000, p50_seconds=4000, p90_seconds=5000, assumption="as_now"),
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    return job, sequence + 1, told


def test_the_status_bar_and_the_panel_show_what_a_job_holds_and_when_it_is_done(lab: Lab, tab: Page) -> None:
    tab.status_says("no devices")
    running(lab)
    tab.status_says(re.compile(r"[12] devices?"))
    panel = tab.open_panel()
    tab.sees("40% done, step 40 of 100")
    tab.sees(re.compile(r"^Done: .+ to .+"))
    assert panel.locator("progress").get_attribute("value") == "40"
    tab.sees(re.compile(r"of 4 devices free"))
    tab.sees("Next auction in")
    panel.get_by_text("Why, where and since when").click()
    tab.sees(re.compile("CPU slot 0 on"))
    tab.shoot("panel")


def test_a_change_of_devices_is_told_and_the_run_s_end_too(lab: Lab, tab: Page) -> None:
    wide, _, _ = running(lab, "wide", min_devices=4, max_devices=4)
    job = register(lab.broker.admin, "night-run", min_devices=1, max_devices=2)
    report(lab.broker.admin, job, 1)
    tab.open_panel()
    tab.sees(re.compile("^waits for a device"))
    lab.broker.admin.post(f"/v1/jobs/{wide}/end", json={"outcome": "finished"})
    tab.is_told(re.compile("night-run.* has [12] device"))
    lab.broker.admin.post(f"/v1/jobs/{job}/end", json={"outcome": "finished"})
    tab.is_told(re.compile("night-run.* is done"))


def test_an_order_is_confirmed_sent_once_and_its_result_shown(lab: Lab, tab: Page) -> None:
    job, _, _ = running(lab)
    panel = tab.open_panel()
    panel.get_by_role("button", name="Priority...").click()
    tab.page.locator(".jp-Dialog input").fill("7")
    tab.confirm("Set")
    tab.is_told(re.compile("has priority 7"))
    assert lab.broker.admin.get(f"/v1/jobs/{job}").json()["priority"] == 7.0
    panel.get_by_role("button", name="Devices...").click()
    tab.page.locator(".jp-Dialog input").nth(1).fill("1")
    tab.confirm("Set")
    tab.is_told(re.compile("may have 1 device"))
    assert lab.broker.admin.get(f"/v1/jobs/{job}").json()["max_devices"] == 1
    panel.get_by_role("button", name="Pause").dblclick()
    tab.confirm("Pause")
    tab.is_told(re.compile("train.* pauses"))


def test_all_devices_are_given_back_and_the_limits_stay(lab: Lab, tab: Page) -> None:
    job, _, _ = running(lab)
    panel = tab.open_panel()
    panel.get_by_role("button", name="Give all back").click()
    tab.confirm("Give all back")
    tab.is_told(re.compile("train.* gives all its devices back"))
    after = lab.broker.admin.get(f"/v1/jobs/{job}").json()
    assert after["state"] == "yielding"
    assert (after["min_devices"], after["max_devices"]) == (1, 2)


def test_no_word_of_a_table_s_head_is_broken(tab: Page) -> None:
    panel = tab.open_panel()
    panel.get_by_role("button", name="Ask").click()
    panel.get_by_role("cell", name="4 devices").wait_for(timeout=PATIENCE_MS)
    lines = panel.locator("th").evaluate_all(
        """heads => heads.map(head => {
            const words = document.createRange();
            words.selectNodeContents(head);
            return [head.textContent, words.getClientRects().length];
        })"""
    )
    assert lines
    assert [head for head, count in lines if count != 1] == []
    tab.shoot("what_if")


def test_what_is_cancelled_or_no_number_changes_nothing(lab: Lab, tab: Page) -> None:
    job, _, _ = running(lab)
    before = lab.broker.admin.get(f"/v1/jobs/{job}").json()
    panel = tab.open_panel()
    panel.get_by_role("button", name="Stop").click()
    tab.confirm("Cancel")
    panel.get_by_role("button", name="Devices...").click()
    tab.page.locator(".jp-Dialog input").first.fill("3")
    tab.page.locator(".jp-Dialog input").nth(1).fill("2")
    tab.confirm("Set")
    tab.is_told("the fewest are more than the most")
    after = lab.broker.admin.get(f"/v1/jobs/{job}").json()
    same = ("state", "min_devices", "max_devices", "priority")
    assert [after[name] for name in same] == [before[name] for name in same]


def test_what_if_is_answered_by_the_broker(lab: Lab, tab: Page) -> None:
    panel = tab.open_panel()
    tab.sees("What if I started a run now?")
    panel.get_by_label("With devices").fill("1, 2, 4")
    panel.get_by_role("button", name="Ask").click()
    panel.get_by_role("cell", name="4 devices").wait_for(timeout=PATIENCE_MS)
    panel.get_by_label("With devices").fill("many")
    panel.get_by_role("button", name="Ask").click()
    tab.sees("Device counts are up to 8 whole numbers")


def test_what_if_of_a_run_like_a_job_is_asked_while_it_runs_and_when_it_has_ended(
    lab: Lab, tab: Page
) -> None:
    panel = tab.open_panel()
    job, _, _ = running(lab, "digits")
    panel.get_by_label("Like").select_option("digits")
    panel.get_by_role("button", name="Ask").click()
    panel.get_by_role("cell", name="2 devices").wait_for(timeout=PATIENCE_MS)
    tab.sees("such a job may have these device counts only: 1, 2")
    lab.broker.admin.post(f"/v1/jobs/{job}/end", json={"outcome": "finished"})
    panel.get_by_label("Like").locator("option", has_text="digits (ended)").wait_for(
        state="attached", timeout=PATIENCE_MS
    )
    panel.get_by_label("With devices").fill("1")
    panel.get_by_role("button", name="Ask").click()
    panel.get_by_role("cell", name="2 devices").wait_for(state="detached", timeout=PATIENCE_MS)
    panel.get_by_role("cell", name="1 device", exact=True).wait_for(timeout=PATIENCE_MS)


def test_after_a_reload_everything_is_shown_again(lab: Lab, tab: Page) -> None:
    running(lab, "lasting")
    tab.open_panel()
    tab.sees("lasting")
    tab.open()
    tab.status_says(re.compile(r"[12] devices?"))
    tab.open_panel()
    tab.sees("lasting")


def test_hostile_names_are_text(lab: Lab, tab: Page) -> None:
    name = "<img src=x onerror=alert(1)>\u202eevil \U0001f600 " + "x" * 200
    running(lab)

    def rename(route: Any) -> None:
        jobs = route.fetch().json()
        route.fulfill(json=[{**job, "name": name, "reasons": [name]} for job in jobs])

    tab.page.route("**/selfsched/api/broker/jobs?*", rename)
    panel = tab.open_panel()
    panel.locator("h3 bdi").filter(has_text="<img src=x onerror=alert(1)>").wait_for(timeout=PATIENCE_MS)
    assert panel.locator("img").count() == 0
    assert panel.evaluate("node => node.scrollWidth <= node.clientWidth + 1"), "nothing runs out of the panel"
    assert tab.dialogs == []
    tab.page.unroute_all(behavior="wait")


def test_what_one_part_cannot_show_is_said_there_and_the_others_stay(lab: Lab, tab: Page) -> None:
    running(lab)

    def of_another_version(route: Any) -> None:
        route.fulfill(json=[{**job, "name": {"first": "train"}} for job in route.fetch().json()])

    panel = tab.open_panel()
    tab.sees("40% done, step 40 of 100")
    jobs, cluster = (panel.get_by_role("region", name=name) for name in ("My jobs", "Cluster"))
    tab.page.route("**/selfsched/api/broker/jobs?*", of_another_version)
    tab.sees("This part cannot be shown")
    assert jobs.count() == 0
    assert cluster.get_by_text("of 4 devices free").is_visible()
    tab.page.unroute_all(behavior="wait")
    tab.run_command("selfsched:refresh")
    tab.sees("40% done, step 40 of 100")
    assert panel.get_by_text("This part cannot be shown").count() == 0
    tab.errors.clear()  # React itself notes what a part let fall


def test_history_says_what_was_used_and_that_no_forecast_was_scored(lab: Lab, tab: Page) -> None:
    panel = tab.open_panel()
    panel.get_by_role("button", name="Show my history").click()
    tab.sees(re.compile("Used so far: .* device hours"))
    tab.sees("Runs on this machine")


FAULTS: tuple[tuple[dict[str, Any] | None, str], ...] = (
    ({"status": 500, "body": "<html>proxy</html>", "content_type": "text/html"}, "trouble of its own"),
    ({"status": 401, "body": "{}", "content_type": "application/json"}, "log in again"),
    ({"status": 403, "body": "<html>no</html>", "content_type": "text/html"}, "log in again"),
    (
        {
            "status": 429,
            "body": '{"status": 429, "code": "overloaded", "title": "x", "detail": "slow down"}',
            "content_type": "application/problem+json",
            "headers": {"Retry-After": "1"},
        },
        "too much to do",
    ),
    (None, "The Jupyter server does not answer"),
)
"""What is answered in a broker's stead (None: nothing), and the words for it."""


def failing(answer: dict[str, Any] | None, asked: list[str]) -> Callable[[Any], None]:
    """Answers so, and notes what was asked."""

    def fail(route: Any) -> None:
        asked.append(route.request.url)
        if answer is None:
            route.abort()
        else:
            route.fulfill(**answer)

    return fail


def test_a_fault_is_worded_and_passes_when_it_is_over(timed_tab: Page) -> None:
    tab = timed_tab
    tab.expects_failures = True
    for answer, words in FAULTS:
        asked: list[str] = []
        fail = failing(answer, asked)
        tab.status_says("no devices")
        tab.page.route("**/selfsched/api/**", fail)
        tab.run_command("selfsched:refresh")
        tab.status_says(words)
        tab.open_panel()
        tab.sees(words)
        asked.clear()
        tab.pass_seconds(600, at_a_time=20)
        assert len(asked) <= 2 * 25, "in ten minutes: after 2, 4, 8 ... seconds, then once a minute or two"
        assert len(asked) > 5 or "log in" in words, "what may pass by itself is asked for again"
        tab.page.unroute("**/selfsched/api/**", fail)
        tab.panel.get_by_role("button", name="Try again").click()
        tab.status_says("no devices")


def test_the_keyboard_alone_opens_the_panel_and_gives_an_order(lab: Lab, tab: Page) -> None:
    job, _, _ = running(lab)
    tab.status_says(re.compile(r"[12] devices?"))
    tab.status.focus()
    tab.page.keyboard.press("Enter")
    tab.sees("40% done, step 40 of 100")
    tab.panel.get_by_role("button", name="Stop").focus()
    tab.page.keyboard.press("Enter")
    tab.page.locator(".jp-Dialog").wait_for(timeout=PATIENCE_MS)
    tab.page.keyboard.press("Enter")
    tab.is_told(re.compile("train.* stops"))
    report(lab.broker.admin, job, 90)


def test_a_command_of_the_palette_opens_the_panel(tab: Page) -> None:
    tab.status_says("no devices")  # JupyterLab has started: it knows its keys
    tab.page.keyboard.press("Control+Shift+C")
    search = tab.page.locator(".lm-CommandPalette-input")
    search.wait_for(timeout=PATIENCE_MS)
    search.fill("Show devices and jobs")
    tab.page.keyboard.press("Enter")
    tab.panel.wait_for(state="visible", timeout=PATIENCE_MS)


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_no_barrier_is_found_in_the_panel_and_the_status_bar(
    lab: Lab, tab: Page, theme: str, axe: Path
) -> None:
    running(lab)
    tab.page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
    tab.page.wait_for_selector(f"body[data-jp-theme-name='{theme}']", state="attached", timeout=PATIENCE_MS)
    tab.open_panel()
    tab.sees("40% done, step 40 of 100")
    tab.page.add_script_tag(path=str(axe))
    ours = "{include: [['#selfsched-panel'], ['.jp-selfsched-status']]}"
    found = tab.page.evaluate(f"() => axe.run({ours}, {{resultTypes: ['violations']}})")
    tab.shoot("panel-dark" if "Dark" in theme else "panel-light")
    assert [(fault["id"], fault["nodes"][0]["html"][:120]) for fault in found["violations"]] == []


def test_five_hundred_jobs_are_bounded_on_the_screen(lab: Lab, tab: Page) -> None:
    for n in range(120):
        register(lab.broker.admin, f"sweep-{n}")
    tab.open_panel()
    tab.sees(re.compile(r"^and \d+ more$"))
    assert tab.panel.locator("article").count() == 20
    tab.panel.get_by_role("button", name="Show more").click()
    tab.panel.locator("article").nth(39).wait_for(timeout=PATIENCE_MS)
    assert tab.panel.locator("article").count() == 40
