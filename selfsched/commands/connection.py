"""The broker that a command speaks to."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from selfsched import settings
from selfsched.client import BrokerClient
from selfsched.errors import Refused
from selfsched.private_broker import PrivateBroker, answers
from selfsched.protocol import JobView
from selfsched.settings import BrokerAddress, Settings

NO_BROKER = (
    "no broker is running: `selfsched run` and `selfsched.Trainer` start one of your own; "
    "for a lab's, set SELFSCHED_BROKER"
)


def find_broker(found: Settings) -> BrokerAddress | None:
    """The one that is set, the lab's on this machine, or this user's private one; None: none answers.

    Unlike a job, a command starts none.
    """
    if found.broker is not None:
        return found.broker
    lab = BrokerAddress(url="http://broker", socket=found.lab_socket)
    candidates = (lab, PrivateBroker().address)
    return next((at for at in candidates if at.socket and at.socket.exists() and answers(at)), None)


@contextmanager
def connect(broker: str | None) -> Iterator[BrokerClient]:
    """A client of the broker in use.

    Raises:
        Refused: there is none.
    """
    found = settings.load(broker=broker)
    address = find_broker(found)
    if address is None:
        raise Refused(NO_BROKER)
    verify = ssl.create_default_context(cafile=found.ca_file) if found.ca_file else True
    with BrokerClient(address, token=found.token, verify=verify) as client:
        yield client


def find_job(client: BrokerClient, wanted: str) -> JobView:
    """The job of that id, or the newest of that name.

    Raises:
        Refused: there is none among the jobs we may see.
    """
    jobs = client.jobs()
    named = [job for job in jobs if wanted in (job.job, job.name)]
    if not named:
        known = ", ".join(sorted({job.name for job in jobs})) or "none"
        raise Refused(f"no job named {wanted[:80]!r}; yours: {known}")
    return min(named, key=lambda job: job.age_seconds)
