"""What a broker learned and what it knows of forecasts, over kill -9, a restart and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from broker.cli.broker_process import BrokerProcess, broker_process, command
from broker.live_broker import live_broker, refs, register, report, until_leased
from broker.spoken_steps import said

from selfsched.protocol import EndJob, Forecast, JobState, LeaseRef, Outcome, ReleaseDevices

HARDWARE = "cpu"
PRIOR = f"/v1/hardware/{HARDWARE}/prior"
SURE = Forecast(p10_seconds=0.0, p50_seconds=1.0, p90_seconds=3000.0, assumption="as_now")


def until(condition: Callable[[], Any], what: str) -> Any:
    give_up_at = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"this never came: {what}"
        time.sleep(0.05)
    return found


@dataclass(frozen=True)
class Told:
    """A job that was on two devices and now is on one."""

    job: str
    leases: tuple[LeaseRef, ...]
    sequence: int


def on_two_then_one(client: httpx.Client, name: str) -> Told:
    until(lambda: client.get("/v1/cluster").json()["devices"], "devices")
    job = register(client, name, min_devices=2, max_devices=2)
    told, sequence = until_leased(client, job)
    (lease,) = told.leases
    left = ReleaseDevices(fence=lease.fence, devices=(lease.devices[1].id,))
    answer = client.post(f"/v1/leases/{lease.lease}/release", content=left.to_json())
    assert answer.status_code == 200, answer.text
    return Told(job, refs(told), sequence)


def speak(client: httpx.Client, told: Told) -> None:
    answer = report(
        client, told.job, told.sequence + 1, state=JobState.RUNNING, leases=told.leases,
        statistics=said(2e9, hardware=HARDWARE, counts=(1, 2)), forecast=SURE, fraction_done=0.3,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text


def learned(client: httpx.Client, jobs: int) -> dict[str, Any]:
    def prior() -> dict[str, Any] | None:
        found: dict[str, Any] = client.get(PRIOR).json()
        return found if found["jobs"] == jobs else None

    found: dict[str, Any] = until(prior, f"a prior learned from {jobs} jobs")
    return found


def serving(tmp_path: Path, learn_seconds: float) -> Any:
    arguments = ("--state-dir", str(tmp_path / "state"), "--slots", "6", "--port", "0")
    return broker_process(tmp_path, *arguments, SELFSCHED_BROKER_LEARN_SECONDS=str(learn_seconds))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str], dict[str, Any]]]:
    """(home, jobs, prior) of a broker that was killed after it had learned from two jobs."""
    home = tmp_path_factory.mktemp("learned")
    with serving(home, 0.3) as broker, broker.client() as client:
        told = [on_two_then_one(client, name) for name in ("first", "second")]
        for one in told:
            speak(client, one)
        prior = learned(client, 2)
        os.kill(broker.process.pid, signal.SIGKILL)
        broker.wait()
        yield home, [one.job for one in told], prior


@pytest.mark.slow
def test_after_kill_9_the_prior_is_served_at_once_and_forecasts_are_scored(
    killed: tuple[Path, list[str], dict[str, Any]],
) -> None:
    home, jobs, prior = killed
    assert prior["form"]["version"] == 1
    with serving(home, 3600.0) as broker, broker.client() as client:
        assert client.get(PRIOR).json() == prior
        open_forecasts = client.get("/v1/accounts/me/forecasts").json()
        assert {score["job"]: score["actual_seconds"] for score in open_forecasts} == dict.fromkeys(jobs)
        end(client, jobs[0])
        scores = {score["job"]: score for score in client.get("/v1/accounts/me/forecasts").json()}
        assert scores[jobs[0]]["actual_seconds"] > 0
        assert scores[jobs[0]]["covered"] is True
        assert scores[jobs[1]]["actual_seconds"] is None
        me = client.get("/v1/accounts/me").json()
        assert (me["forecast_scores"]["made"], me["forecast_scores"]["held"]) == (1, 1)
        admins = client.get("/v1/admin/hardware").json()
        assert [(h["hardware"], h["reporting_jobs"]) for h in admins] == [(HARDWARE, 2)]
        check_the_commands(home)
        check_the_end(broker)


def end(client: httpx.Client, job: str) -> None:
    message = EndJob(outcome=Outcome.FINISHED).to_json()
    assert client.post(f"/v1/jobs/{job}/end", content=message).status_code == 200


def check_the_commands(home: Path) -> None:
    here = ("--state-dir", str(home / "state"))
    table = command(home, "hardware", *here)
    assert table.returncode == 0, table.stderr
    for words in (HARDWARE, "2 jobs", "GB/s"):
        assert words in table.stdout
    listed = json.loads(command(home, "hardware", "--json", *here).stdout)
    assert listed[0]["prior"]["jobs"] == 2
    assert "1 of 1" in command(home, "users", "list", *here).stdout


def check_the_end(broker: BrokerProcess) -> None:
    broker.process.send_signal(signal.SIGINT)
    assert broker.wait() == 0


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_a_fit(tmp_path: Path) -> None:
    with serving(tmp_path, 0.1) as broker, broker.client() as client:
        for number in range(2):
            speak(client, on_two_then_one(client, f"j{number}"))
        until(lambda: fits_of(broker.process.pid), "a fit")
        broker.process.send_signal(signal.SIGINT)
        assert broker.wait() == 0
        assert not fits_of(broker.process.pid)
    with closing(sqlite3.connect(tmp_path / "state" / "books.sqlite")) as books:
        assert books.execute("select count(*) from evidence").fetchone() == (2,)


def fits_of(broker: int) -> list[int]:
    """Processes that fit for a broker."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == broker and b"selfsched_broker.fitting" in words:
            found.append(int(entry.name))
    return found


def test_a_prior_for_a_job_is_given_to_its_owner_alone(tmp_path: Path) -> None:
    with live_broker(tmp_path / "state") as broker:
        ada, bob = broker.as_account("ada"), broker.as_account("bob")
        job = register(ada)
        assert ada.get(PRIOR, params={"job": job}).json()["jobs"] == 0
        refused, absent = (bob.get(PRIOR, params={"job": name}) for name in (job, "job-99"))
        assert refused.status_code == absent.status_code == 404
        assert refused.json() == absent.json()
        assert bob.get("/v1/admin/hardware").status_code == 403
        assert broker.admin.get("/v1/admin/hardware").json() == []
