"""The job's own client against a real broker: both sides speak one protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker.live_broker import LiveBroker, live_broker

from selfsched.client import BrokerClient
from selfsched.errors import BrokerError, BrokerUnreachable, LeaseLost, NotAllowed, Refused
from selfsched.protocol import (
    BidRow,
    ControlJob,
    EndJob,
    JobReport,
    JobState,
    LeaseRef,
    Outcome,
    Placement,
    RegisterJob,
    ReleaseDevices,
    StandingBid,
    WhatIf,
)
from selfsched.settings import parse_address


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with live_broker(tmp_path / "state") as live:
        yield live


def token_of(broker: LiveBroker, account: str) -> str:
    broker.admin.put(f"/v1/admin/accounts/{account}", json={})
    made = broker.admin.post(f"/v1/admin/accounts/{account}/tokens", json={})
    return str(made.json()["token"])


def life_of_a_job(client: BrokerClient) -> None:
    registered = client.register(RegisterJob(name="train", max_devices=2), key="k1")
    assert client.register(RegisterJob(name="train", max_devices=2), key="k1") == registered
    job, seen, sequence = registered.job, registered.instructions.version, 0
    told = registered.instructions
    while not told.leases:
        sequence += 1
        report = JobReport(
            incarnation=1, sequence=sequence, state=JobState.WAITING, wait_seconds=5.0, seen=seen
        )
        told = client.report(job, report)
        seen = told.version
    row = BidRow(placement=Placement(devices=1), remaining_seconds=60.0)
    refs = (LeaseRef(lease=told.leases[0].lease, fence=told.leases[0].fence),)
    client.report(
        job,
        JobReport(
            incarnation=1,
            sequence=sequence + 1,
            state=JobState.RUNNING,
            leases=refs,
            bid=StandingBid(rows=(row,)),
        ),
    )
    assert client.job(job).state is JobState.RUNNING
    assert [view.job for view in client.jobs()] == [job]
    assert dict(client.what_if(WhatIf(job=job)).forecasts)[1].p50_seconds <= 60.0
    assert client.auction(1).awards[0].job == job
    assert client.hardware_prior("cpu").hardware == "cpu"
    assert client.my_forecasts() == ()
    client.control(job, ControlJob(action="set_priority", priority=2.0), key="k2")
    lease = told.leases[0]
    devices = tuple(device.id for device in lease.devices)
    client.release(lease.lease, ReleaseDevices(fence=lease.fence, devices=devices), key="k3")
    with pytest.raises(LeaseLost):
        client.release(lease.lease, ReleaseDevices(fence=lease.fence + 1, devices=devices), key="k4")
    assert client.end(job, EndJob(outcome=Outcome.FINISHED), key="k5").detail == "ended: finished"
    with pytest.raises(BrokerError, match="has ended"):
        client.report(job, JobReport(incarnation=1, sequence=99, state=JobState.WAITING))


def test_over_tcp_with_a_token(broker: LiveBroker) -> None:
    with BrokerClient(parse_address(broker.url), token=token_of(broker, "ada")) as client:
        life_of_a_job(client)


def test_over_a_socket_without_one(broker: LiveBroker) -> None:
    with BrokerClient(parse_address(f"unix:{broker.running.addresses.socket}")) as client:
        life_of_a_job(client)


def test_every_no_has_its_error(broker: LiveBroker) -> None:
    with BrokerClient(parse_address(broker.url)) as nobody, pytest.raises(NotAllowed):
        nobody.cluster()
    with BrokerClient(parse_address(broker.url), token=token_of(broker, "ada")) as ada:
        with pytest.raises(Refused, match="the cluster has 2"):
            ada.register(RegisterJob(name="wide", min_devices=3, max_devices=3), key="wide")
        with pytest.raises(BrokerError, match="no such thing") as absent:
            ada.job("job-99")
        assert absent.value.status == 404
    with BrokerClient(parse_address("http://127.0.0.1:9")) as away, pytest.raises(BrokerUnreachable):
        away.cluster()
