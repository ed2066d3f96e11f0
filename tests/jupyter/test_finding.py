"""Which broker a Jupyter server takes, and what it makes of broken settings."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from selfsched_jupyter.finding import find


@pytest.fixture(autouse=True)
def nobodys_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SELFSCHED_"):
            monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("SELFSCHED_LAB_SOCKET", str(tmp_path / "lab.sock"))


def test_none_is_set_and_none_runs() -> None:
    found = find()
    assert (found.kind, found.address, found.wrong_settings) == ("none", None, "")


def test_a_broker_that_is_set_is_taken_with_its_token_and_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFSCHED_BROKER", "http://127.0.0.1:1")
    monkeypatch.setenv("SELFSCHED_TOKEN", "ss_secret")
    found = find()
    assert (found.kind, str(found.address), found.token) == ("set", "http://127.0.0.1:1", "ss_secret")
    assert "ss_secret" not in repr(found)
    assert found == find()


def test_a_token_is_not_sent_over_a_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SELFSCHED_BROKER", f"unix:{tmp_path}/b.sock")
    monkeypatch.setenv("SELFSCHED_TOKEN", "ss_secret")
    assert find().token is None


def test_under_jupyterhub_the_servers_own_token_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFSCHED_BROKER", "http://127.0.0.1:1")
    monkeypatch.setenv("SELFSCHED_JUPYTERHUB", "1")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "of-the-hub")
    assert find().token == "of-the-hub"


@pytest.mark.parametrize(
    ("name", "value"),
    [("SELFSCHED_BROKER", "nonsense"), ("SELFSCHED_CA_FILE", "/no/such/file"), ("SELFSCHED_TOKEN", "a b")],
)
def test_settings_that_are_wrong_are_told_in_words(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    found = find()
    assert (found.kind, found.address) == ("none", None)
    assert found.wrong_settings
    assert "a b" not in found.wrong_settings


def test_the_same_certificates_are_the_same_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authorities = ssl.get_default_verify_paths().cafile
    if authorities is None:
        pytest.skip("this system has no file of certificates")
    file = tmp_path / "ca.pem"
    file.write_bytes(Path(authorities).read_bytes())
    monkeypatch.setenv("SELFSCHED_BROKER", "https://broker.example")
    monkeypatch.setenv("SELFSCHED_CA_FILE", str(file))
    before = find()
    assert before == find()
    os.utime(file, (1.0, 1.0))
    assert before != find()


def test_something_at_the_labs_socket_that_is_no_broker_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "lab.sock").write_text("no socket")
    assert find().kind == "none"
