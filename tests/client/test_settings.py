"""Settings: which source wins, what is refused, what is never shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from selfsched import settings
from selfsched.errors import InvalidSettings


def load(tmp_path: Path, env: dict[str, str] | None = None, config: str = "", **arguments: object):
    file = tmp_path / "config.toml"
    file.write_text(config)
    return settings.load(environment=env or {}, config_file=file, **arguments)


def test_argument_wins_over_environment_over_config_file_over_default(tmp_path: Path) -> None:
    config = 'broker = "http://file:1"\nname = "from-file"\n'
    env = {"SELFSCHED_BROKER": "http://env:2", "SELFSCHED_NAME": "from-env"}
    found = load(tmp_path, env, config, name="from-argument")
    assert found.name == "from-argument"
    assert str(found.broker) == "http://env:2"
    assert load(tmp_path, {}, config).name == "from-file"
    assert load(tmp_path).name is None


def test_no_config_file_is_no_error(tmp_path: Path) -> None:
    assert settings.load(environment={}, config_file=tmp_path / "absent.toml") == settings.Settings()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://box.example.org/", "https://box.example.org"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("unix:/run/x.sock", "unix:/run/x.sock"),
        ("unix:///run/x.sock", "unix:/run/x.sock"),
    ],
)
def test_an_address_is_understood(text: str, shown: str) -> None:
    assert str(settings.parse_address(text)) == shown


@pytest.mark.parametrize(
    "text",
    ["", "localhost:8000", "ftp://x", "http://", "http://x:99999", "http://u:p@x", "http://x/y", "http://x?a=1",
     "unix:relative.sock", "http://[::1"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettings):
        settings.parse_address(text)


def test_a_password_in_the_address_is_refused_without_repeating_it() -> None:
    with pytest.raises(InvalidSettings) as caught:
        settings.parse_address("http://me:hunter2@box")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "http://user:hunter2@host:1",
        "http://hunter2@host",
        "http://user:hunter2@host:port",
        "http://user:hunter2@[::1",
        "http://user:12/hunter2@host",
        "http://user:hunter2?x@host",
        "http://user:p@hunter2@host",
        "http://user:hunter2%40host:1",
        "http://user:hunter2\uff20host",
        "ftp://user:hunter2@host",
        "user:hunter2@host:1",
        "http://host:1/?token=hunter2",
        "http://host:1/x#hunter2",
        "http://host:port?token=hunter2",
        "unix://user:hunter2@host/x",
        "unix:x?hunter2",
    ],
)
@pytest.mark.parametrize("source", ["environment", "config", "argument"])
def test_no_password_in_an_address_is_in_any_message(tmp_path: Path, text: str, source: str) -> None:
    env = {"SELFSCHED_BROKER": text} if source == "environment" else {}
    config = f'broker = "{text}"\n' if source == "config" else ""
    arguments = {"broker": text} if source == "argument" else {}
    with pytest.raises(InvalidSettings) as caught:
        load(tmp_path, env, config, **arguments)
    assert "hunter2" not in str(caught.value)
    assert "broker" in str(caught.value).lower()


def test_a_mistyped_address_is_shown_where_nothing_in_it_is_secret() -> None:
    assert settings.shown_address("htp:/box:80") == "htp:/box:80"
    assert settings.shown_address("http://u:p@box:80/x?y=1") == "http://***@box:80/x?***"
    assert str(settings.parse_address("unix:/run/a@b.sock")) == "unix:/run/a@b.sock"


def test_an_unknown_variable_is_an_error_that_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"SELFSCHED_BROKR is set.*did you mean SELFSCHED_BROKER"):
        load(tmp_path, {"SELFSCHED_BROKR": "http://x"})
    with pytest.raises(InvalidSettings, match=r"'tokn_file' stands in the config file.*token_file"):
        load(tmp_path, {}, 'tokn_file = "x"')


def test_an_unknown_variable_is_one_warning_in_a_training_process(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"SELFSCHED_BROKR") as caught:
        load(tmp_path, {"SELFSCHED_BROKR": "x", "SELFSCHED_NOISE": "x"}, unknown="warn")
    assert len(caught) == 1


def test_names_of_the_broker_and_internal_ones_are_not_judged(tmp_path: Path) -> None:
    env = {"SELFSCHED_BROKER_DATABASE": "x", "_SELFSCHED_SEGMENT": "y", "PATH": "/bin"}
    assert load(tmp_path, env) == settings.Settings()


def test_a_wrong_value_is_refused_with_where_it_stands(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="SELFSCHED_OFF = 'perhaps'"):
        load(tmp_path, {"SELFSCHED_OFF": "perhaps"})
    with pytest.raises(InvalidSettings, match="margin_seconds in the config file"):
        load(tmp_path, {}, 'margin_seconds = "nan"')
    with pytest.raises(InvalidSettings, match="no number of seconds"):
        load(tmp_path, {"SELFSCHED_MARGIN_SECONDS": "five"})
    with pytest.raises(InvalidSettings, match=r"SELFSCHED_LOCK_DIR.*is empty"):
        load(tmp_path, {"SELFSCHED_LOCK_DIR": ""})
    with pytest.raises(InvalidSettings, match="no name for a job"):
        load(tmp_path, {"SELFSCHED_NAME": "<b>"})
    with pytest.raises(InvalidSettings, match="is no TOML"):
        load(tmp_path, {}, "broker = ")


def test_config_values_may_be_of_their_own_type(tmp_path: Path) -> None:
    found = load(tmp_path, {}, "off = true\nmargin_seconds = 2.5\n")
    assert found.off
    assert found.margin_seconds == 2.5


def test_the_token_comes_from_a_private_file_and_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("ss_1_secret\n")
    file.chmod(0o600)
    found = load(tmp_path, {"SELFSCHED_TOKEN_FILE": str(file)})
    assert found.token == "ss_1_secret"
    assert "secret" not in repr(found)


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("ss_1_secret")
    file.chmod(0o640)
    with pytest.raises(InvalidSettings, match="chmod 600"):
        load(tmp_path, {"SELFSCHED_TOKEN_FILE": str(file)})


@pytest.mark.parametrize("content", ["", "two words", "new\nline", "bell\a"])
def test_a_nonsense_token_is_refused_without_repeating_it(tmp_path: Path, content: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load(tmp_path, {"SELFSCHED_TOKEN": content})
    assert not content or content not in str(caught.value)


def test_a_missing_token_file_or_a_directory_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path, Path("/dev/null")):
        with pytest.raises(InvalidSettings, match="token file"):
            load(tmp_path, {"SELFSCHED_TOKEN_FILE": str(path)})


def test_a_config_file_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="cannot be read"):
        settings.load(environment={}, config_file=tmp_path)


def test_the_token_may_not_stand_in_the_config_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="'token' stands in the config file"):
        load(tmp_path, {}, 'token = "x"')


def test_the_table_in_the_documentation_is_the_table_in_the_code() -> None:
    page = Path(__file__).parents[2] / "docs" / "settings.md"
    assert settings.markdown_table() in page.read_text()


def test_the_config_file_follows_xdg() -> None:
    assert settings.config_path({"XDG_CONFIG_HOME": "/c"}) == Path("/c/selfsched/config.toml")
    home = settings.config_path({})
    assert home == Path(os.path.expanduser("~/.config/selfsched/config.toml"))


def test_relative_paths_mean_the_same_for_a_process_that_starts_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"SELFSCHED_TOKEN_FILE": "me.tok", "SELFSCHED_RUNS_DIR": "/runs", "SELFSCHED_NAME": "a"}
    assert settings.absolute_paths(given) == {"SELFSCHED_TOKEN_FILE": str(tmp_path / "me.tok")}


def test_under_jupyterhub_the_servers_own_token_says_who_we_are_where_that_is_wanted(tmp_path: Path) -> None:
    env = {"JUPYTERHUB_API_TOKEN": "of-the-hub"}
    assert load(tmp_path, env).token is None
    assert load(tmp_path, {**env, "SELFSCHED_JUPYTERHUB": "1"}).token == "of-the-hub"
    assert load(tmp_path, env, "jupyterhub = true\n").token == "of-the-hub"
    assert load(tmp_path, {**env, "SELFSCHED_JUPYTERHUB": "0"}).token is None
    ours = {**env, "SELFSCHED_JUPYTERHUB": "1", "SELFSCHED_TOKEN": "of-the-broker"}
    assert load(tmp_path, ours).token == "of-the-broker"
    assert load(tmp_path, {"SELFSCHED_JUPYTERHUB": "1"}).token is None
