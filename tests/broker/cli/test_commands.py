"""The administrators' commands, on a running broker and on books at rest."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker.live_broker import LiveBroker, live_broker, register, until_leased

from selfsched.errors import Refused
from selfsched_broker import install
from selfsched_broker.cli import app, main
from selfsched_broker.settings import CONFIG_VARIABLE

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run a command in this process; what it printed, or its exit code and message as an error."""
    config = tmp_path / "empty.toml"
    config.write_text("")
    monkeypatch.setenv(CONFIG_VARIABLE, str(config))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr("sys.argv", ["selfsched-broker", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert (ended.value.code or 0) == code, printed.err
        return printed.out if code == 0 else printed.err

    return run


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Books at rest."""
    with live_broker(tmp_path / "state"):
        pass
    return tmp_path / "state"


def test_accounts_and_tokens_of_books_at_rest(run: Run, state: Path) -> None:
    here = ("--state-dir", str(state))
    assert "weight 2, at most 4 devices" in run(
        "users", "add", "ada", "--weight", "2", "--max-devices", "4", *here
    )
    assert "there is an account ada" in run("users", "add", "ada", *here, code=2)
    assert "no limit" in run("users", "set", "ada", "--no-limit", *here)
    assert "make it with" in run("users", "set", "nobody-such", *here, code=2)
    issued = json.loads(run("users", "token", "ada", "--json", *here))
    assert issued["token"].startswith(f"ss_{issued['token_id']}_")
    assert run("users", "token", "ada", *here).strip().startswith("ss_")
    assert issued["token"] not in run("users", "tokens", *here)
    run("users", "revoke", issued["token_id"], *here)
    revoked = {t["token_id"]: t["revoked"] for t in json.loads(run("users", "tokens", "--json", *here))}
    assert revoked[issued["token_id"]] is True
    assert "there is no such token" in run("users", "revoke", "0" * 12, *here, code=2)
    assert "ada" in [a["account"] for a in json.loads(run("users", "list", "--json", *here))]


def test_a_token_for_a_misspelt_account_makes_none(run: Run, state: Path) -> None:
    here = ("--state-dir", str(state))
    assert "users add adaa" in run("users", "token", "adaa", *here, code=2)
    assert "adaa" not in run("users", "list", "--json", *here)
    assert json.loads(run("users", "tokens", "--json", *here)) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("users", "add", "a b"), "an account's name"),
        (("users", "add", "ada", "--weight", "nan"), "--weight"),
        (("users", "add", "ada", "--weight", "-1"), "--weight"),
        (("users", "add", "ada", "--max-devices", "0"), "--max-devices"),
        (("users", "token", "ada", "--node", "<x>"), "--node"),
        (("devices", "drain", "no-such"), "no such device"),
        (("devices", "release", "no-such"), "no lease holds"),
        (("leases", "release", "no-such"), "no such lease"),
        (("auctions", "99"), "there is no auction 99"),
    ],
)
def test_mistakes_are_explained(run: Run, state: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in run(*arguments, "--state-dir", str(state), code=2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "--host", "0.0.0.0"), "--i-terminate-tls-in-front"),
        (("serve", "--slots", "0"), "--slots"),
        (("serve", "--term", "nan"), "--term = "),
        (("serve", "--wrong"), "--wrong"),
        (("serve", "--port", "0", "--tls-cert", "/no.pem", "--tls-key", "/no.key"), "/no.pem"),
        (("users", "list"), "there is no broker at"),
    ],
)
def test_wrong_use_is_explained(run: Run, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in run(*arguments, "--state-dir", str(tmp_path / "none"), code=2)


def test_a_port_in_use_is_named_and_nothing_is_left_behind(run: Run, tmp_path: Path) -> None:
    state = tmp_path / "fresh"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = run("serve", "--port", str(port), "--state-dir", str(state), code=2)
    assert f"cannot listen on 127.0.0.1 port {port}" in said
    assert "--port" in said
    assert not state.exists()


def test_a_second_broker_on_a_port_hears_of_the_first(
    run: Run, broker: LiveBroker, tmp_path: Path
) -> None:
    port = broker.url.rpartition(":")[2]
    said = run("serve", "--port", port, "--state-dir", str(tmp_path / "live"), code=2)
    assert f"the broker of this state directory (process {os.getpid()}) listens there" in said


def test_a_private_broker_has_no_port(run: Run) -> None:
    assert "listens on a Unix socket only" in run("serve", "--private", "--port", "1", code=2)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with live_broker(tmp_path / "live") as live:
        yield live


def test_a_running_broker_is_administered_through_its_own_socket(
    run: Run, broker: LiveBroker, tmp_path: Path
) -> None:
    here = ("--state-dir", str(tmp_path / "live"))
    ada = broker.as_account("ada")
    job = register(ada, "bert", max_devices=2)
    told, _ = until_leased(ada, job)
    lease = told.leases[0].lease
    assert "bert" in run("jobs", *here)
    assert [j["job"] for j in json.loads(run("jobs", "--json", *here))] == [job]
    assert lease in run("leases", *here)
    assert json.loads(run("leases", "--json", *here))[0]["account"] == "ada"
    assert "held" in run("devices", *here)
    assert "visit" in run("auctions", *here)
    assert json.loads(run("auctions", "1", "--json", *here))["awards"][0]["job"] == job
    assert "measure" in run("auctions", "1", *here)
    assert "Policy selfsched" in run("policy", *here)
    assert dict(json.loads(run("policy", "--json", *here))["settings"])["term_seconds"] == 300
    assert "drained" in run("devices", "drain", "here/cpu1", *here)
    assert "in use again" in run("devices", "undrain", "here/cpu1", *here)
    assert "quarantined" in run("devices", "release", "here/cpu0", *here)
    assert "force_release" in run("audit", *here)
    assert json.loads(run("audit", "--last", "1", "--json", *here))[0]["action"] == "force_release"
    target = tmp_path / "copy.sqlite"
    assert "copied" in run("backup", str(target), *here)
    assert target.stat().st_mode & 0o777 == 0o600
    assert "never overwrites" in run("backup", str(target), *here, code=1)


def test_the_beginning_of_a_devices_name_will_do(run: Run, state: Path) -> None:
    here = ("--state-dir", str(state))
    assert "may be here/cpu0, here/cpu1" in run("devices", "drain", "here/", *here, code=2)
    with live_broker(state, devices=12):
        assert "drained" in run("devices", "drain", "here/cpu1", *here)
        assert "drained" in run("devices", "drain", "here/cpu11", *here)
        several = run("devices", "drain", "here/cpu1…", *here, code=2)
        assert "may be here/cpu1, here/cpu10, here/cpu11" in several
        assert "drained" in run("devices", "drain", "here/cpu9…", *here)
        drained = [d["id"] for d in json.loads(run("devices", "--json", *here)) if d["state"] == "drained"]
    assert drained == ["here/cpu1", "here/cpu9", "here/cpu11"]


def test_at_80_columns_names_are_cut_in_tables_and_nowhere_else(
    run: Run, broker: LiveBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    here = ("--state-dir", str(tmp_path / "live"))
    name = "bert-large-uncased-finetune-squad-v2-run17"
    ada = broker.as_account("ada-augusta-king-countess-of-lovelace")
    job = register(ada, name, max_devices=2)
    until_leased(ada, job)
    for listing in (("jobs",), ("leases",), ("devices",), ("auctions", "1"), ("audit",)):
        lines = run(*listing, *here).splitlines()
        assert max(map(len, lines)) <= 80, listing
    shown = run("jobs", *here)
    assert name not in shown
    assert "bert-large-" in shown
    assert "…" in shown
    assert len([line for line in shown.splitlines() if job in line]) == 1, "a job is one line"
    assert json.loads(run("jobs", "--json", *here))[0]["name"] == name
    monkeypatch.delenv("COLUMNS")
    assert name in run("jobs", *here), "a program that reads it gets all of it"


def test_who_names_no_broker_is_told_which_one_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    state = tmp_path / "live"
    monkeypatch.setenv("SELFSCHED_BROKER_STATE_DIR", str(state))

    def told(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["selfsched-broker", *arguments])
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr().err

    with live_broker(state) as live:
        place = f"the broker at {live.url} (state directory {state}); --state-dir names another"
        assert told("devices") == f"{place}\n"
        assert told("devices", "--json") == ""
        assert told("devices", "--state-dir", str(state)) == ""
    assert f"the books (state directory {state}); no broker runs there" in told("users", "list")
    assert f"the books (state directory {state});" in told("migrate")


def test_migrate_has_nothing_to_do_on_new_books(run: Run, state: Path) -> None:
    done = json.loads(run("migrate", "--json", "--state-dir", str(state)))
    assert done["before"] == done["after"]


def test_install_says_all_that_it_would_do(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("install", "--dry-run", "--slots", "4")
    for part in ("useradd", "0700", str(install.SOCKET), "systemctl enable", "slots = 4", "serve --config"):
        assert part in shown
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "needs root" in run("install", code=2)


def test_the_unit_runs_what_the_command_line_knows() -> None:
    unit = next(
        s
        for s in install.plan(python="/usr/bin/python3")
        if isinstance(s, install.Write) and "Unit" in s.text
    )
    assert (
        "ExecStart=/usr/bin/python3 -m selfsched_broker serve --config /etc/selfsched/broker.toml"
        in unit.text
    )


def test_a_file_that_is_kept_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, new = tmp_path / "kept", tmp_path / "a" / "new"
    kept.write_text("mine")
    steps: tuple[Any, ...] = (
        install.Write(path=kept, text="theirs", replace=False),
        install.Write(path=new, text="x", mode=0o640),
    )
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(install, "SYSTEMD", tmp_path)
    install.carry_out(steps)
    assert kept.read_text() == "mine"
    assert new.stat().st_mode & 0o777 == 0o640
    monkeypatch.setattr(install, "SYSTEMD", tmp_path / "absent")
    with pytest.raises(Refused, match="systemd"):
        install.carry_out(steps)


def test_every_command_has_an_example_in_its_help() -> None:
    from typer.main import get_command

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for name, sub in getattr(command, "commands", {}).items():
            yield from walk(sub, (*path, name))
        if path:
            yield " ".join(path), f"{command.help}\n{command.epilog}"

    shown = dict(walk(get_command(app), ()))
    del shown["simulate"]  # the simulator's own, put in its place when it is called
    assert {name for name, text in shown.items() if "Example" not in text} == set()
    assert len(shown) >= 18


def test_the_simulators_command_is_there(run: Run) -> None:
    assert "--gpus" in run("simulate", "--help")
