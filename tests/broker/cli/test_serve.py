"""A broker as a process: started, stopped, killed, started twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import stat
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from broker.cli.broker_process import broker_process, command

from selfsched.private_broker import answers
from selfsched.settings import BrokerAddress

pytestmark = pytest.mark.slow
JOB = '{"name":"train"}'


def serve_arguments(tmp_path: Path) -> tuple[str, ...]:
    return ("--state-dir", str(tmp_path / "state"), "--port", "0", "--slots", "2")


def test_it_says_where_it_listens_and_ends_in_order(tmp_path: Path) -> None:
    with broker_process(tmp_path, *serve_arguments(tmp_path)) as broker:
        with broker.client() as client:
            assert httpx.get(broker.addresses["address"] + "/readyz", trust_env=False).status_code == 200
            devices = client.get("/v1/cluster").json()["devices"]
            assert [device["state"] for device in devices] == ["free", "free"]
        state = tmp_path / "state"
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        assert all(stat.S_IMODE(p.stat().st_mode) & 0o077 == 0 for p in state.iterdir())
        second = command(tmp_path, "serve", *serve_arguments(tmp_path))
        assert second.returncode == 1
        assert f"another broker (process {broker.addresses['pid']})" in second.stderr
        assert "Traceback" not in second.stderr
        broker.process.send_signal(signal.SIGTERM)
        assert broker.wait() == 0
        assert broker.process.stdout is not None
        assert broker.addresses["address"] in broker.process.stdout.read()
    assert not (tmp_path / "ready.json").exists()
    assert not Path(broker.addresses["admin_socket"]).exists()


@pytest.mark.parametrize(("place", "jobs_after"), [("before_commit", 0), ("after_commit", 1)])
def test_killed_around_a_commit_the_same_call_has_its_effect_once(
    tmp_path: Path, place: str, jobs_after: int
) -> None:
    header = {"Idempotency-Key": "once"}
    arguments = serve_arguments(tmp_path)
    with broker_process(tmp_path, *arguments, _SELFSCHED_FAILPOINT=place) as broker:
        with broker.client() as client, pytest.raises(httpx.HTTPError):
            client.post("/v1/jobs", content=JOB, headers=header)
        assert broker.wait() == -signal.SIGKILL
    with broker_process(tmp_path, *arguments) as broker, broker.client() as client:
        assert len(client.get("/v1/jobs").json()) == jobs_after
        first = client.post("/v1/jobs", content=JOB, headers=header)
        again = client.post("/v1/jobs", content=JOB, headers=header)
        assert (first.status_code, again.status_code) == (201, 201)
        assert first.content == again.content
        assert [job["name"] for job in client.get("/v1/jobs").json()] == ["train"]
        other = client.post("/v1/jobs", content='{"name":"other"}', headers=header)
        assert other.json()["code"] == "idempotency_key_reused"
        # A killed broker leaves its ready file and sockets behind; the commands still find the new one.
        listed = command(tmp_path, "jobs", "--json", "--state-dir", str(tmp_path / "state"))
        assert listed.returncode == 0, listed.stderr


def test_a_lease_stands_over_a_kill_of_the_broker(tmp_path: Path) -> None:
    arguments = serve_arguments(tmp_path)
    with broker_process(tmp_path, *arguments) as broker, broker.client() as client:
        job = client.post("/v1/jobs", content=JOB, headers={"Idempotency-Key": "k"}).json()["job"]
        told: dict[str, object] = {"version": 0, "leases": []}
        for sequence in range(1, 10):
            report = {"incarnation": 1, "sequence": sequence, "state": "waiting", "wait_seconds": 5.0,
                      "seen": told["version"]}  # fmt: skip
            told = client.post(f"/v1/jobs/{job}/report", content=json.dumps(report)).json()
            if told["leases"]:
                break
        os.kill(broker.addresses["pid"], signal.SIGKILL)
        broker.wait()
    with broker_process(tmp_path, *arguments) as broker, broker.client() as client:
        report = {"incarnation": 1, "sequence": 20, "state": "running"}
        after = client.post(f"/v1/jobs/{job}/report", content=json.dumps(report)).json()
        assert [lease["fence"] for lease in after["leases"]] == [1]
        assert after["incarnation"] == 2
        assert after["leases"][0]["ttl_seconds"] > 25


def test_a_private_broker_ends_after_its_last_job(tmp_path: Path) -> None:
    extra = {"SELFSCHED_BROKER_IDLE_EXIT_SECONDS": "1"}
    with broker_process(tmp_path, "--private", "--slots", "1", **extra) as broker:
        path = tmp_path / "run" / "selfsched" / "broker.sock"
        assert broker.addresses["address"] == f"unix:{path}"
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://broker") as client:
            made = client.post("/v1/jobs", content=JOB, headers={"Idempotency-Key": "k"})
            job = made.json()["job"]
            assert client.post(f"/v1/jobs/{job}/end", content='{"outcome":"finished"}').status_code == 200
        assert broker.wait() == 0
    assert not path.exists()


def _until_it_answers(path: Path) -> None:
    """Wait until a broker answers at a socket; fails after half a minute."""
    give_up_at = time.monotonic() + 30
    while not answers(BrokerAddress(url="http://broker", socket=path)):
        assert time.monotonic() < give_up_at, f"nobody answers at {path}"
        time.sleep(0.05)


def test_a_private_broker_outlives_the_runtime_directory_of_its_user(tmp_path: Path) -> None:
    with broker_process(tmp_path, "--private", "--slots", "1") as broker:
        runtime, spare = tmp_path / "run", tmp_path / "xdg" / "selfsched" / "broker.sock"
        shutil.rmtree(runtime)  # as systemd-logind does at the last logout
        _until_it_answers(spare)
        _until_it_answers(runtime / "selfsched" / "broker.sock")
        shutil.rmtree(runtime)
        runtime.touch()  # as after a logout, when only root could make it
        _until_it_answers(spare)
        assert broker.process.poll() is None
        spare.unlink()
        spare.mkdir()
        assert broker.wait() == 1  # nobody can reach it: its books are free for the next one
        assert broker.process.stdout is not None
        assert "nobody can reach it" in broker.process.stdout.read()


def test_a_private_broker_brings_the_books_of_an_earlier_release_up_to_date(tmp_path: Path) -> None:
    with broker_process(tmp_path, "--private", "--slots", "1") as broker:
        broker.process.send_signal(signal.SIGTERM)
        assert broker.wait() == 0
    (path,) = tmp_path.rglob("books.sqlite")
    with closing(sqlite3.connect(path)) as books:  # as the first release left it
        for table in ("forecasts", "evidence", "priors"):
            books.execute(f"drop table {table}")
        books.execute("update alembic_version set version_num = '0001_first_books'")
        books.commit()
    with broker_process(tmp_path, "--private", "--slots", "1") as broker:
        broker.process.send_signal(signal.SIGTERM)
        assert broker.wait() == 0
    assert list(path.parent.glob("books.sqlite.before-migration-*"))


def test_a_mistake_is_one_sentence_and_code_2(tmp_path: Path) -> None:
    done = command(tmp_path, "serve", "--policy", "lottery", "--state-dir", str(tmp_path / "s"))
    assert done.returncode == 2
    assert "lottery" in done.stderr
    assert "Traceback" not in done.stderr
