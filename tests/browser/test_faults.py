"""What people see in the browser of a broker, a proxy or rights that are not as they should be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from end_to_end.broker_lab import until
from jupyter.jupyter_process import JupyterProcess, jupyter_process
from jupyter.odd_broker import Heard, OddBroker, Said, a_cluster, odd_broker, problem, well_behaved

from browser.conftest import Opener
from browser.cutting_proxy import cutting_proxy
from browser.page import EXPOSED, Page, without_news
from selfsched.protocol import JobState, JobView, Outcome, Resume

pytestmark = pytest.mark.slow

BASE_URL = "/user/ada/"
WAITS = "waits for a device; when it gets one is not known yet"
NO_TOKEN = "a valid token is needed: ask for a new one"


@dataclass
class OddLab:
    """JupyterLab before a broker that is as a test says; who comes may look, and order nothing."""

    jupyter: JupyterProcess
    broker: OddBroker


@pytest.fixture(scope="module")
def odd_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OddLab]:
    home = tmp_path_factory.mktemp("home")
    without_news(home)
    viewer = ("--ServerApp.authorizer_class=jupyter.viewer.OnlyLooking",)
    with odd_broker() as broker:
        environment = {"SELFSCHED_BROKER": broker.url, "PYTHONPATH": str(Path(__file__).parents[1])}
        with jupyter_process(
            home, base_url=BASE_URL, environment=environment, options=(*EXPOSED, *viewer)
        ) as jupyter:
            yield OddLab(jupyter, broker)


@pytest.fixture
def tab(odd_lab: OddLab, opener: Opener) -> Iterator[Page]:
    odd_lab.broker.reset()
    with opener(odd_lab.jupyter.url) as page:
        page.time_is_ours()
        page.open()
        page.status_says("no devices")
        page.open_panel()
        yield page


def a_job(job: str = "j1", **changes: Any) -> JobView:
    values: dict[str, Any] = {
        "job": job, "name": "train", "account": "ada", "state": JobState.WAITING, "min_devices": 1,
        "max_devices": 2, "resume": Resume.ELASTIC, "priority": 0.0, "age_seconds": 5.0,
    }  # fmt: skip
    return JobView(**(values | changes))


def with_a_job(heard: Heard) -> Said:
    """A broker with a job of whoever asks."""
    if heard.path.partition("?")[0] != "/v1/jobs":
        return well_behaved(heard)
    return Said(body=f"[{a_job().to_json()}]".encode())


def of_another_version(heard: Heard) -> Said:
    """What a broker of a later version may send."""
    path = heard.path.partition("?")[0]
    if path == "/v1/cluster":
        news = json.loads(a_cluster().to_json()) | {"policy": {"name": "selfsched"}}
        return Said(body=json.dumps(news).encode())
    return Said(body=b'[{"id": 7}]')


def test_what_waiting_does_not_mend_is_worded_and_asked_again_by_the_user(
    odd_lab: OddLab, tab: Page
) -> None:
    cases = (
        (of_another_version, "The broker speaks another version", "install the same version of selfsched"),
        (lambda _: problem(401, "not_authenticated", NO_TOKEN), "does not accept your token", NO_TOKEN),
        (lambda _: problem(403, "forbidden", "ask its admin"), "You may not see this", "ask its admin"),
    )
    tab.expects_failures = True
    for behave, title, advice in cases:
        odd_lab.broker.reset(behave)
        tab.run_command("selfsched:refresh")
        tab.status_says(title)
        tab.sees(re.compile(advice))
        tab.sees("It is not asked again by itself.")
        odd_lab.broker.reset()
        until(lambda: is_fine_again(tab), "all is well when the user asks")


def is_fine_again(tab: Page) -> bool:
    """Whether all is well; if not, ask again as a user does. For a moment Jupyter's server knows better."""
    if "no devices" in tab.status.inner_text():
        return True
    tab.panel.get_by_role("button", name="Try again").evaluate_all("all => all.forEach(one => one.click())")
    return False


def test_a_broker_that_goes_away_is_asked_after_pauses_and_seen_when_it_is_back(
    odd_lab: OddLab, tab: Page
) -> None:
    tab.expects_failures = True
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url) if "/api/hello" in request.url else None)
    odd_lab.broker.stop()
    try:
        tab.status_says("The broker does not answer")
        tab.sees(re.compile("no answer from the broker at"))
        began_ms = tab.page.evaluate("Date.now()")
        for _ in range(3):
            until_asked_again(tab, asked)
        took_ms = tab.page.evaluate("Date.now()") - began_ms
    finally:
        odd_lab.broker.start()
    assert took_ms >= 6000, "the pauses double: what is left of the first, at least 2 s, at least 4 s"
    tab.sees(re.compile("^What is shown is of "))
    until(lambda: is_fine_by_itself(tab), "all is well again, and nobody asked")
    assert tab.panel.locator(".jp-selfsched-trouble").count() == 0


def is_fine_by_itself(tab: Page) -> bool:
    """Whether all is well; half a minute later."""
    tab.pass_seconds(30, at_a_time=30)
    return "no devices" in tab.status.inner_text()


def until_asked_again(tab: Page, asked: list[str]) -> None:
    """Let the page's clock go on until it asks once more."""
    before = len(asked)
    until(lambda: (tab.pass_seconds(2, at_a_time=2), len(asked) > before)[1], "it is asked for again")


def test_a_proxy_that_cuts_connections_is_no_trouble(odd_lab: OddLab, opener: Opener) -> None:
    odd_lab.broker.reset()
    place = urlsplit(odd_lab.jupyter.url)
    assert place.port is not None
    with cutting_proxy(place.port) as proxy, opener(f"http://127.0.0.1:{proxy.port}{BASE_URL}") as tab:
        tab.expects_failures = True
        held: list[str] = []
        tab.page.on("request", lambda asked: held.append(asked.url) if "cluster?wait" in asked.url else None)
        tab.time_is_ours()
        tab.open()
        tab.status_says("no devices")
        tab.open_panel()
        proxy.cut_after_seconds = 0.3
        until(lambda: (tab.pass_seconds(1), len(held) >= 3)[1], "polls that wait, each of them cut")
        polls = len(held)
        odd_lab.broker.reset(with_a_job)
        assert proxy.cuts >= 2
        tab.pass_seconds(120, at_a_time=10)
        tab.sees(WAITS)
        assert len(held) <= polls + 1, "no poll waits where none arrives"
        assert tab.panel.locator(".jp-selfsched-trouble").count() == 0


def test_who_may_only_look_sees_everything_and_is_told_that_orders_are_refused(
    odd_lab: OddLab, tab: Page
) -> None:
    tab.expects_failures = True
    odd_lab.broker.reset(with_a_job)
    tab.run_command("selfsched:refresh")
    tab.sees(WAITS)
    tab.order("Stop", "Stop")
    tab.is_told(re.compile("You may not do this on this Jupyter server"))
    assert odd_lab.broker.asked("/v1/jobs/j1/control") == 0
    tab.status_says("waiting")


def test_what_the_panel_holds_does_not_grow_with_the_jobs_that_it_has_seen(
    odd_lab: OddLab, tab: Page
) -> None:
    looks: list[str] = []

    def other_jobs(route: Any) -> None:
        looks.append(f"j{len(looks)}")
        route.fulfill(json=[json.loads(a_job(looks[-1], name=f"train-{looks[-1]}").to_json())])

    def ended(route: Any) -> None:
        job = route.request.url.rpartition("/")[2]
        over = a_job(job, name=f"train-{job}", state=JobState.ENDED, outcome=Outcome.FINISHED)
        route.fulfill(json=json.loads(over.to_json()))

    tab.page.route("**/broker/jobs?*", other_jobs)
    tab.page.route("**/broker/jobs/*", ended)
    elements = []
    for most in (30, 60):
        until(lambda most=most: (tab.pass_seconds(5, at_a_time=5), len(looks) > most)[1], "many jobs")  # type: ignore[misc]
        elements.append(tab.panel.locator("*").count())
    tab.sees(re.compile("train.*: finished"))
    assert elements[0] == elements[1]
    tab.page.unroute_all(behavior="wait")
