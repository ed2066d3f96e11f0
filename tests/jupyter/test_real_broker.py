"""The server extension before a real broker: found when it comes up, behind a base URL, as the user."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from broker.live_broker import LiveBroker, live_broker, refs, register, report, until_leased

from jupyter.jupyter_process import JupyterProcess, jupyter_process
from selfsched.elastic.job import JobDescription
from selfsched.elastic.run_directory import open_run
from selfsched.protocol import BidRow, JobState, Placement, StandingBid

pytestmark = pytest.mark.slow


@dataclass
class Lab:
    """A server whose lab's broker came up after it."""

    jupyter: JupyterProcess
    broker: LiveBroker
    before: httpx.Response
    """`hello` while there was no broker."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    home = tmp_path_factory.mktemp("home")
    state = tmp_path_factory.mktemp("lab") / "state"
    environment = {"SELFSCHED_LAB_SOCKET": str(state / "s")}
    with jupyter_process(home, base_url="/user/ada.x/", environment=environment) as jupyter:
        with jupyter.client() as page:
            before = page.get("hello")
        with live_broker(state, calls_per_second=1e5) as broker:
            yield Lab(jupyter, broker, before)


@pytest.fixture
def page(lab: Lab) -> Iterator[httpx.Client]:
    with lab.jupyter.client() as found:
        give_up_at = time.monotonic() + 20
        while found.get("hello").json()["broker"]["kind"] != "lab" and time.monotonic() < give_up_at:
            time.sleep(0.1)
        yield found


def test_without_a_broker_hello_says_what_to_do(lab: Lab) -> None:
    told = lab.before.json()
    assert lab.before.status_code == 200
    assert told["broker"] == {"url": None, "kind": "none"}
    assert told["account"] is None
    assert told["problem"]["code"] == "no_broker"
    assert "SELFSCHED_BROKER" in told["problem"]["detail"]


def test_a_labs_broker_that_comes_up_later_is_found_without_a_restart(lab: Lab, page: httpx.Client) -> None:
    told = page.get("hello").json()
    assert told["broker"]["kind"] == "lab"
    assert told["problem"] is None
    assert told["account"]["account"] == getpass.getuser()


def test_all_views_are_those_of_the_broker(lab: Lab, page: httpx.Client) -> None:
    job = register(lab.broker.admin)
    until_leased(lab.broker.admin, job)
    assert page.get(f"broker/jobs/{job}").json()["name"] == "train"
    assert job in [seen["job"] for seen in page.get("broker/jobs").json()]
    assert page.get("broker/cluster").json()["devices"][0]["state"] == "held"
    number = page.get("broker/auctions?last=1").json()[0]["number"]
    assert page.get(f"broker/auctions/{number}").json()["number"] == number
    assert page.get("broker/policy").json()["policy"] == "selfsched"
    assert page.get("broker/accounts/me").json()["account"] == getpass.getuser()
    assert page.get("broker/accounts/me/forecasts").json() == []
    assert page.get("broker/jobs/job-999").json()["code"] == "not_found"
    assert page.get("broker/auctions/999999").json()["code"] == "not_found"
    page.post(f"broker/jobs/{job}/end", json={"outcome": "cancelled"})


def test_an_allocation_ends_a_wait_at_once(lab: Lab, page: httpx.Client) -> None:
    tag = page.get("broker/cluster").headers["etag"]
    with ThreadPoolExecutor(1) as pool, lab.jupyter.client() as other:
        asked = {"If-None-Match": tag}
        waiting = pool.submit(other.get, "broker/cluster?wait_seconds=20", headers=asked)
        job = register(lab.broker.admin)
        answer = waiting.result(10)
    assert answer.status_code == 200
    assert answer.headers["etag"] != tag
    page.post(f"broker/jobs/{job}/end", json={"outcome": "cancelled"})


def test_an_order_given_twice_with_one_key_is_done_once(lab: Lab, page: httpx.Client) -> None:
    job = register(lab.broker.admin)
    order, key = {"action": "set_priority", "priority": 3.0}, {"Idempotency-Key": "from-the-panel"}
    first = page.post(f"broker/jobs/{job}/control", json=order, headers=key)
    again = page.post(f"broker/jobs/{job}/control", json=order, headers=key)
    assert first.status_code == again.status_code == 200
    assert page.get(f"broker/jobs/{job}").json()["priority"] == 3.0
    other = page.post(f"broker/jobs/{job}/control", json={**order, "priority": 4.0}, headers=key)
    assert other.json()["code"] == "idempotency_key_reused"
    page.post(f"broker/jobs/{job}/end", json={"outcome": "cancelled"})


def test_what_a_job_holds_can_be_given_back_from_the_panel(lab: Lab, page: httpx.Client) -> None:
    job = register(lab.broker.admin)
    told, _ = until_leased(lab.broker.admin, job)
    lease = told.leases[0]
    body = {"fence": lease.fence, "devices": [device.id for device in lease.devices]}
    answer = page.post(f"broker/leases/{lease.lease}/release", json=body)
    assert answer.status_code == 200, answer.text
    held = lab.broker.books.holdings_of(lease.lease)
    assert not [holding for holding in held if holding.state == "held"]
    stale = page.post(f"broker/leases/{lease.lease}/release", json={**body, "fence": lease.fence + 1})
    assert stale.json()["code"] in ("lease_lost", "conflict")
    page.post(f"broker/jobs/{job}/end", json={"outcome": "cancelled"})


def test_a_run_of_some_hours_is_foreseen_the_less_surely_the_further_it_must_scale(
    page: httpx.Client,
) -> None:
    answer = page.post("what-if", json={"hours": 2, "devices": [1, 2]})
    assert answer.status_code == 200, answer.text
    as_now, one, two = answer.json()["ahead"]
    assert [line["devices"] for line in (as_now, one, two)] == [None, 1, 2]
    assert 7200 <= one["ends"]["p50_seconds"] < 9000
    assert 3600 < two["ends"]["p50_seconds"] < 5000

    def width(line: Any) -> float:
        return float(line["ends"]["p90_seconds"] / line["ends"]["p10_seconds"])

    assert width(two) > 1.1 * width(one)


def test_a_run_like_a_job_is_foreseen_while_it_runs_and_when_it_has_ended(
    lab: Lab, page: httpx.Client
) -> None:
    job = register(lab.broker.admin, "digits")
    told, sequence = until_leased(lab.broker.admin, job)
    question = {"like": job, "devices": [1]}
    refused = page.post("what-if", json=question)
    assert (refused.status_code, refused.json()["code"]) == (422, "not_foreseeable")
    assert "has not measured itself" in refused.json()["detail"]
    bid = StandingBid(rows=(BidRow(placement=Placement(devices=1), remaining_seconds=1800.0, sigma_log=0.1),))
    said = report(
        lab.broker.admin, job, sequence + 1, state=JobState.RUNNING, step=50, planned_steps=100,
        fraction_done=0.5, leases=refs(told), bid=bid,
    )  # fmt: skip
    assert said.status_code == 200, said.text
    until_it_shows(page, job, "bid")
    assert page.post("what-if", json=question).status_code == 200
    page.post(f"broker/jobs/{job}/end", json={"outcome": "failed"})
    ended = page.post("what-if", json=question)
    assert ended.status_code == 200, ended.text
    assert 3600 <= ended.json()["ahead"][1]["ends"]["p50_seconds"] < 4500, "half of it took 1800 s"


def until_it_shows(page: httpx.Client, job: str, field: str) -> None:
    """Views are shared for a moment by all who look."""
    give_up_at = time.monotonic() + 20
    while page.get(f"broker/jobs/{job}").json()[field] is None and time.monotonic() < give_up_at:
        time.sleep(0.1)


def test_an_open_notebook_holds_nothing(lab: Lab, page: httpx.Client) -> None:
    for path in ("hello", "broker/jobs", "broker/cluster", "runs"):
        assert page.get(path).status_code == 200
    assert not lab.broker.books.live_accounts()
    assert page.get("broker/cluster").json()["running_jobs"] == 0


def test_a_run_and_what_it_printed_are_found_again(lab: Lab, page: httpx.Client) -> None:
    home = lab.jupyter.home
    directory, lock = open_run("night", parent=home / ".local" / "state" / "selfsched" / "runs")
    JobDescription(
        run_directory=directory.path, name="night", program="payload", working_directory=home,
        notebook=str(home / "work" / "night.ipynb"), kernel_id="k-1",
    ).write()  # fmt: skip
    (directory.path / "output.log").write_text("epoch 1\nepoch 2\n")
    give_up_at = time.monotonic() + 20
    while not page.get("runs").json() and time.monotonic() < give_up_at:
        time.sleep(0.1)
    run = page.get("runs").json()[0]
    assert (run["name"], run["state"], run["notebook"]) == ("night", "running", "work/night.ipynb")
    first = page.get("runs/night/output").json()
    assert (first["text"], first["complete"]) == ("epoch 1\nepoch 2\n", False)
    os.close(lock)
    rest = page.get(f"runs/night/output?from={first['next']}").json()
    assert (rest["text"], rest["complete"]) == ("", True)


def test_a_server_under_a_base_url_answers_nowhere_else(lab: Lab) -> None:
    root = httpx.URL(lab.jupyter.url)
    answer = httpx.get(f"http://{root.host}:{root.port}/selfsched/api/hello", trust_env=False)
    assert answer.status_code in (302, 404)


def test_nothing_of_this_was_a_mistake(lab: Lab, tmp_path: Path) -> None:
    assert "Traceback" not in lab.jupyter.log
