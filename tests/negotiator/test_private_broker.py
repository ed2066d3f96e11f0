"""Finding the lab's broker, starting and restarting one's own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from selfsched import private_broker
from selfsched.client import BrokerClient
from selfsched.errors import BrokerUnreachable, InvalidSettings, Refused
from selfsched.private_broker import JOIN_WORDS, BrokerAccess, PrivateBroker, answers, find_broker
from selfsched.settings import Settings, parse_address

STUB = Path(__file__).with_name("stub_broker.py")


@dataclass
class Home:
    """A user's directories, and the stub brokers that were started in them."""

    path: Path
    brokers: list[PrivateBroker] = field(default_factory=list)

    @property
    def starts_file(self) -> Path:
        return self.path / "starts"

    def private(self, *command: str) -> PrivateBroker:
        runtime = self.path / "run"
        stub = (sys.executable, str(STUB), str(runtime / private_broker.SOCKET_NAME), str(self.starts_file))
        broker = PrivateBroker(runtime, self.path / "state", command=command or stub)
        self.brokers.append(broker)
        return broker

    def pids(self) -> list[int]:
        if not self.starts_file.exists():
            return []
        return [int(line) for line in self.starts_file.read_text().split()]

    def kill(self) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for broker in self.brokers:
            if broker._process is not None:
                broker._process.wait(10)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.kill()


@pytest.mark.slow
def test_two_jobs_that_start_at_once_start_one_broker(home: Home) -> None:
    brokers = [home.private() for _ in range(4)]
    threads = [threading.Thread(target=broker.ensure) for broker in brokers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(home.pids()) == 1
    assert answers(brokers[0].address)
    home.private().ensure()
    assert len(home.pids()) == 1


@pytest.mark.slow
def test_a_private_broker_lives_in_a_session_of_its_own_and_holds_nothing_of_ours(home: Home) -> None:
    lock = os.open(home.path / "device.lock", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(lock, True)
    home.private().ensure()
    os.close(lock)
    (pid,) = home.pids()
    assert os.getsid(pid) == pid
    held = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    assert str(home.path / "device.lock") not in held
    assert (home.path / "run").stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_a_private_broker_that_was_killed_is_started_again_by_the_job_that_notices(home: Home) -> None:
    private = home.private()
    private.ensure()
    access = BrokerAccess(BrokerClient(private.address), start=private.ensure)
    home.kill()
    with pytest.raises(BrokerUnreachable):
        access.client().cluster()
    access.revive()
    assert access.client().cluster().policy == "stub"
    assert len(home.pids()) == 2
    access.close()


@pytest.mark.slow
def test_a_job_finds_its_broker_when_the_runtime_directory_has_gone(home: Home) -> None:
    private = home.private()
    access = BrokerAccess(BrokerClient(private.ensure()), start=private.ensure)
    assert access.client().cluster().policy == "stub"
    home.kill()
    shutil.rmtree(home.path / "run")
    (home.path / "run").touch()  # only root could make it again
    spare = home.path / "state" / private_broker.SOCKET_NAME
    private._command = (sys.executable, str(STUB), str(spare), str(home.starts_file))
    with pytest.raises(BrokerUnreachable):
        access.client().cluster()
    access.revive()
    assert access.client().address.socket == spare
    assert access.client().cluster().policy == "stub"
    access.close()


def test_a_socket_in_a_directory_of_somebody_else_is_not_asked(home: Home) -> None:
    elsewhere = home.path / "elsewhere"
    elsewhere.mkdir()
    (home.path / "state").symlink_to(elsewhere)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(elsewhere / private_broker.SOCKET_NAME))
        listener.listen()
        assert home.private().address.socket == home.path / "run" / private_broker.SOCKET_NAME


@pytest.mark.slow
def test_a_broker_that_does_not_come_up_is_reported_with_the_end_of_its_log(home: Home) -> None:
    private = home.private(sys.executable, "-c", "raise SystemExit('no room on the disk')")
    with pytest.raises(BrokerUnreachable, match=r"exit code 1(.|\n)*no room on the disk"):
        private.ensure()
    assert private.log_path.stat().st_mode & 0o077 == 0


def test_a_broker_that_cannot_be_revived_is_not_tried_without_a_pause() -> None:
    tries: list[int] = []

    def start() -> None:
        tries.append(1)
        raise BrokerUnreachable("no")

    access = BrokerAccess(BrokerClient(parse_address("http://broker.test:1")), start=start)
    for _ in range(5):
        access.revive()
    assert len(tries) == 1
    access.close()


def test_a_lab_broker_is_not_ours_to_start() -> None:
    access = BrokerAccess(BrokerClient(parse_address("http://broker.test:1")))
    access.revive()
    access.close()


def test_the_address_that_was_set_wins_and_nothing_is_started(tmp_path: Path) -> None:
    settings = Settings(broker=parse_address("http://127.0.0.1:9"), lab_socket=tmp_path / "lab.sock")
    access = find_broker(settings)
    assert str(access.client().address) == "http://127.0.0.1:9"
    assert access.introduction == ""
    access.close()


@pytest.mark.slow
def test_the_labs_socket_is_used_where_a_broker_answers_at_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = home.private()
    lab.ensure()
    assert lab.address.socket is not None
    access = find_broker(Settings(lab_socket=lab.address.socket))
    assert access.client().address == lab.address
    assert "lab" in access.introduction
    access.close()


@pytest.mark.slow
def test_a_dead_socket_of_a_lab_leads_to_a_private_broker_that_says_so(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = home.path / "lab.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(dead))
    private = home.private()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home.path / "xdg"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home.path / "xdg-state"))
    monkeypatch.setattr(private_broker, "PrivateBroker", lambda **_: private)
    access = find_broker(Settings(lab_socket=dead))
    assert access.introduction == JOIN_WORDS
    assert access.client().cluster().policy == "stub"
    access.close()


def test_directories_follow_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.setenv("XDG_STATE_HOME", "/home/u/state")
    assert private_broker.runtime_directory() == Path("/run/user/7/selfsched")
    assert private_broker.state_directory() == Path("/home/u/state/selfsched")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert str(os.getuid()) in private_broker.runtime_directory().name


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(Refused, match="not a directory of yours"):
        private_broker.private_directory(link)
    (tmp_path / "file").touch()
    with pytest.raises(Refused):
        private_broker.private_directory(tmp_path / "file" / "sub")
    open_one = tmp_path / "open"
    open_one.mkdir(mode=0o755)
    assert private_broker.private_directory(open_one).stat().st_mode & 0o777 == 0o700


def test_a_missing_broker_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_broker, "find_spec", lambda name: None if name == "fastapi" else object())
    with pytest.raises(Refused, match=r"needs fastapi: pip install 'selfsched\[broker\]'"):
        private_broker.serve_command()


def test_a_ca_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate")
    settings = Settings(broker=parse_address("https://box"), ca_file=tmp_path / "ca.pem")
    with pytest.raises(InvalidSettings, match="CA file"):
        find_broker(settings)


def test_what_answers_but_is_no_broker_does_not_count(tmp_path: Path) -> None:
    assert not answers(parse_address(f"unix:{tmp_path}/absent.sock"))
