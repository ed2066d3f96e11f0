"""One JupyterLab, one broker and one Chromium for all tests in a browser."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from broker.live_broker import LiveBroker, live_broker
from jupyter.jupyter_process import JupyterProcess, jupyter_process

from browser.page import EXPOSED, Page, a_page, without_news

AXE = Path(__file__).parents[2] / "jupyter_ext" / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
BASE_URL = "/user/ada/"
Opener = Callable[..., AbstractContextManager[Page]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Leave a picture of each page in which something is not as it should be."""
    report = yield
    given = getattr(item, "funcargs", {}).values()
    for number, page in enumerate(page for page in given if isinstance(page, Page)):
        if report.when == "call" and report.failed:
            page.shoot(f"failed-{item.name.partition('[')[0]}-{number}")
    return report


def needs(there: object, what: str) -> None:
    """Skip a test for want of something; where everything has to be there (CI) that is a failure."""
    if there:
        return
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"{what}: the tests in a browser may not be left out here")
    pytest.skip(what)


@dataclass
class Lab:
    """JupyterLab under a base URL, before a broker."""

    jupyter: JupyterProcess
    broker: LiveBroker


@contextmanager
def a_lab(made: pytest.TempPathFactory, *, devices: int) -> Iterator[Lab]:
    """One whose broker leases so many CPU slots of its own machine."""
    home, state = made.mktemp("home"), made.mktemp("lab") / "state"
    without_news(home)
    environment = {"SELFSCHED_LAB_SOCKET": str(state / "s")}
    with (
        live_broker(state, devices=devices, calls_per_second=1e5) as broker,
        jupyter_process(home, base_url=BASE_URL, environment=environment, options=EXPOSED) as jupyter,
    ):
        yield Lab(jupyter, broker)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with a_lab(tmp_path_factory, devices=4) as made:
        yield made


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Ended with its module: while it lives an event loop runs here, and no other test could run its own."""
    needs(importlib.util.find_spec("playwright"), "playwright is not installed")
    needs(CHROMIUM, "there is no Chromium on this machine")
    from playwright import sync_api

    with sync_api.sync_playwright() as found:
        browser = found.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opener(chromium: Any) -> Opener:
    """Makes tabs of new users of the browser; each must end without an error in its console."""

    @contextmanager
    def opened(url: str, **how: Any) -> Iterator[Page]:
        with a_page(chromium, url, **how) as page:
            yield page

    return opened


@pytest.fixture
def tab(lab: Lab, opener: Opener, no_jobs_left: None) -> Iterator[Page]:
    """JupyterLab in a tab of its own."""
    with opener(lab.jupyter.url) as page:
        page.open()
        yield page


@pytest.fixture
def timed_tab(lab: Lab, opener: Opener, no_jobs_left: None) -> Iterator[Page]:
    """One whose clock a test moves on."""
    with opener(lab.jupyter.url) as page:
        page.time_is_ours()
        page.open()
        yield page


@pytest.fixture
def no_jobs_left(lab: Lab) -> Iterator[None]:
    yield
    for job in lab.broker.admin.get("/v1/jobs").json():
        with suppress(KeyError):
            lab.broker.admin.post(f"/v1/jobs/{job['job']}/end", json={"outcome": "cancelled"})


@pytest.fixture
def axe() -> Path:
    """The file of axe-core."""
    needs(AXE.exists(), "axe-core is not installed: `jlpm install` in jupyter_ext")
    return AXE
