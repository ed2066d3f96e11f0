"""What holds for every test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# How long an example takes is the machine's business.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_configure() -> None:
    """A shell starts what it puts in the background deaf to Ctrl-C, nohup to a hang-up; tests use both."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def environment_is_put_back() -> Iterator[None]:
    """Trainers and ranks write LOCAL_RANK and the like, others handle signals: the next test finds none."""
    before = dict(os.environ)
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in signals}
    yield
    for number, handler in handlers.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
