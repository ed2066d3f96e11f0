"""One JupyterLab, one broker and one Chromium for all tests in a browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from broker.live_broker import LiveBroker, live_broker
from jupyter.jupyter_process import JUPYTER_TOKEN, JupyterProcess, jupyter_process

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
BASE_URL = "/user/ada/"
PATIENCE_MS = 30_000
SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
"""Where pictures of the tests are left."""


@dataclass
class Lab:
    """JupyterLab under a base URL, before a broker with four devices."""

    jupyter: JupyterProcess
    broker: LiveBroker


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    home, state = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("lab") / "state"
    config = home / ".jupyter" / "labconfig"
    config.mkdir(parents=True)
    news = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (config / "page_config.json").write_text(json.dumps(news))
    environment = {"SELFSCHED_LAB_SOCKET": str(state / "s")}
    with (
        live_broker(state, devices=4, calls_per_second=1e5) as broker,
        jupyter_process(
            home, base_url=BASE_URL, environment=environment, options=("--LabApp.expose_app_in_browser=True",)
        ) as jupyter,
    ):
        yield Lab(jupyter, broker)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Ended with its module: while it lives an event loop runs here, and no other test could run its own."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as found:
        browser = found.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Page:
    """JupyterLab in a tab, and what went wrong in it."""

    page: Any
    url: str
    errors: list[str] = field(default_factory=list)

    def open(self) -> None:
        """Load JupyterLab afresh, with no tab restored."""
        self.page.goto(f"{self.url}lab/workspaces/tests?reset&token={JUPYTER_TOKEN}")
        self.page.wait_for_selector(".jp-selfsched-status", timeout=PATIENCE_MS)

    @property
    def status(self) -> Any:
        """The item of the status bar."""
        return self.page.locator(".jp-selfsched-status")

    @property
    def panel(self) -> Any:
        return self.page.locator("#selfsched-panel")

    def open_panel(self) -> Any:
        """The panel, opened by a click on the status bar."""
        if not self.panel.is_visible():
            self.status.click()
        self.panel.wait_for(state="visible", timeout=PATIENCE_MS)
        return self.panel

    def sees(self, text: str) -> None:
        """Wait until the panel shows a text."""
        self.panel.get_by_text(text).first.wait_for(state="visible", timeout=PATIENCE_MS)

    def status_says(self, text: str) -> None:
        """Wait until the status bar shows a text."""
        try:
            self.status.filter(has_text=text).wait_for(timeout=PATIENCE_MS)
        except Exception as error:
            raise AssertionError(f"the status bar says {self.status.inner_text()!r}, not {text!r}") from error

    def confirm(self, label: str) -> None:
        """Press a button of the open dialog."""
        self.page.locator(".jp-Dialog").get_by_role("button", name=label, exact=True).click()

    def shoot(self, name: str) -> None:
        """Leave a picture."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(SHOTS / f"{name}.png"))


@pytest.fixture
def tab(lab: Lab, chromium: Any) -> Iterator[Page]:
    """A new tab of a new user of the browser; it must end without an error in its console."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, timezone_id="Europe/Berlin")
    page = Page(context.new_page(), lab.jupyter.url)
    page.page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.page.on("console", lambda line: _note(page, line))
    page.open()
    yield page
    context.close()
    assert page.errors == []


@pytest.fixture(autouse=True)
def no_jobs_left(lab: Lab) -> Iterator[None]:
    yield
    for job in lab.broker.admin.get("/v1/jobs").json():
        with suppress(KeyError):
            lab.broker.admin.post(f"/v1/jobs/{job['job']}/end", json={"outcome": "cancelled"})


def _note(page: Page, line: Any) -> None:
    if line.type == "error" and "selfsched" in (line.text + json.dumps(line.location)):
        page.errors.append(line.text)
