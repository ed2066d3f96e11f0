"""Who waits sees when it starts, and afterwards how right that was."""

from __future__ import annotations

import re

import pytest
from broker.live_broker import refs, register, report, until_leased

from browser.conftest import Lab
from browser.page import PATIENCE_MS, Page
from browser.test_panel import running
from selfsched.protocol import BidRow, Forecast, JobState, Placement, StandingBid

pytestmark = pytest.mark.slow

FOUR = Placement(devices=4)


def test_u6_start_and_finish_are_ranges_with_the_reason_and_past_ones_are_judged(lab: Lab, tab: Page) -> None:
    admin = lab.broker.admin
    holder, _, _ = running(lab, "holder", min_devices=4, max_devices=4)
    waiting = register(admin, "thesis", min_devices=4, max_devices=4)
    rows = (BidRow(placement=FOUR, remaining_seconds=1800.0, sigma_log=0.1),)
    said = report(admin, waiting, 1, bid=StandingBid(rows=rows))
    assert said.status_code == 200, said.text
    tab.open_panel()
    tab.sees(re.compile(r"^waits for a device, expected in .+ \(.+ to .+\), because: .+"))
    admin.post(f"/v1/jobs/{holder}/end", json={"outcome": "finished"})
    told, sequence = until_leased(admin, waiting)
    said = report(
        admin, waiting, sequence + 1, state=JobState.RUNNING, step=50, planned_steps=100, fraction_done=0.5,
        leases=refs(told),
        forecast=Forecast(p10_seconds=800, p50_seconds=900, p90_seconds=1000, assumption="as_now"),
    )  # fmt: skip
    assert said.status_code == 200, said.text
    tab.sees(re.compile(r"^Done: .+ to .+"))
    admin.post(f"/v1/jobs/{waiting}/end", json={"outcome": "finished"})
    tab.panel.get_by_role("button", name="Show my history").click()
    row = tab.panel.get_by_role("row").filter(has_text="thesis").first
    row.wait_for(timeout=PATIENCE_MS)
    held = row.get_by_role("cell").last.inner_text()
    assert held in ("yes", "no", "devices changed"), "held against the end that came"
