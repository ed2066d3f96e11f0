"""Argument over environment over file over default; nothing misspelt passes."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from selfsched.errors import InvalidSettings
from selfsched_broker import cli, settings
from selfsched_broker.core import policies
from selfsched_broker.settings import load

DOCS = Path(__file__).parents[3] / "docs" / "administration.md"


def test_argument_wins_over_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("slots = 2\nterm_seconds = 20\nport = 1\n")
    env = {"SELFSCHED_BROKER_SLOTS": "3", "SELFSCHED_BROKER_TERM_SECONDS": "40"}
    found = load(environment=env, config_file=file, slots=4)
    assert (found.slots, found.lease.term_seconds, found.port) == (4, 40.0, 1)
    assert found.fairness.term_seconds == 40.0
    assert found.policy == "selfsched"


@pytest.mark.parametrize("name", ["SELFSCHED_BROKER_SLOT", "SELFSCHED_BROKER_TERMSECONDS"])
def test_an_unknown_name_is_an_error_that_names_the_nearest(name: str) -> None:
    with pytest.raises(InvalidSettings, match=r"did you mean SELFSCHED_BROKER_(SLOTS|TERM_SECONDS)\?"):
        load(environment={name: "1"})


def test_the_default_policy_is_the_cores() -> None:
    assert settings.DEFAULT_POLICY == policies.DEFAULT_POLICY


def test_an_unknown_entry_of_the_file_is_an_error_too(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("slotz = 2\n")
    with pytest.raises(InvalidSettings, match="did you mean slots"):
        load(environment={}, config_file=file)


def test_the_jobs_sides_names_are_not_judged() -> None:
    assert load(environment={"SELFSCHED_BROKER": "http://x", "SELFSCHED_TOKEN": "y"}).slots is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"port": "65536"}, "--port"),
        ({"port": "x"}, "--port"),
        ({"slots": 0}, "--slots"),
        ({"term_seconds": "NaN"}, "--term = "),
        ({"term_seconds": float("inf")}, "--term = "),
        ({"term_seconds": -1}, "--term = "),
        ({"fairness_knob": 1.5}, "between 0 and 1"),
        ({"ttl_seconds": 5}, "less than ttl_seconds"),
        ({"tls_cert": "a.pem"}, "belong together"),
        ({"host": "0.0.0.0"}, "--i-terminate-tls-in-front"),
        ({"host": "::"}, "--i-terminate-tls-in-front"),
        ({"host": "127.evil.example"}, "--i-terminate-tls-in-front"),
        ({"state_dir": ""}, "--state-dir"),
        ({"agent": "maybe"}, "--no-agent"),
    ],
)
def test_what_cannot_be_is_refused_in_words(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        load(environment={}, **given)


def test_others_may_reach_it_behind_tls_only() -> None:
    assert load(environment={}, host="0.0.0.0", tls_in_front=True).host == "0.0.0.0"
    assert load(environment={}, host="0.0.0.0", tls_cert="c", tls_key="k").tls_cert == Path("c")


@pytest.mark.parametrize("text", ["no toml =", "\xff"])
def test_a_broken_or_missing_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidSettings, match=r"broker\.toml"):
        load(environment={}, config_file=file)
    with pytest.raises(InvalidSettings, match="there is no config file"):
        load(environment={}, config_file=tmp_path / "absent.toml")


def test_a_socket_alone_opens_no_port() -> None:
    assert not load(environment={}, socket="/run/x").listens_on_tcp
    assert load(environment={}, socket="/run/x", port=0).listens_on_tcp
    assert load(environment={}).listens_on_tcp


def test_the_restart_window_follows_ttl_and_grace() -> None:
    found = load(environment={}, ttl_seconds=20, grace_seconds=3).lease
    assert found.restart_window_seconds == 23


def test_every_option_of_serve_that_is_a_setting_is_one_of_the_command() -> None:
    command = next(found for found in cli.app.registered_commands if found.callback is cli.serve)
    assert command.callback is not None
    words = str(inspect.signature(command.callback))
    own = {"private", "config", "as_json"}
    named = {name.removeprefix("no_") for name in inspect.signature(command.callback).parameters} - own
    named = {"term_seconds" if name == "term" else name for name in named}
    assert named == set(settings.SERVE_OPTIONS)
    assert "--i-terminate-tls-in-front" in words
    assert set(settings.SERVE_OPTIONS) <= {setting.name for setting in settings.SETTINGS}


def test_the_documentation_has_the_table() -> None:
    assert settings.markdown_table() in DOCS.read_text()
