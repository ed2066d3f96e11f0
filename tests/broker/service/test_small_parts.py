"""Clock, the broker's own node, sockets."""

from __future__ import annotations

import shutil
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from broker.live_broker import StandInAgent

from selfsched.errors import InvalidSettings, Refused
from selfsched.launch.local_devices import node_name as node_name_of_jobs
from selfsched.private_broker import PrivateBroker
from selfsched.protocol import (
    NodeInstructions,
    NodeReport,
)
from selfsched_broker.clock import BrokerClock
from selfsched_broker.failpoint import Failpoint
from selfsched_broker.listening import (
    Addresses,
    Listening,
    bind_unix,
    listen,
    read_ready_file,
    short_socket_path,
    write_ready_file,
)
from selfsched_broker.own_node import OwnNode
from selfsched_broker.private import private_arguments, spare_socket
from selfsched_broker.service import LEFT
from selfsched_broker.settings import BrokerSettings
from selfsched_broker.this_machine import node_name

# --- clock --------------------------------------------------------------------------


def test_broker_time_goes_on_where_the_last_run_stopped() -> None:
    seconds = 1000.0
    clock = BrokerClock(50.0, monotonic=lambda: seconds)
    assert clock.now() == 50.0
    seconds = 1010.0
    assert clock.now() == 60.0


# --- the own node --------------------------------------------------------------------


def test_a_device_that_was_left_is_looked_at_at_once() -> None:
    reports: list[NodeReport] = []
    enough = threading.Event()

    def send(report: NodeReport) -> NodeInstructions:
        reports.append(report)
        if len(reports) >= 4:
            enough.set()
        return NodeInstructions(next_report_seconds=3600.0)

    node = OwnNode(StandInAgent(), send)
    node.start()
    assert reports
    node.tell(frozenset({"something else"}))
    node.tell(frozenset({LEFT}))
    assert enough.wait(10)
    node.stop()


def test_a_machine_that_cannot_be_read_for_once_is_read_again() -> None:
    sent = threading.Event()
    failures = iter([True])

    class Failing(StandInAgent):
        def report(self) -> NodeReport:
            if next(failures, False):
                raise OSError("no NVML today")
            return super().report()

    def send(report: NodeReport) -> NodeInstructions:
        sent.set()
        return NodeInstructions(next_report_seconds=1.0)

    node = OwnNode(Failing(), send)
    node.start()
    node.tell(frozenset({LEFT}))
    assert sent.wait(10)
    node.stop()


def test_job_and_broker_call_this_machine_by_one_name() -> None:
    assert node_name() == node_name_of_jobs()


# --- places ---------------------------------------------------------------------------


def test_a_socket_that_nobody_listens_at_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    bound = bind_unix(path, mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(Refused, match="somebody listens"):
        bind_unix(path, mode=0o600)
    bound.close()


def test_a_path_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(Refused, match="is no socket"):
        bind_unix(file, mode=0o600)
    assert file.read_text() == "mine"
    with pytest.raises(Refused, match="longer than"):
        bind_unix(tmp_path / ("x" * 200), mode=0o600)
    assert len(str(short_socket_path(tmp_path / ("x" * 200) / "s"))) < 107


def test_a_ready_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "broker.json"
    assert read_ready_file(path) is None
    addresses = Addresses(pid=1, address="http://127.0.0.1:1", admin_socket="/x")
    write_ready_file(path, addresses)
    assert read_ready_file(path) == addresses
    assert [p.name for p in tmp_path.iterdir()] == ["broker.json"]
    path.write_text('{"pid": 1')
    assert read_ready_file(path) is None


@pytest.fixture
def private_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BrokerSettings:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    return BrokerSettings(**private_arguments(), spare_socket=spare_socket())


def test_a_private_broker_lives_where_jobs_look_for_it(
    tmp_path: Path, private_settings: BrokerSettings
) -> None:
    assert private_settings.socket == tmp_path / "r" / "selfsched" / "broker.sock"
    assert private_settings.spare_socket == tmp_path / "s" / "selfsched" / "broker.sock"
    assert private_settings.state_dir.stat().st_mode & 0o777 == 0o700


def _close(listening: Listening, *others: socket.socket) -> None:
    listening.close()
    for bound in (*listening.unix, *others):
        bound.close()


def test_a_socket_whose_file_was_removed_is_listened_at_again(
    tmp_path: Path, private_settings: BrokerSettings
) -> None:
    listening = listen(private_settings, None)
    assert listening.reopen() == []
    shutil.rmtree(tmp_path / "r")
    assert listening.is_reachable()  # at its second place
    (again,) = listening.reopen()
    assert (tmp_path / "r" / "selfsched").stat().st_mode & 0o777 == 0o700
    assert PrivateBroker().address.socket == private_settings.socket
    assert listening.reopen() == []
    _close(listening, again)
    assert not list(tmp_path.rglob("*.sock"))


def test_without_a_runtime_directory_a_private_broker_is_reached_in_the_state_directory(
    tmp_path: Path, private_settings: BrokerSettings
) -> None:
    (tmp_path / "r").touch()  # nobody can make a directory there
    listening = listen(private_settings, None)
    assert listening.addresses.socket == str(private_settings.spare_socket)
    assert PrivateBroker().address.socket == private_settings.spare_socket
    assert listening.reopen() == []
    (tmp_path / "r").unlink()  # the user has logged in again
    (again,) = listening.reopen()
    assert PrivateBroker().address.socket == private_settings.socket
    _close(listening, again)


def test_a_socket_that_is_somebody_elses_by_now_is_left_to_them(private_settings: BrokerSettings) -> None:
    listening = listen(private_settings, None)
    assert private_settings.socket is not None
    private_settings.socket.unlink()
    other = bind_unix(private_settings.socket, mode=0o600)
    assert listening.reopen() == []
    _close(listening, other)
    assert private_settings.socket.exists()


def test_directories_that_a_person_named_are_not_made_private(
    tmp_path: Path, private_settings: BrokerSettings
) -> None:
    named = tmp_path / "named"
    named.mkdir(mode=0o755)
    listening = listen(replace(private_settings, socket=named / "s"), None)
    assert named.stat().st_mode & 0o777 == 0o755
    _close(listening)


@pytest.mark.parametrize("text", ["", "before_commit", "after_commit:Lease"])
def test_a_failpoint_is_read(text: str) -> None:
    assert Failpoint.parse(text).place == text.partition(":")[0]


def test_an_unknown_failpoint_is_refused() -> None:
    with pytest.raises(InvalidSettings):
        Failpoint.parse("sometimes")
