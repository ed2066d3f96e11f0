"""When people see it in a real browser: `python -m bench.screen [--json] [--quick]`.

A broker, a Jupyter server and the system's Chromium. The user has one job that holds eight
devices, and 0, 120 or 499 more that wait (`jobs`: all of them).

open_ms     from the click on the status bar until the panel shows the jobs: median and longest
change_ms   an allocation changes (the job leaves a device): from before the call that makes the
            broker commit it until the page has drawn it, in the status bar and the panel; median
            and longest
redraw_ms   what the page's main thread works for one look at the jobs
answer_kib  size of the answer that has the jobs
heap_mib    of the page's JavaScript after half and after all of the looks: it does not grow
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from bench import _panels_lab as lab
from selfsched.protocol import ControlJob, JobReport, JobState, ReleaseDevices

_DEVICES = 8
_OPENED = 5
_LOOKS = 100
_CHANGE_PAUSE_SECONDS = 0.6
"""Changes of a person's job come no faster; within a quarter of a second two are one news."""
_PATIENCE_MS = 60_000
_DRAWN = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
_WATCH = """() => {
  const seen = (window.selfschedSeen = {});
  const note = () => {
    const bar = document.querySelector('.jp-selfsched-status')?.textContent ?? '';
    const panel = document.querySelector('#selfsched-panel .jp-selfsched-phase')?.textContent ?? '';
    const [shown, told] = [/selfsched: (\\d+) device/.exec(bar), /runs on (\\d+) device/.exec(panel)];
    if (shown && told && shown[1] === told[1] && !(shown[1] in seen)) {
      requestAnimationFrame(() => setTimeout(() => { seen[shown[1]] ??= Date.now(); }));
    }
  };
  new MutationObserver(note).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""
"""Notes when a number of devices stands both in the status bar and in the panel, and is drawn."""


@dataclass(frozen=True)
class Screen:
    """One row of the result."""

    jobs: int
    open_ms: float
    open_longest_ms: float
    change_ms: float
    change_longest_ms: float
    redraw_ms: float
    answer_kib: float
    heap_half_mib: float
    heap_mib: float
    errors: int
    """Written to the page's console by the extension."""


class _Job:
    """The one job that runs; it reports as its supervisor would."""

    def __init__(self, broker: httpx.AsyncClient, job: str) -> None:
        self._broker, self._job = broker, job
        self._sequence = 0
        self.leases: list[dict[str, Any]] = []

    async def report(self) -> None:
        self._sequence += 1
        refs = [{"lease": lease["lease"], "fence": lease["fence"]} for lease in self.leases]
        report = JobReport(
            incarnation=1, sequence=self._sequence, step=self._sequence, planned_steps=10_000,
            state=JobState.RUNNING if self.leases else JobState.WAITING, fraction_done=self._sequence * 1e-4,
        ).model_dump(mode="json")  # fmt: skip
        answer = await self._broker.post(f"/v1/jobs/{self._job}/report", json={**report, "leases": refs})
        self.leases = answer.raise_for_status().json()["leases"]

    async def until_it_runs(self) -> None:
        while not self.leases:
            await self.report()
            await asyncio.sleep(0.1)
        await self.report()
        order = ControlJob(action="set_devices", min_devices=1, max_devices=_DEVICES)
        answer = await self._broker.post(f"/v1/jobs/{self._job}/control", content=order.to_json())
        answer.raise_for_status()

    async def leave_a_device(self) -> float:
        """Say that it has left one; when that was sent, in seconds since 1970."""
        lease = self.leases[0]
        device = lease["devices"].pop()
        message = ReleaseDevices(fence=lease["fence"], devices=(device["id"],), reason="less is enough")
        at = time.time()
        answer = await self._broker.post(f"/v1/leases/{lease['lease']}/release", content=message.to_json())
        answer.raise_for_status()
        return at


class _Page:
    """JupyterLab in a tab."""

    def __init__(self, page: Any, url: str) -> None:
        self._page, self._url = page, url
        self.errors = 0
        page.on("console", self._note)
        page.on("pageerror", lambda _: self._count())

    def _note(self, line: Any) -> None:
        if line.type == "error" and "selfsched" in line.text + json.dumps(line.location):
            self._count()

    def _count(self) -> None:
        self.errors += 1

    async def open(self) -> None:
        await self._page.goto(f"{self._url}lab?reset&token={lab.JUPYTER_TOKEN}")
        await self._page.wait_for_selector(".jp-selfsched-status:has-text('devices')", timeout=_PATIENCE_MS)

    async def open_panel_ms(self) -> float:
        """From the click until it shows the jobs; it is closed again before."""
        script = """async () => {
          const began = performance.now();
          document.querySelector('.jp-selfsched-status').click();
          for (;;) {
            await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
            const job = document.querySelector('#selfsched-panel article');
            if (job && job.getBoundingClientRect().height > 0) return performance.now() - began;
          }
        }"""
        took = float(await self._page.evaluate(script))
        return took

    async def close_panel(self) -> None:
        """Fold the side bar that it is in."""
        await self._page.evaluate("() => window.jupyterapp.shell.collapseRight()")
        await self._page.locator("#selfsched-panel").wait_for(state="hidden", timeout=_PATIENCE_MS)

    async def watch(self) -> None:
        await self._page.evaluate(_WATCH)

    async def seen_at(self, devices: int) -> float:
        """When so many devices were on the screen, in seconds since 1970."""
        script = "devices => (window.selfschedSeen ?? {})[devices]"
        handle = await self._page.wait_for_function(script, arg=str(devices), timeout=_PATIENCE_MS)
        return float(await handle.json_value()) / 1000

    async def looks(self, count: int, session: Any) -> float:
        """Let it look at the jobs so often; milliseconds of its main thread for one."""
        before = await _metric(session, "TaskDuration")
        for _ in range(count):
            async with self._page.expect_response("**/broker/jobs?*", timeout=_PATIENCE_MS):
                await self._page.evaluate("() => window.jupyterapp.commands.execute('selfsched:refresh')")
            await self._page.evaluate(_DRAWN)
        return 1000 * (await _metric(session, "TaskDuration") - before) / count


async def _metric(session: Any, name: str) -> float:
    found = await session.send("Performance.getMetrics")
    return next(float(metric["value"]) for metric in found["metrics"] if metric["name"] == name)


async def _heap_mib(session: Any) -> float:
    await session.send("HeapProfiler.collectGarbage")
    return await _metric(session, "JSHeapUsedSize") / 2**20


async def _row(
    browser: Any, url: str, web: httpx.AsyncClient, job: _Job, *, more: int, looks: int
) -> Screen:
    """Measure with so many more jobs."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    try:
        tab = await context.new_page()
        page = _Page(tab, url)
        session = await context.new_cdp_session(tab)
        await session.send("Performance.enable")
        await page.open()
        opened = [await page.open_panel_ms()]
        while len(opened) < _OPENED:
            await page.close_panel()
            opened.append(await page.open_panel_ms())
        await page.watch()
        changed = []
        held = sum(len(lease["devices"]) for lease in job.leases)
        for left in (held - 1, held - 2):
            await asyncio.sleep(_CHANGE_PAUSE_SECONDS)
            sent_at = await job.leave_a_device()
            changed.append(1000 * (await page.seen_at(left) - sent_at))
            await job.report()
        redraw_ms = await page.looks(looks // 2, session)
        half = await _heap_mib(session)
        await page.looks(looks // 2, session)
        heap = await _heap_mib(session)
        answer = await web.get(f"{url}selfsched/api/broker/jobs?ended=0")
        return Screen(
            1 + more, statistics.median(opened), max(opened), statistics.median(changed), max(changed),
            redraw_ms, len(answer.raise_for_status().content) / 1024, half, heap, page.errors,
        )  # fmt: skip
    finally:
        await context.close()


async def measure(folder: Path, counts: tuple[int, ...], looks: int) -> list[Screen]:
    """Run all of it; `folder` is empty, and its path short enough for a socket."""
    from playwright.async_api import async_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("this bench needs Chromium")
    (folder / "state").mkdir(mode=0o700)
    async with AsyncExitStack() as undo:
        transport = httpx.AsyncHTTPTransport(uds=str(folder / "s"))
        admin = await undo.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://broker", timeout=60)
        )
        headers = {"Authorization": f"token {lab.JUPYTER_TOKEN}"}
        web = await undo.enter_async_context(httpx.AsyncClient(headers=headers, timeout=60, trust_env=False))
        broker = lab.start_broker(folder)
        undo.callback(lab.end, broker)
        await lab.address_of(folder, broker)
        await lab.offer(admin, _DEVICES)
        port = lab.free_port()
        notebooks = lab.start_jupyter(folder, port, SELFSCHED_BROKER=f"unix:{folder / 's'}")
        undo.callback(lab.end, notebooks)
        url = f"http://127.0.0.1:{port}/"
        await lab.until_it_answers(web, f"{url}api", notebooks)
        job = _Job(admin, await lab.register(admin, "train", devices=_DEVICES))
        await job.until_it_runs()
        playwright = await undo.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        undo.push_async_callback(browser.close)
        rows, waiting = [], 0
        for more in counts:
            for number in range(waiting, more):
                await lab.register(admin, f"sweep-{number}")
            waiting = more
            rows.append(await _row(browser, url, web, job, more=more, looks=looks))
        return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.screen", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument("--quick", action="store_true", help="one job only, and few looks")
    asked = parser.parse_args()
    counts, looks = ((0,), 20) if asked.quick else ((0, 119, 499), _LOOKS)
    with tempfile.TemporaryDirectory(prefix="screen-") as folder:
        rows = [asdict(row) for row in asyncio.run(measure(Path(folder), counts, looks))]
    if asked.json:
        print(json.dumps({"rows": rows}))
        return
    print("  ".join(f"{name:>17}" for name in rows[0]))
    for row in rows:
        print("  ".join(f"{value:17.1f}" for value in row.values()))


if __name__ == "__main__":
    main()
