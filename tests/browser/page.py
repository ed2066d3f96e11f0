"""A page of JupyterLab as a test drives it, and what went wrong in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from end_to_end.broker_lab import until
from jupyter.jupyter_process import JUPYTER_TOKEN

PATIENCE_MS = 60_000
_GLANCE_MS = 5
SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
"""Where pictures of the tests are left."""
_IS_READY = """() => {
    const shown = [...(window.jupyterapp?.shell.widgets('main') ?? [])];
    const kernels = shown.map(one => one.sessionContext?.session?.kernel);
    return kernels.some(one => one?.connectionStatus === 'connected' && one.status === 'idle');
}"""
EXPOSED = ("--LabApp.expose_app_in_browser=True", "--JupyterNotebookApp.expose_app_in_browser=True")
"""Of JupyterLab and Notebook 7: with it a test runs commands that a person finds in menus."""


def without_news(home: Path) -> None:
    """Let JupyterLab ask nobody outside for its news."""
    config = home / ".jupyter" / "labconfig"
    config.mkdir(parents=True)
    news = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (config / "page_config.json").write_text(json.dumps(news))


@dataclass
class Page:
    """JupyterLab in a tab."""

    page: Any
    url: str
    errors: list[str] = field(default_factory=list)
    """What the extension, or the picture of a run, wrote to the console as an error, or let fall."""
    failed: list[str] = field(default_factory=list)
    """Answers to the extension that were no success: the browser itself notes each of them ..."""
    expects_failures: bool = False
    """... and a test that brings them about says so."""
    dialogs: list[str] = field(default_factory=list)
    """What the browser itself asked."""
    asking: list[Any] = field(default_factory=list)
    """Requests to the server extension that have no answer yet; not those that wait for news."""

    def open(
        self, place: str = "lab/workspaces/tests", query: str = "reset", shows: str = ".jp-selfsched-status"
    ) -> None:
        """Load JupyterLab afresh, with no tab restored, until it shows what matches a selector."""
        self.page.goto(f"{self.url}{place}?{query}&token={JUPYTER_TOKEN}")
        self.page.wait_for_selector(shows, timeout=PATIENCE_MS)

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

    def sees(self, text: Any) -> None:
        """Wait until the panel shows a text (or what matches a pattern)."""
        self.panel.get_by_text(text).first.wait_for(state="visible", timeout=PATIENCE_MS)

    def is_told(self, text: Any) -> None:
        """Wait until a text stands anywhere on the page, as in a notification."""
        self.page.get_by_text(text).first.wait_for(timeout=PATIENCE_MS)

    def status_says(self, text: Any) -> None:
        """Wait until the status bar shows a text."""
        try:
            self.status.filter(has_text=text).wait_for(timeout=PATIENCE_MS)
        except Exception as error:
            raise AssertionError(f"the status bar says {self.status.inner_text()!r}, not {text!r}") from error

    def order(self, button: str, confirm: str) -> None:
        """Press a button of the panel's only job and confirm it."""
        self.panel.get_by_role("button", name=button, exact=True).click()
        self.confirm(confirm)

    def confirm(self, label: str) -> None:
        """Press a button of the open dialog."""
        self.page.locator(".jp-Dialog").get_by_role("button", name=label, exact=True).click()

    def run_command(self, command: str, **arguments: Any) -> None:
        """Run a command of JupyterLab without waiting for its end."""
        script = "([command, given]) => { void window.jupyterapp.commands.execute(command, given); }"
        self.page.evaluate(script, [command, arguments])

    def shoot(self, name: str) -> None:
        """Leave a picture."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(SHOTS / f"{name}.png"))

    def check(self) -> None:
        """Nothing went wrong in it."""
        assert not self.errors, f"in the console: {self.errors}"
        assert self.expects_failures or not self.failed, f"in the console: {self.failed}"

    # --- time --------------------------------------------------------------------------

    def time_is_ours(self) -> None:
        """The timers of what is loaded next can be moved on (`pass_seconds`)."""
        self.page.clock.install()

    def pass_seconds(self, seconds: int, *, at_a_time: int = 1) -> None:
        """Let time pass in the page by jumps; a timer goes off once in each, and answers come in between.

        A server that is only slow in real time must not look to the page as if it had been silent for long.
        """
        for _ in range(0, seconds, at_a_time):
            self.page.clock.fast_forward(at_a_time * 1000)
            until(lambda: (self.page.wait_for_timeout(_GLANCE_MS), not self.asking)[1], "answers")

    # --- a notebook ----------------------------------------------------------------------

    def open_notebook(self, name: str, *, workspace: str = "tests") -> None:
        """A notebook of the server's root."""
        self.open(f"lab/workspaces/{workspace}/tree/{name}")

    def until_kernel_is_ready(self) -> None:
        """Wait until the notebook's kernel would run a cell at once."""
        self.page.wait_for_function(_IS_READY, timeout=PATIENCE_MS)

    def cell(self, number: int) -> Any:
        """A cell of the open notebook."""
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(number)

    def run_cell(self, number: int) -> None:
        """Run a cell, as Ctrl-Enter does; it is not waited for."""
        self.cell(number).locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")

    def until_prompt_is(self, number: int, pattern: str) -> None:
        """Wait until a cell's prompt reads so: a star stands for one that runs."""
        prompt = self.cell(number).locator(".jp-InputPrompt").filter(has_text=re.compile(pattern))
        prompt.wait_for(timeout=PATIENCE_MS)

    def output(self, number: int) -> Any:
        """What a cell shows."""
        return self.cell(number).locator(".jp-Cell-outputArea")


@contextmanager
def a_page(chromium: Any, url: str, **how: Any) -> Iterator[Page]:
    """A new tab of a new user of the browser; it ends without an error in its console.

    Args:
        chromium: the browser.
        url: of Jupyter's server.
        how: what the browser is like, as Playwright names it.
    """
    usual = {"viewport": {"width": 1280, "height": 800}, "timezone_id": "Europe/Berlin"}
    context = chromium.new_context(**usual | how)
    page = another_page(context, url)
    try:
        yield page
    finally:
        context.close()
    page.check()


def another_page(context: Any, url: str) -> Page:
    """One more tab of a user."""
    page = Page(context.new_page(), url)
    page.page.on("pageerror", lambda error: _fell(page, error))
    page.page.on("console", lambda line: _note(page, line))
    page.page.on("dialog", lambda dialog: _asked(page, dialog))
    page.page.on("request", lambda request: page.asking.append(request) if _is_answered(request) else None)
    for end in ("requestfinished", "requestfailed"):
        page.page.on(end, lambda request: page.asking.remove(request) if request in page.asking else None)
    return page


def _is_answered(request: Any) -> bool:
    """Whether a request to the server extension is answered at once."""
    return "/selfsched/api/" in request.url and "wait_seconds=" not in request.url


def _asked(page: Page, dialog: Any) -> None:
    """A page with changes asks before it is left: yes. Whatever else asks is refused."""
    if dialog.type == "beforeunload":
        dialog.accept()
    else:
        page.dialogs.append(dialog.message)
        dialog.dismiss()


def _fell(page: Page, error: Any) -> None:
    """Of the extension or a picture (whose code is no file); JupyterLab itself lets some fall when a kernel
    dies or a connection is cut."""
    words = f"{error.message} {error.stack}"
    if "selfsched" in words or "blob:" in words:
        page.errors.append(words)


def _note(page: Page, line: Any) -> None:
    if line.type != "error" or "selfsched" not in line.text + json.dumps(line.location):
        return
    (page.failed if line.text.startswith("Failed to load resource") else page.errors).append(line.text)
