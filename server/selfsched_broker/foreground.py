"""`selfsched-broker serve`: from options to a running broker that says where it listens."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from selfsched.errors import EXIT_FAILED, EXIT_FINE, Refused
from selfsched_broker import settings
from selfsched_broker.listening import Addresses
from selfsched_broker.printing import say, show_json
from selfsched_broker.private import IDLE_EXIT_SECONDS, private_arguments, spare_socket

log = logging.getLogger(__name__)


def run_broker(given: Mapping[str, Any], *, private: bool, config: Path | None, as_json: bool) -> int:
    """Serve until told to end; returns the exit code.

    Args:
        given: options by the names of settings; None: not given.
        private: with a private broker's places where none are given.
        config: the config file.
        as_json: say where it listens as JSON.

    Raises:
        Refused, StoreUnusable: it cannot begin.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for chatty in ("uvicorn", "alembic", "sqlalchemy", "httpx", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    chosen = dict(given)
    if private:
        _refuse_tcp(chosen)
        for name, value in private_arguments().items():
            chosen[name] = value if chosen.get(name) is None else chosen[name]
    found = settings.load(config_file=config, **chosen)
    if private and found.idle_exit_seconds is None:
        found = replace(found, idle_exit_seconds=IDLE_EXIT_SECONDS)
    if private:
        found = replace(found, spare_socket=spare_socket())

    # Only after the settings are known to be right: these imports take a second.
    from selfsched_broker.serving import Running, serve
    from selfsched_broker.this_machine import own_agent

    if private:
        _bring_up_to_date(found.store_url)

    def ready(running: Running) -> None:
        _announce(running.addresses, private=private, as_json=as_json)

    ended = serve(found, agent=own_agent(found) if found.agent else None, ready=ready)
    log.info("the broker has ended: %s", ended.reason)
    return EXIT_FAILED if ended.failed else EXIT_FINE


def _bring_up_to_date(url: str) -> None:
    """Nobody administers a private broker: after an upgrade it migrates its own books."""
    from selfsched_broker.store.schema import is_older, migrate

    if is_older(url):
        done = migrate(url)
        log.info(
            "the books were brought from schema %s to %s; a copy is %s", done.before, done.after, done.backup
        )


def _refuse_tcp(given: Mapping[str, Any]) -> None:
    for name in ("host", "port", "tls_cert", "tls_key", "tls_in_front"):
        if given.get(name) is not None:
            raise Refused(f"--private listens on a Unix socket only: leave out --{name.replace('_', '-')}")


def _announce(addresses: Addresses, *, private: bool, as_json: bool) -> None:
    if as_json:
        show_json({"address": addresses.address, "socket": addresses.socket, "pid": addresses.pid})
        return
    say(f"selfsched broker listens at {addresses.address}")
    if addresses.socket and addresses.address != f"unix:{addresses.socket}":
        say(f"and at unix:{addresses.socket}")
    if private:
        say("It is yours alone and ends ten minutes after its last job.")
