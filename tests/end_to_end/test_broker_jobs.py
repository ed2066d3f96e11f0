"""Jobs through real broker processes: sharing, and every way in which a broker can be away."""

from __future__ import annotations

import http.server
import os
import signal
import threading
from collections.abc import Iterator

import pytest
from end_to_end.broker_lab import LabHouse, fresh_house, overlap, until

from selfsched.elastic.segment import boottime
from selfsched.protocol import DeviceState, Outcome

pytestmark = pytest.mark.slow
SHORT_TTL = {"ttl_seconds": "6", "grace_seconds": "1", "report_seconds": "1", "restart_window_seconds": "0.5"}


@pytest.fixture
def house() -> Iterator[LabHouse]:
    yield from fresh_house()


@pytest.fixture
def hasty_house() -> Iterator[LabHouse]:
    """Leases that end within seconds."""
    yield from fresh_house(**SHORT_TTL)


def test_two_jobs_of_one_user_share_through_a_private_broker_that_the_first_started(house: LabHouse) -> None:
    # Long enough that a second device pays for its restart also on a machine that is busy.
    first = house.run("first", steps=50_000)
    until(lambda: first.devices() == 2, "the first runs on both slots")
    broker = house.private_pid()
    assert broker is not None
    assert os.getsid(broker) == broker
    second = house.run("second", steps=150)
    until(lambda: second.steps(), "the second makes steps")
    until(lambda: first.devices() == 1, "the first has shrunk")
    assert second.finish() == 0
    until(lambda: first.devices() == 2, "the first has grown back")
    first.terminate()
    assert house.private_pid() == broker, "both used one broker"
    assert overlap(first, second) == []
    assert "private broker of yours" in first.output
    counts = [len(span["devices"]) for span in first.history()["segments"]]
    assert counts[-1] == 2
    assert 1 in counts
    assert all(span["why"] for span in first.history()["segments"])
    steps = sorted(step.step for step in first.steps() if step.rank == 0)
    assert steps == list(range(1, len(steps) + 1)), (first.events("segment_ended"), first.events("left"))


def test_t19_a_job_that_runs_out_of_memory_on_fewer_devices_waits_for_more_and_loses_no_step(
    house: LabHouse,
) -> None:
    first = house.run("first", steps=800, environment={"SMALLEST_WORLD": "2"})
    until(lambda: first.devices() == 2, "the first runs on both slots")
    second = house.run("second", steps=150, devices="1")
    assert second.finish() == 0
    assert first.finish() == 0, first.output
    counts = [len(span["devices"]) for span in first.history()["segments"]]
    assert (counts[0], counts.count(1), counts[-1]) == (2, 1, 2), "tried once, not again and again"
    assert "out of memory: OutOfMemoryError" in first.output
    assert "did fit on more devices" in first.output
    steps = sorted(step.step for step in first.steps() if step.rank == 0)
    assert steps == list(range(1, 801))
    assert overlap(first, second) == []


def test_a_private_broker_that_is_killed_is_started_again_and_stops_nothing(house: LabHouse) -> None:
    job = house.run("job", steps=50_000, devices="1")
    until(lambda: len(job.steps()) > 20, "some steps")
    broker = until(house.private_pid, "a broker")
    house.kill(broker)
    again = until(house.private_pid, "another broker")
    assert again != broker
    made = len(job.steps())
    until(lambda: house.shown(house.private_socket)["job"].step > made, "the new broker hears of the job")
    job.terminate()
    assert len(job.events("segment_began")) == 1, "the training did not stop"


def test_a_labs_broker_that_is_away_for_less_than_the_ttl_stops_nothing(house: LabHouse) -> None:
    lab = house.start_lab()
    job = house.run("job", steps=50_000, devices="1")
    until(lambda: len(job.steps()) > 20, "some steps")
    house.kill(lab)
    made = len(job.steps())
    until(lambda: len(job.steps()) > made + 20, "steps while the broker is away")
    house.start_lab()
    made = len(job.steps())
    until(lambda: house.shown(house.lab_socket)["job"].step > made, "the broker hears of the job again")
    job.terminate()
    assert len(job.events("segment_began")) == 1
    assert house.private_pid() is None, "no private broker beside the lab's"


def test_a_labs_broker_that_stays_away_makes_the_job_leave_by_its_deadline_and_come_back(
    hasty_house: LabHouse,
) -> None:
    lab = hasty_house.start_lab()
    job = hasty_house.run("job", steps=50_000, devices="1")
    until(lambda: len(job.steps()) > 20, "some steps")
    hasty_house.kill(lab)
    until(lambda: job.events("segment_ended"), "the job leaves")
    made = len(job.steps())
    ended = job.events("segment_ended")[0]
    assert ended["reason"] == "yielded"
    assert ended["step"] == made, "with a checkpoint of every step"
    hasty_house.start_lab()
    until(lambda: len(job.steps()) > made, "the job goes on")
    job.terminate()
    steps = sorted(step.step for step in job.steps())
    assert steps == list(range(1, len(steps) + 1)), "no step lost or made twice"
    assert len(job.events("segment_began")) == 2
    assert "lease has run out" in job.output


def test_a_supervisor_that_is_stopped_beyond_its_ttl_uses_no_device_past_its_lease(
    hasty_house: LabHouse,
) -> None:
    hasty_house.start_lab()
    job = hasty_house.run("job", steps=50_000, devices="1")
    until(lambda: len(job.steps()) > 20, "some steps")
    supervisor = job.supervisor_pid
    os.kill(supervisor, signal.SIGSTOP)
    (device,) = until(
        lambda: hasty_house.devices_in(hasty_house.lab_socket, DeviceState.QUARANTINED), "the lease is over"
    )
    over_at = boottime()
    made = len(job.steps())
    assert max(step.ended_at for step in job.steps()) < over_at, "the ranks left by themselves"
    other = hasty_house.run("other", steps=50, devices="1-2")
    assert other.finish() == 0
    assert {name for event in other.events("segment_began") for name in event["devices"]}.isdisjoint({device})
    assert len(job.steps()) == made
    os.kill(supervisor, signal.SIGCONT)
    until(lambda: len(job.steps()) > made, "the job goes on")
    job.terminate()
    assert len(job.events("segment_began")) == 2


def test_a_killed_supervisor_leaves_no_device_leased_past_its_time(hasty_house: LabHouse) -> None:
    hasty_house.start_lab()
    job = hasty_house.run("job", steps=50_000, devices="2")
    until(lambda: len(job.steps()) > 20, "some steps")
    hasty_house.kill(job.supervisor_pid)
    other = hasty_house.run("other", steps=50, devices="2")
    assert other.finish() == 0
    assert overlap(job, other) == []


class Page(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html>It works!</html>")

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


def test_an_address_that_is_no_broker_is_refused_with_its_words(house: LabHouse) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        job = house.run("job", steps=10, options=("--broker", address))
        assert job.finish() == 2
        server.shutdown()
    assert "is no selfsched broker" in job.output
    assert "Traceback" not in job.output
    assert job.steps() == []


def test_private_brokers_of_two_users_never_lease_one_device(house: LabHouse) -> None:
    neighbours = fresh_house()
    neighbour = next(neighbours)
    try:
        neighbour.locks = house.locks  # one machine has one directory of device locks
        first = house.run("first", steps=50_000, devices="2")
        until(lambda: len(first.steps()) > 20, "the first runs on both slots")
        second = neighbour.run("second", steps=30, devices="1")
        until(lambda: neighbour.private_pid() and neighbour.shown(neighbour.private_socket), "it is known")
        made = len(first.steps())
        until(lambda: len(first.steps()) > made + 100, "the first goes on")
        assert second.steps() == []
        first.terminate()
        assert second.finish() == 0
        assert overlap(first, second) == []
    finally:
        next(neighbours, None)


def test_a_job_larger_than_the_machine_is_refused(house: LabHouse) -> None:
    house.start_lab()
    job = house.run("job", steps=10, devices="3-4")
    assert job.finish() == 2
    assert "3 devices" in job.output
    assert job.steps() == []


def test_three_jobs_on_two_slots_all_finish_and_nothing_stays_leased(house: LabHouse) -> None:
    house.start_lab()
    jobs = [house.run(name, steps=60, devices="1") for name in ("one", "two", "three")]
    assert [job.finish() for job in jobs] == [0, 0, 0]
    until(lambda: len(house.devices_in(house.lab_socket, DeviceState.FREE)) == 2, "both slots are free")
    assert {view.outcome for view in house.shown(house.lab_socket).values()} == {Outcome.FINISHED}
