"""A disk that is full, for real: the kernel refuses every write of the broker's process."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import httpx
import pytest
from broker.cli.broker_process import BrokerProcess, broker_process

HEADERS = {"Idempotency-Key": "one"}


def allow_writes(broker: BrokerProcess, bytes_in_a_file: int) -> None:
    pid = broker.addresses["pid"]
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (bytes_in_a_file, hard))


def beat(client: httpx.Client, job: str, sequence: int) -> httpx.Response:
    report = {"incarnation": 1, "sequence": sequence, "state": "waiting"}
    return client.post(f"/v1/jobs/{job}/report", content=json.dumps(report))


@pytest.mark.slow
def test_a_full_disk_stops_decisions_not_leases_and_heals_without_a_restart(tmp_path: Path) -> None:
    arguments = ("--state-dir", str(tmp_path / "state"), "--port", "0", "--slots", "2")
    with broker_process(tmp_path, *arguments) as broker, broker.client() as client:
        job = client.post("/v1/jobs", content='{"name":"a"}', headers=HEADERS).json()["job"]
        beat(client, job, 1)
        report = {"incarnation": 1, "sequence": 2, "state": "waiting", "wait_seconds": 5.0, "seen": 1}
        client.post(f"/v1/jobs/{job}/report", content=json.dumps(report))
        fence = beat(client, job, 3).json()["leases"][0]["fence"]

        allow_writes(broker, 0)
        refused = client.post("/v1/jobs", content='{"name":"b"}', headers={"Idempotency-Key": "two"})
        assert refused.status_code == 503
        assert refused.json()["code"] == "unavailable"
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
        for sequence in range(4, 7):
            assert beat(client, job, sequence).json()["leases"][0]["fence"] == fence

        allow_writes(broker, resource.RLIM_INFINITY)
        assert client.get("/readyz").status_code == 200
        again = client.post("/v1/jobs", content='{"name":"b"}', headers={"Idempotency-Key": "two"})
        assert again.status_code == 201
        assert beat(client, job, 7).json()["leases"][0]["fence"] == fence
        assert [found["name"] for found in client.get("/v1/jobs").json()] == ["a", "b"]
