"""Settings of the broker: argument > `SELFSCHED_BROKER_*` > config file (TOML) > default.

`SETTINGS` is the one table; `load` reads everything once into a frozen `BrokerSettings`. A name
that starts with `SELFSCHED_BROKER_` and is not in the table is an error: a misspelt setting
would otherwise be silent.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from selfsched.errors import InvalidSettings
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.core.market import FairnessOptions
from selfsched_broker.failpoint import VARIABLE as FAILPOINT_VARIABLE
from selfsched_broker.failpoint import Failpoint
from selfsched_broker.hub_settings import HubSettings, hub_settings

PREFIX = "SELFSCHED_BROKER_"
DEFAULT_PORT = 8470
DEFAULT_POLICY = "selfsched"
"""That of `core.policies`, whose imports are too heavy for a command that only asks."""
DEFAULT_STATE_DIR = Path("/var/lib/selfsched")
SYSTEM_CONFIG = Path("/etc/selfsched/broker.toml")
_MOST_SECONDS = 31_536_000.0
SERVE_OPTIONS = {
    "state_dir": "--state-dir",
    "host": "--host",
    "port": "--port",
    "socket": "--socket",
    "tls_cert": "--tls-cert",
    "tls_key": "--tls-key",
    "tls_in_front": "--i-terminate-tls-in-front",
    "slots": "--slots",
    "agent": "--no-agent",
    "policy": "--policy",
    "ready_file": "--ready-file",
    "term_seconds": "--term",
}
"""Options of `serve` that are settings; all others are set in the environment or the config file."""
_LEASE_MEANINGS = {
    "report_seconds": "How often a job reports.",
    "ttl_seconds": "A job that does not report for so long stops by itself.",
    "grace_seconds": "So long after that its devices are taken back.",
    "restart_window_seconds": "No auction for so long after a restart (ttl + grace).",
    "term_seconds": "How long an award lasts; all terms end together.",
    "min_auction_seconds": "Between two auctions that may take devices from holders, ticks apart.",
    "max_notice_seconds": "The longest that a job is given to leave.",
    "idle_warned_seconds": "A job without a step for so long is warned.",
    "idle_lost_seconds": "A job without a step for so long loses its devices.",
    "max_stated_seconds": "The longest that a program which cannot resume may keep its devices.",
    "silent_job_seconds": "A job without devices that is silent for so long is lost.",
    "node_silent_seconds": "The devices of a node that is silent for so long are unknown.",
}
_FAIRNESS_MEANINGS = {
    "fairness_knob": "f of Themis: the (1 - f) worst off are considered, at least ten.",
    "move_gain": "A move must gain so many times its cost.",
    "repay_factor": "A job is not moved again before so many restarts' worth of steps"
    " (under `selfsched` a resizable one: at most 2) ...",
    "repay_min_seconds": "... and at least so long.",
    "unknown_end_seconds": "What a job without a known end bids.",
    "visit_steps": "A first visit measures so many steady steps ...",
    "visit_seconds": "... for at most so long.",
}


@dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """What was set, once and for all."""

    state_dir: Path = DEFAULT_STATE_DIR
    store: str = ""
    """URL of the store; empty: SQLite in the state directory."""
    host: str | None = None
    port: int | None = None
    """None for both and a socket: no TCP at all."""
    socket: Path | None = None
    spare_socket: Path | None = None
    """A private broker's second place; it does with either."""
    allowed_hosts: frozenset[str] = frozenset()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_in_front: bool = False
    """Somebody else terminates TLS in front of a non-loopback address."""
    slots: int | None = None
    """CPU slots of this machine; None: what it has."""
    agent: bool = True
    """This machine's own devices are offered."""
    lock_dir: Path | None = None
    policy: str = DEFAULT_POLICY
    ready_file: Path | None = None
    idle_exit_seconds: float | None = None
    learn_seconds: float = 60.0
    calls_per_second: float = 20.0
    reports_per_second: float = 5.0
    jupyterhub: bool = False
    """Users of a JupyterHub are accounts."""
    hub: HubSettings | None = None
    """That Hub; None in a process that it has not started, such as a command of the administrator."""
    lease: LeaseOptions = field(default_factory=LeaseOptions)
    fairness: FairnessOptions = field(default_factory=FairnessOptions)
    failpoint: Failpoint = field(default_factory=Failpoint)

    @property
    def store_url(self) -> str:
        """Where the books are kept."""
        return self.store or f"sqlite:///{self.state_dir.absolute()}/books.sqlite"

    @property
    def listens_on_tcp(self) -> bool:
        """Whether there is a TCP port at all."""
        return self.host is not None or self.port is not None or self.socket is None


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    name: str
    parse: Callable[[str], Any]
    kind: str
    default: str
    meaning: str

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return PREFIX + self.name.upper()


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise InvalidSettings("is no path")
    return Path(text).expanduser()


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:8]) > 65_535:
        raise InvalidSettings("must be a port from 0 to 65535 (0: any that is free)")
    return int(text)


def _slots(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:8]) <= 1024:
        raise InvalidSettings("must be a number of slots from 1 to 1024")
    return int(text)


def _flag(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in known:
        raise InvalidSettings("must be 1 or 0")
    return known[text.lower()]


def _payments(text: str) -> str:
    if text not in ("auto", "record", "charge"):
        raise InvalidSettings("must be auto, record or charge")
    return text


def _hosts(text: str) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in text.split(",") if name.strip())


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise InvalidSettings("must be a number") from None
        if not low <= number <= high:
            raise InvalidSettings(f"must lie between {low:g} and {high:g}")
        return number

    return parse


def _options(kind: type, meanings: Mapping[str, str]) -> tuple[Setting, ...]:
    """Rows for fields of the core's options, with their defaults from there."""
    bounds = {"fairness_knob": (0.0, 1.0), "move_gain": (1.0, 100.0), "repay_factor": (0.0, 1000.0)}
    rows = []
    for found in fields(kind):
        if found.name in meanings:
            low, high = bounds.get(found.name, (0.05, _MOST_SECONDS))
            default, words = f"`{found.default:g}`", meanings[found.name]
            rows.append(Setting(found.name, _number(low, high), "number", default, words))
    return tuple(rows)


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "state_dir", _path, "path", f"`{DEFAULT_STATE_DIR}`", "Directory of the books, mode 0700."
    ),
    Setting("store", str, "URL", "SQLite in the state directory", "Where the books are kept."),
    Setting("host", str, "address", "`127.0.0.1`", "Address to listen on."),
    Setting("port", _port, "0 to 65535", f"`{DEFAULT_PORT}`", "Port to listen on; 0: any that is free."),
    Setting("socket", _path, "path", "", "Unix socket to listen on; alone, no TCP port is opened."),
    Setting(
        "allowed_hosts", _hosts, "names, with commas", "loopback names",
        "Host names by which the broker may be called over TCP.",
    ),
    Setting("tls_cert", _path, "path", "", "Certificate for TLS on the TCP port."),
    Setting("tls_key", _path, "path", "", "Its key."),
    Setting(
        "tls_in_front", _flag, "`1` or `0`", "`0`",
        "TLS is terminated in front of a TCP port that others can reach.",
    ),
    Setting("slots", _slots, "1 to 1024", "one for each CPU", "CPU slots of a machine without GPUs."),
    Setting("agent", _flag, "`1` or `0`", "`1`", "Offer the devices of this machine."),
    Setting("lock_dir", _path, "path", "`/run/lock/selfsched`", "Directory of the device locks."),
    Setting("policy", str, "name", f"`{DEFAULT_POLICY}`", "The rule by which devices are divided."),
    Setting(
        "payments", _payments, "`auto`, `record` or `charge`", "`auto`",
        "Whether winners of `themis` pay for what their win costs others, or it is only recorded"
        " (`auto`, so far).",
    ),
    Setting("ready_file", _path, "path", "", "A further `broker.json`, written once it listens."),
    Setting(
        "idle_exit_seconds", _number(0.1, _MOST_SECONDS), "number", "never; private: `600`",
        "End so long after the last job.",
    ),
    Setting(
        "learn_seconds", _number(0.1, _MOST_SECONDS), "number", "`60`",
        "Hardware figures are learned from jobs' reports no more often than this.",
    ),
    Setting(
        "calls_per_second", _number(0.1, 1e6), "number", "`20`",
        "Calls of an account in the long run; ten times as many at once.",
    ),
    Setting(
        "reports_per_second", _number(0.1, 1e6), "number", "`5`",
        "Reports of one job or node in the long run; ten times as many at once.",
    ),
    Setting(
        "jupyterhub", _flag, "`1` or `0`", "`0`",
        "Users of the JupyterHub whose service this broker is are accounts, by their own tokens of it.",
    ),
    Setting(
        "hub_admin_group", str, "name", "",
        "Members of this group of the Hub administer the broker, as the Hub's administrators do.",
    ),
    *_options(LeaseOptions, _LEASE_MEANINGS),
    *_options(FairnessOptions, _FAIRNESS_MEANINGS),
)  # fmt: skip
_BY_NAME = {setting.name: setting for setting in SETTINGS}
CONFIG_VARIABLE = PREFIX + "CONFIG"


def load(
    *,
    environment: Mapping[str, str] | None = None,
    config_file: Path | None = None,
    **arguments: Any,
) -> BrokerSettings:
    """Read all settings once.

    Args:
        environment: stands in for `os.environ`.
        config_file: else `SELFSCHED_BROKER_CONFIG`, else the system's if it is there.
        **arguments: values that win, by the table's names; None is not given.

    Raises:
        InvalidSettings: a value that does not parse or fit, an unknown name, an unreadable file.
    """
    env = os.environ if environment is None else environment
    file = _config(config_file, env)
    _refuse_unknown(env, file)
    found: dict[str, Any] = {}
    for setting in SETTINGS:
        source, text = _first(setting, arguments, env, file)
        if text is not None:
            found[setting.name] = _parsed(setting, source, text)
    lease = {name: found.pop(name) for name in _LEASE_MEANINGS if name in found}
    fairness = {name: found.pop(name) for name in _FAIRNESS_MEANINGS if name in found}
    if "payments" in found:
        fairness["payments"] = found.pop("payments")
    if "visit_steps" in fairness:
        fairness["visit_steps"] = int(fairness["visit_steps"])
    options = _lease_options(lease)
    group = found.pop("hub_admin_group", "")
    hub = hub_settings(env, admin_group=group) if found.get("jupyterhub") else None
    settings = BrokerSettings(
        **found,
        hub=hub,
        lease=options,
        fairness=FairnessOptions(term_seconds=options.term_seconds, **fairness),
        failpoint=Failpoint.parse(env.get(FAILPOINT_VARIABLE, "")),
    )
    _judge(settings)
    return settings


def _lease_options(given: dict[str, Any]) -> LeaseOptions:
    options: LeaseOptions = replace(LeaseOptions(), **given)
    if "restart_window_seconds" not in given:
        options = replace(options, restart_window_seconds=options.ttl_seconds + options.grace_seconds)
    if options.report_seconds >= options.ttl_seconds:
        raise InvalidSettings(
            f"report_seconds ({options.report_seconds:g}) must be less than ttl_seconds "
            f"({options.ttl_seconds:g}): a job would lose its lease between two reports"
        )
    return options


def _judge(settings: BrokerSettings) -> None:
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise InvalidSettings("tls_cert and tls_key belong together: give both or none")
    host = settings.host or "127.0.0.1"
    if not is_loopback(host) and settings.tls_cert is None and not settings.tls_in_front:
        raise InvalidSettings(
            f"{host} can be reached from other machines, and tokens would cross the network in the "
            "clear: give --tls-cert and --tls-key, or --i-terminate-tls-in-front if something else does"
        )


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def _config(path: Path | None, env: Mapping[str, str]) -> dict[str, Any]:
    named = path or (Path(env[CONFIG_VARIABLE]) if CONFIG_VARIABLE in env else None)
    chosen = named or SYSTEM_CONFIG
    try:
        with open(chosen, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        if named is None:
            return {}
        raise InvalidSettings(f"there is no config file {named}") from None
    except OSError as error:
        raise InvalidSettings(f"the config file {chosen} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"the config file {chosen} is no TOML: {error}") from error


def _refuse_unknown(env: Mapping[str, str], file: Mapping[str, Any]) -> None:
    variables = {setting.variable for setting in SETTINGS} | {CONFIG_VARIABLE}
    for name in sorted(env):
        if name.startswith(PREFIX) and name not in variables:
            raise InvalidSettings(f"{name} is set, but there is no such setting{_nearest(name, variables)}")
    for name in file:
        if name not in _BY_NAME:
            words = f"{name[:80]!r} stands in the config file, but there is no such setting"
            raise InvalidSettings(words + _nearest(name, set(_BY_NAME)))


def _nearest(name: str, known: set[str]) -> str:
    return f": did you mean {difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.0)[0]}?"


def _first(
    setting: Setting, arguments: Mapping[str, Any], env: Mapping[str, str], file: Mapping[str, Any]
) -> tuple[str, str | None]:
    """(where it stands, its text) from the first source that has it."""
    if arguments.get(setting.name) is not None:
        source = SERVE_OPTIONS.get(setting.name, setting.name)
        return source, _text(arguments[setting.name])
    if setting.variable in env:
        return setting.variable, env[setting.variable]
    if setting.name in file:
        return f"{setting.name} in the config file", _text(file[setting.name])
    return setting.name, None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _parsed(setting: Setting, source: str, text: str) -> Any:
    try:
        return setting.parse(text)
    except InvalidSettings as error:
        raise InvalidSettings(f"{source} = {text[:80]!r} {error}") from None


def markdown_table() -> str:
    """The table of `docs/administration.md`."""
    rows = ["| variable | config file | `serve` | value | default | meaning |", "|---|---|---|---|---|---|"]
    for setting in SETTINGS:
        option = SERVE_OPTIONS.get(setting.name)
        shown = (f"`{option}`" if option else "-", setting.kind, setting.default or "-", setting.meaning)
        rows.append(f"| `{setting.variable}` | `{setting.name}` | {' | '.join(shown)} |")
    return "\n".join(rows) + "\n"
