"""Settings of the job's side: argument > `SELFSCHED_*` > config file > default, read once.

`SETTINGS` is the one table of them; `docs/settings.md` shows it and a test keeps the two
equal. `load` reads everything into a frozen `Settings` at the edge (the CLI, the start of a
supervisor), and nothing else reads the environment again.

A name that starts with `SELFSCHED_` and is not in the table is a typing mistake that would
otherwise be silent: an error in commands, one warning inside a training process. Names of
the broker's own (`SELFSCHED_BROKER_*`) and internal ones (`_SELFSCHED_*`) are not ours to judge.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from selfsched.errors import InvalidSettings

PREFIX = "SELFSCHED_"
BROKERS_OWN_PREFIX = "SELFSCHED_BROKER_"
LAB_SOCKET = Path("/run/selfsched/broker.sock")
HUB_TOKEN_VARIABLE = "JUPYTERHUB_API_TOKEN"
_LARGEST_TOKEN_BYTES = 4096
_HIDDEN = "***"
_SCHEME = re.compile(r"(https?|unix)://", re.IGNORECASE)
_AT = re.compile(r".*(@|%40|\uff20|\ufe6b)", re.DOTALL)
"""A name and password, up to the last sign that is an "at" or that a URL's reader takes for one."""
_BEHIND_PATH = re.compile(r"([?#]).*", re.DOTALL)


@dataclass(frozen=True)
class BrokerAddress:
    """Where a broker listens: TCP (`url`) or a Unix socket of this machine (`socket`)."""

    url: str
    """Base URL; for a socket a placeholder host, since HTTP wants one."""
    socket: Path | None = None

    def __str__(self) -> str:
        return self.url if self.socket is None else f"unix:{self.socket}"

    @property
    def uses_tokens(self) -> bool:
        """Over TCP identity is a token; over a socket it is the peer's Unix account."""
        return self.socket is None


@dataclass(frozen=True)
class Settings:
    """What was set, once and for all. Its repr never shows the token."""

    broker: BrokerAddress | None = None
    token: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    lab_socket: Path = LAB_SOCKET
    name: str | None = None
    off: bool = False
    detach: bool = False
    lock_dir: Path | None = None
    runs_dir: Path | None = None
    margin_seconds: float = 5.0


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    name: str
    """Its key in the config file, and as an argument of `load`."""
    parse: Callable[[str], Any]
    kind: str
    """What a value looks like, for people."""
    default: str
    meaning: str
    in_config_file: bool = True

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def parse_address(text: str) -> BrokerAddress:
    """The address of a broker.

    Args:
        text: `http://host:port`, `https://host[:port]` or `unix:/path/of/socket`.

    Raises:
        InvalidSettings: anything else; a path, query or password in the URL.
    """
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:").removeprefix("//"))
        if not path.is_absolute():
            raise InvalidSettings(f"broker {shown_address(text)!r}: the path of the socket must be absolute")
        return BrokerAddress(url="http://broker", socket=path)
    if _AT.search(text):
        raise InvalidSettings("the broker's address holds a name or password: use SELFSCHED_TOKEN_FILE")
    shown = shown_address(text)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidSettings(f"broker {shown!r} is no address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidSettings(
            f"broker {shown!r} is no address: write http://HOST:PORT, https://HOST or unix:/PATH"
        )
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InvalidSettings(f"broker {shown!r}: give the address alone, with nothing behind it")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return BrokerAddress(url=f"{parts.scheme}://{host}" + (f":{port}" if port is not None else ""))


def shown_address(text: str) -> str:
    """What was given as an address, without what in it may be a password or a token."""
    scheme = _SCHEME.match(text)
    start = scheme.end() if scheme else 0
    rest = _AT.sub(f"{_HIDDEN}@", text[start:])
    return text[:start] + _BEHIND_PATH.sub(rf"\g<1>{_HIDDEN}", rest)


def read_token_file(path: Path) -> str:
    """The token in a file that only its owner can read.

    Raises:
        InvalidSettings: missing, not a plain file of this user, readable by others, or empty.
    """
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.getuid(), 0):
                raise InvalidSettings(f"the token file {path} is not a plain file of yours")
            if stat.S_IMODE(found.st_mode) & 0o077:
                raise InvalidSettings(f"others can read the token file {path}: chmod 600 {path}")
            content = file.read(_LARGEST_TOKEN_BYTES + 1)
    except OSError as error:
        raise InvalidSettings(f"the token file {path} cannot be read: {error.strerror}") from error
    return _token(content.decode("ascii", errors="replace").strip())


def _token(text: str) -> str:
    if not text or len(text) > _LARGEST_TOKEN_BYTES or not all("!" <= letter <= "~" for letter in text):
        raise InvalidSettings("the token is empty or holds blanks or control characters: ask for a new one")
    return text


def _flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "": False}
    words |= {"0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise InvalidSettings("is not yes or no: write 1 or 0")
    return words[text.lower()]


def _path(text: str) -> Path:
    if not text:
        raise InvalidSettings("is empty: give a path")
    return Path(text).expanduser()


def _name(text: str) -> str:
    from pydantic import TypeAdapter, ValidationError

    from selfsched.protocol import Name

    try:
        return TypeAdapter(Name).validate_python(text)
    except ValidationError:
        raise InvalidSettings(
            "is no name for a job: letters, digits, '.', '_' and '-', at most 64, the first a letter or digit"
        ) from None


def _margin(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise InvalidSettings("is no number of seconds") from None
    if not 0 <= seconds <= 60:
        raise InvalidSettings("must lie between 0 and 60 seconds")
    return seconds


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "broker", parse_address, "`http://HOST:PORT`, `https://HOST`, `unix:/PATH`",
        "the lab's socket if it is there, else a private one",
        "The broker that is asked for devices.",
    ),
    Setting(
        "token_file", _path, "path, mode 0600", "",
        "File with the token that says who you are to a broker over TCP.",
    ),
    Setting(
        "token", _token, "text", "", "The token itself; a file is safer. Not in the config file.",
        in_config_file=False,
    ),
    Setting(
        "jupyterhub", _flag, "`1` or `0`", "`0`",
        "Under JupyterHub: without a token of the broker's, the one that your server has of the Hub "
        "(`JUPYTERHUB_API_TOKEN`) says who you are.",
    ),
    Setting(
        "ca_file", _path, "path", "the system's", "Certificates that a broker over https is checked against.",
    ),
    Setting("lab_socket", _path, "path", str(LAB_SOCKET), "Where a lab's broker listens on this machine."),
    Setting(
        "name", _name, "letters, digits, `.`, `_`, `-`", "a new job each time",
        "Name of the job: started again under the same name it is the same job.",
    ),
    Setting("off", _flag, "`1` or `0`", "`0`", "Train in your own process, as if selfsched were not there."),
    Setting(
        "detach", _flag, "`1` or `0`", "`0`",
        "Runs go on when the kernel, script or terminal that started them is gone.",
    ),
    Setting(
        "lock_dir", _path, "path", "`/run/lock/selfsched`", "Directory of the device locks of this machine.",
    ),
    Setting(
        "runs_dir", _path, "path", "`$XDG_STATE_HOME/selfsched/runs`, else `~/.local/state/selfsched/runs`",
        "Where runs keep checkpoints, logs and history.",
    ),
    Setting(
        "margin_seconds", _margin, "0 to 60", "`5`",
        "How long before the end of a lease's ttl the job counts it as over.",
    ),
)  # fmt: skip
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def config_path(environment: Mapping[str, str] | None = None) -> Path:
    """The user's config file (it need not exist)."""
    env = os.environ if environment is None else environment
    base = env.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "selfsched" / "config.toml"


def absolute_paths(environment: Mapping[str, str]) -> dict[str, str]:
    """The relative paths among our variables, made absolute: for a process that starts elsewhere."""
    names = [setting.variable for setting in SETTINGS if setting.parse is _path]
    given = {name: Path(environment[name]).expanduser() for name in names if environment.get(name)}
    return {name: str(path.absolute()) for name, path in given.items() if not path.is_absolute()}


def load(
    *,
    environment: Mapping[str, str] | None = None,
    config_file: Path | None = None,
    unknown: Literal["error", "warn", "ignore"] = "error",
    **arguments: Any,
) -> Settings:
    """Read all settings once.

    Args:
        environment: stands in for `os.environ`.
        config_file: stands in for the user's own.
        unknown: what an unknown `SELFSCHED_*` name or config entry is: commands take it as an
            error, a training process warns once.
        **arguments: values that win over everything, by the table's names; None is not given.

    Raises:
        InvalidSettings: a value that does not parse, an unreadable file, an unknown name.
    """
    env = os.environ if environment is None else environment
    file = _config(config_file or config_path(env))
    _judge(unknown_names(env, file), unknown)
    found: dict[str, Any] = {}
    for setting in SETTINGS:
        source, text = _first(setting, arguments, env, file)
        if text is not None:
            found[setting.name] = _parsed(setting, source, text)
    token_file = found.pop("token_file", None)
    if token_file is not None and "token" not in found:
        found["token"] = read_token_file(token_file)
    if found.pop("jupyterhub", False) and "token" not in found and env.get(HUB_TOKEN_VARIABLE):
        found["token"] = _token(env[HUB_TOKEN_VARIABLE])
    return Settings(**found)


def unknown_names(environment: Mapping[str, str], config: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """A sentence for each name that means nothing, with the nearest that does."""
    variables = {setting.variable for setting in SETTINGS}
    keys = {setting.name for setting in SETTINGS if setting.in_config_file}
    wrong = [
        (f"{name} is set", name, variables)
        for name in sorted(environment)
        if name.startswith(PREFIX) and name not in variables and not name.startswith(BROKERS_OWN_PREFIX)
    ]
    wrong += [(f"{key!r} stands in the config file", key, keys) for key in config or {} if key not in keys]
    return tuple(_sentence(what, name, sorted(known)) for what, name, known in wrong)


def _sentence(what: str, name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    hint = f": did you mean {nearest[0]}?" if nearest else "."
    return f"{what}, but selfsched knows no such setting{hint}"


def _judge(sentences: tuple[str, ...], unknown: Literal["error", "warn", "ignore"]) -> None:
    if not sentences or unknown == "ignore":
        return
    if unknown == "error":
        raise InvalidSettings(" ".join(sentences))
    warnings.warn(" ".join(sentences), stacklevel=3)


def _config(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidSettings(f"the config file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"the config file {path} is no TOML: {error}") from error


def _first(
    setting: Setting, arguments: Mapping[str, Any], env: Mapping[str, str], file: Mapping[str, Any]
) -> tuple[str, str | None]:
    """(where it stands, its text) from the first source that has it."""
    if arguments.get(setting.name) is not None:
        return setting.name, _text(arguments[setting.name])
    if setting.variable in env:
        return setting.variable, env[setting.variable]
    if setting.in_config_file and setting.name in file:
        return f"{setting.name} in the config file", _text(file[setting.name])
    return setting.name, None


def _text(value: Any) -> str:
    return ("1" if value else "0") if isinstance(value, bool) else str(value)


def _parsed(setting: Setting, source: str, text: str) -> Any:
    try:
        return setting.parse(text)
    except InvalidSettings as error:
        given = shown_address(text) if setting.parse is parse_address else text
        shown = "" if setting.name == "token" else f" = {given[:80]!r}"
        raise InvalidSettings(f"{source}{shown}: {error}") from None


def markdown_table() -> str:
    """The table of `docs/settings.md`."""
    rows = ["| variable | config file | value | default | meaning |", "|---|---|---|---|---|"]
    for setting in SETTINGS:
        key = f"`{setting.name}`" if setting.in_config_file else "-"
        cells = (f"`{setting.variable}`", key, setting.kind, setting.default or "-", setting.meaning)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"
