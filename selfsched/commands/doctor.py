"""`doctor`: all findings, printed, and whether anything is bad."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from selfsched import settings
from selfsched.client import BrokerClient
from selfsched.commands.connection import find_broker
from selfsched.commands.printing import print_json, print_table
from selfsched.doctor import machine, packages
from selfsched.doctor.finding import Finding
from selfsched.doctor.twice import check_script
from selfsched.elastic.found_runs import runs_of
from selfsched.errors import EXIT_FAILED, EXIT_FINE, BrokerError, InvalidSettings, NotAllowed
from selfsched.settings import Settings

_WORDS = {"good": "ok", "warning": "warning", "bad": "BAD", "absent": "-"}


def show_findings(script: tuple[str, ...], broker: str | None, *, as_json: bool) -> int:
    """Print what was found; the exit code says whether something is bad."""
    findings = check_script(Path(script[0]), script[1:]) if script else list(check_machine(broker))
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        rows = [(_WORDS[found.verdict], found.subject, found.found, found.advice) for found in findings]
        print_table("selfsched doctor", ("", "what", "found", "what to do"), rows)
    return EXIT_FAILED if any(finding.verdict == "bad" for finding in findings) else EXIT_FINE


def check_machine(broker: str | None) -> Iterator[Finding]:
    """Everything that is looked at without a script."""
    yield packages.check_python()
    torch, build = packages.check_torch()
    yield torch
    yield from packages.check_lightning()
    yield machine.check_gpus(build)
    yield machine.check_locks()
    yield machine.check_shared_memory()
    try:
        found = settings.load(broker=broker)
    except InvalidSettings as error:
        yield Finding("Settings", "bad", str(error), "Mend or unset it.")
        return
    yield Finding("Settings", "good", "read")
    yield machine.check_disk(runs_of(found))
    yield from check_broker(found)
    yield machine.check_jupyter()


def check_broker(found: Settings) -> Iterator[Finding]:
    """Whether the broker answers, and whom it takes us for."""
    address = find_broker(found)
    if address is None:
        yield Finding("Broker", "absent", "none runs: the first job starts one of your own")
        return
    with BrokerClient(address, token=found.token) as client:
        try:
            cluster = client.cluster()
            jobs = client.jobs()
        except NotAllowed as error:
            yield Finding("Broker", "good", f"answers at {address}")
            yield Finding("Identity", "bad", str(error), "Ask for a token: selfsched-broker users token NAME")
            return
        except BrokerError as error:
            yield Finding("Broker", "bad", str(error), "Is it running, and is SELFSCHED_BROKER its address?")
            return
    yield Finding("Broker", "good", f"{address}: {len(cluster.devices)} devices, policy {cluster.policy}")
    way = "token" if address.uses_tokens else "account on this machine"
    yield Finding("Identity", "good", f"known by {way}; {len(jobs)} jobs of yours")
